//! Exports of projects, and the projects that import them.

use std::collections::{BTreeSet, HashMap};

use dstack_units::{ExportId, FleetId, GatewayId, ImportId, ProjectId, Time};
use sqlx::Row;

use super::Reads;
use super::record;
use super::select::{Select, fetch_as};
use crate::entity::read_column;
use crate::{Result, Tx};

record! {
    /// What a project lets others use.
    ExportRow in "exports" {
        /// Id of the export.
        id: ExportId,
        /// The project that exports.
        project_id: ProjectId,
        /// Unique in the project.
        name: String,
        /// When it was created.
        created_at: Time,
        /// Imported by every project.
        is_global: bool,
    }
}

/// A project that imports an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRow {
    /// Id of the import.
    pub id: ImportId,
    /// The importing project.
    pub project_id: ProjectId,
    /// Name of the importing project.
    pub project_name: String,
    /// When it was added.
    pub created_at: Time,
}

/// An export with all that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct FullExport {
    /// The export itself.
    pub row: ExportRow,
    /// Name of its project.
    pub project_name: String,
    /// Who imports it, in the order in which they were added.
    pub imports: Vec<ImportRow>,
    /// Ids and names of the fleets that others may use.
    pub fleets: Vec<(FleetId, String)>,
    /// Ids and names of the gateways that others may use.
    pub gateways: Vec<(GatewayId, String)>,
}

/// A fleet that a project may use although it is another's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedFleet {
    /// Id of the fleet.
    pub id: FleetId,
    /// The project that it belongs to.
    pub project: ProjectId,
    /// Name of that project.
    pub project_name: String,
}

/// What projects share with others: see [`crate::Database::exports`].
#[derive(Debug, Clone, Copy)]
pub struct Exports<'a>(pub(crate) Reads<'a>);

impl Exports<'_> {
    /// Exports of a project, newest first.
    pub async fn of_project(self, project: ProjectId) -> Result<Vec<FullExport>> {
        self.find("e.project_id = ", project).await
    }

    /// Exports that a project imports, newest first.
    pub async fn imported_by(self, project: ProjectId) -> Result<Vec<FullExport>> {
        self.find(
            "EXISTS (SELECT 1 FROM imports m WHERE m.export_id = e.id AND m.project_id = ",
            project,
        )
        .await
    }

    /// Fleets of other projects that a project may use, oldest first.
    pub async fn imported_fleets(self, project: ProjectId) -> Result<Vec<ImportedFleet>> {
        let sql = "SELECT DISTINCT f.id, f.project_id, p.name, f.created_at FROM imports i \
             JOIN exported_fleets x ON x.export_id = i.export_id \
             JOIN fleets f ON f.id = x.fleet_id AND f.deleted = 0 \
             JOIN projects p ON p.id = f.project_id AND p.deleted = 0 \
             WHERE i.project_id = $1 AND f.project_id <> i.project_id ORDER BY f.created_at, f.id";
        fetch_as(self.0, sql.to_owned(), &[&project.to_string()], |row| {
            Ok(ImportedFleet {
                id: read_column(row, 0, "fleets", "id")?,
                project: read_column(row, 1, "fleets", "project_id")?,
                project_name: row.try_get(2)?,
            })
        })
        .await
    }

    async fn find(self, condition: &str, project: ProjectId) -> Result<Vec<FullExport>> {
        let mut query = Select::new(format!(
            "SELECT {}, p.name FROM exports e JOIN projects p ON p.id = e.project_id",
            ExportRow::columns("e")
        ));
        let place = query.bind(project);
        let close = if condition.starts_with("EXISTS") { ")" } else { "" };
        query.filter(format_args!("{condition}{place}{close}"));
        query.push(" ORDER BY e.created_at DESC, e.id");
        let mut found = Vec::new();
        for row in query.fetch(self.0).await? {
            found.push(FullExport {
                row: ExportRow::read_at(&row, 0)?,
                project_name: row.try_get(ExportRow::WIDTH)?,
                imports: Vec::new(),
                fleets: Vec::new(),
                gateways: Vec::new(),
            });
        }
        self.fill(&mut found).await?;
        Ok(found)
    }

    async fn fill(self, exports: &mut [FullExport]) -> Result<()> {
        let ids: Vec<ExportId> = exports.iter().map(|export| export.row.id).collect();
        let places: HashMap<ExportId, usize> = ids.iter().copied().zip(0..).collect();
        let at = |row: &sqlx::any::AnyRow| -> Result<Option<usize>> {
            let id: ExportId = read_column(row, 0, "exports", "id")?;
            Ok(places.get(&id).copied())
        };
        let imports = "SELECT i.export_id, i.id, i.project_id, p.name, i.created_at FROM imports i \
             JOIN projects p ON p.id = i.project_id AND p.deleted = 0";
        for row in self
            .below(imports, "i.export_id", "i.created_at, i.id", &ids)
            .await?
        {
            if let Some(export) = at(&row)?.and_then(|place| exports.get_mut(place)) {
                export.imports.push(ImportRow {
                    id: read_column(&row, 1, "imports", "id")?,
                    project_id: read_column(&row, 2, "imports", "project_id")?,
                    project_name: row.try_get(3)?,
                    created_at: read_column(&row, 4, "imports", "created_at")?,
                });
            }
        }
        let fleets = "SELECT x.export_id, f.id, f.name FROM exported_fleets x \
             JOIN fleets f ON f.id = x.fleet_id AND f.deleted = 0";
        for row in self
            .below(fleets, "x.export_id", "f.created_at, f.id", &ids)
            .await?
        {
            if let Some(export) = at(&row)?.and_then(|place| exports.get_mut(place)) {
                let id = read_column(&row, 1, "fleets", "id")?;
                export.fleets.push((id, row.try_get(2)?));
            }
        }
        let gateways = "SELECT x.export_id, g.id, g.name FROM exported_gateways x JOIN gateways g ON g.id = x.gateway_id";
        for row in self
            .below(gateways, "x.export_id", "g.created_at, g.id", &ids)
            .await?
        {
            if let Some(export) = at(&row)?.and_then(|place| exports.get_mut(place)) {
                let id = read_column(&row, 1, "gateways", "id")?;
                export.gateways.push((id, row.try_get(2)?));
            }
        }
        Ok(())
    }

    async fn below(
        self,
        sql: &str,
        column: &str,
        order: &str,
        exports: &[ExportId],
    ) -> Result<Vec<sqlx::any::AnyRow>> {
        let mut query = Select::new(sql);
        let list = query.bind_list(exports.iter().copied());
        query.filter(format_args!("{column} IN {list}"));
        query.push(&format!(" ORDER BY {order}"));
        query.fetch(self.0).await
    }
}

/// Writes an export with all that belongs to it in place of what is stored.
///
/// # Errors
/// A unique violation when the project has another export of that name.
pub async fn put(tx: &mut Tx, export: &FullExport) -> Result<()> {
    let row = &export.row;
    let id = row.id.to_string();
    sqlx::query(
        "INSERT INTO exports (id, project_id, name, created_at, is_global) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (id) DO UPDATE SET is_global = excluded.is_global",
    )
    .bind(id.clone())
    .bind(row.project_id.to_string())
    .bind(row.name.clone())
    .bind(row.created_at.as_micros())
    .bind(i64::from(row.is_global))
    .execute(&mut *tx)
    .await?;
    for sql in [
        "DELETE FROM imports WHERE export_id = $1",
        "DELETE FROM exported_fleets WHERE export_id = $1",
        "DELETE FROM exported_gateways WHERE export_id = $1",
    ] {
        sqlx::query(sql).bind(id.clone()).execute(&mut *tx).await?;
    }
    for import in &export.imports {
        sqlx::query("INSERT INTO imports (id, export_id, project_id, created_at) VALUES ($1, $2, $3, $4)")
            .bind(import.id.to_string())
            .bind(id.clone())
            .bind(import.project_id.to_string())
            .bind(import.created_at.as_micros())
            .execute(&mut *tx)
            .await?;
    }
    for (fleet, _) in &export.fleets {
        sqlx::query("INSERT INTO exported_fleets (export_id, fleet_id) VALUES ($1, $2)")
            .bind(id.clone())
            .bind(fleet.to_string())
            .execute(&mut *tx)
            .await?;
    }
    for (gateway, _) in &export.gateways {
        sqlx::query("INSERT INTO exported_gateways (export_id, gateway_id) VALUES ($1, $2)")
            .bind(id.clone())
            .bind(gateway.to_string())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

/// What an export consists of, to tell whether it was changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    is_global: bool,
    imports: BTreeSet<String>,
    fleets: BTreeSet<String>,
    gateways: BTreeSet<String>,
}

impl Parts {
    pub(crate) fn of(export: &FullExport) -> Option<Self> {
        Some(Self {
            is_global: export.row.is_global,
            imports: export
                .imports
                .iter()
                .map(|import| import.project_id.to_string())
                .collect(),
            fleets: export.fleets.iter().map(|(id, _)| id.to_string()).collect(),
            gateways: export.gateways.iter().map(|(id, _)| id.to_string()).collect(),
        })
    }
}

/// As an export is now; `None`: it is gone.
pub(crate) async fn parts_in(tx: &mut Tx, id: ExportId) -> Result<Option<Parts>> {
    let row = sqlx::query("SELECT is_global FROM exports WHERE id = $1")
        .bind(id.to_string())
        .fetch_optional(&mut *tx)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let imports = "SELECT i.project_id FROM imports i JOIN projects p ON p.id = i.project_id AND p.deleted = 0 \
         WHERE i.export_id = $1";
    let fleets = "SELECT x.fleet_id FROM exported_fleets x JOIN fleets f ON f.id = x.fleet_id AND f.deleted = 0 \
         WHERE x.export_id = $1";
    let gateways = "SELECT x.gateway_id FROM exported_gateways x WHERE x.export_id = $1";
    Ok(Some(Parts {
        is_global: row.try_get::<i64, _>(0)? != 0,
        imports: ids_in(tx, imports, id).await?,
        fleets: ids_in(tx, fleets, id).await?,
        gateways: ids_in(tx, gateways, id).await?,
    }))
}

async fn ids_in(tx: &mut Tx, sql: &'static str, export: ExportId) -> Result<BTreeSet<String>> {
    let rows = sqlx::query(sql).bind(export.to_string()).fetch_all(tx).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// As [`global`], within a transaction.
pub(crate) async fn global_in(tx: &mut Tx) -> Result<Vec<ExportId>> {
    let rows = sqlx::query("SELECT id FROM exports WHERE is_global = 1")
        .fetch_all(tx)
        .await?;
    rows.iter()
        .map(|row| read_column(row, 0, "exports", "id"))
        .collect()
}

impl Exports<'_> {
    /// Exports that every project imports.
    pub async fn global(self) -> Result<Vec<ExportId>> {
        let sql = "SELECT e.id FROM exports e WHERE e.is_global = 1 ORDER BY e.created_at, e.id";
        fetch_as(self.0, sql.to_owned(), &[], |row| {
            read_column(row, 0, "exports", "id")
        })
        .await
    }
}

/// Lets a project import an export.
pub async fn add_import(
    tx: &mut Tx,
    export: ExportId,
    import: ImportId,
    project: ProjectId,
    now: Time,
) -> Result<()> {
    sqlx::query("INSERT INTO imports (id, export_id, project_id, created_at) VALUES ($1, $2, $3, $4)")
        .bind(import.to_string())
        .bind(export.to_string())
        .bind(project.to_string())
        .bind(now.as_micros())
        .execute(tx)
        .await?;
    Ok(())
}

/// Removes an export.
pub async fn delete(tx: &mut Tx, id: ExportId) -> Result<()> {
    sqlx::query("DELETE FROM exports WHERE id = $1")
        .bind(id.to_string())
        .execute(tx)
        .await?;
    Ok(())
}
