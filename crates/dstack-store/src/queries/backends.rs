//! Configured backends of projects.

use std::collections::BTreeSet;

use dstack_model::gateways::GatewayConfiguration;
use dstack_model::placement::PlacementGroupConfiguration;
use dstack_units::{ProjectId, Time};
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::Reads;
use super::select::fetch_as;
use crate::encryption::RowKeys;
use crate::entity::{read_column, read_field};
use crate::rows::OperationKind;
use crate::{Column, Json, Result, Sealed, Tx};

/// A configured backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendRow {
    /// Stays when the configuration is replaced.
    pub id: String,
    /// The project that configured it.
    pub project_id: ProjectId,
    /// Type of the backend, such as `aws`.
    pub kind: String,
    /// When it was configured first: decides its place in lists.
    pub created_at: Time,
    /// What members may see, JSON.
    pub config: String,
    /// Encrypted credentials, JSON.
    pub auth: String,
    /// `config` as it was typed.
    pub source_config: Option<String>,
    /// `auth` as it was typed.
    pub source_auth: Option<String>,
}

/// Configured backends of projects: see [`crate::Database::backends`].
#[derive(Debug, Clone, Copy)]
pub struct Backends<'a>(pub(crate) Reads<'a>);

impl Backends<'_> {
    /// Whether any project has one.
    pub async fn any(self) -> Result<bool> {
        let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM backends LIMIT 1) AS found";
        let counts = fetch_as(self.0, sql.to_owned(), &[], |row| {
            read_column::<i64>(row, 0, "backends", "found")
        });
        Ok(counts.await?.first().is_some_and(|count| *count > 0))
    }

    /// Of a project, oldest first.
    pub async fn list(self, project: ProjectId) -> Result<Vec<BackendRow>> {
        let sql =
            format!("SELECT {COLUMNS} FROM backends b WHERE b.project_id = $1 ORDER BY b.created_at, b.type");
        fetch_as(self.0, sql, &[&project.to_string()], read).await
    }

    /// Of all projects that are not deleted, oldest first, each with the name of its project.
    pub async fn all(self) -> Result<Vec<(BackendRow, String)>> {
        let sql = format!(
            "SELECT {COLUMNS}, p.name FROM backends b JOIN projects p ON p.id = b.project_id WHERE p.deleted = 0 \
             ORDER BY b.created_at, b.id"
        );
        fetch_as(self.0, sql, &[], |row| {
            Ok((read(row)?, read_column(row, 8, "projects", "name")?))
        })
        .await
    }
}

const COLUMNS: &str =
    "b.id, b.project_id, b.type, b.config, b.auth, b.source_config, b.source_auth, b.created_at";

fn read(row: &AnyRow) -> Result<BackendRow> {
    Ok(BackendRow {
        id: read_column(row, 0, "backends", "id")?,
        project_id: read_column(row, 1, "backends", "project_id")?,
        kind: read_column(row, 2, "backends", "type")?,
        config: read_column(row, 3, "backends", "config")?,
        auth: read_column(row, 4, "backends", "auth")?,
        source_config: read_column(row, 5, "backends", "source_config")?,
        source_auth: read_column(row, 6, "backends", "source_auth")?,
        created_at: read_column(row, 7, "backends", "created_at")?,
    })
}

/// Adds a backend.
///
/// # Errors
/// A unique violation when the project has one of that type.
pub async fn insert(tx: &mut Tx, row: &BackendRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO backends (id, project_id, type, config, auth, source_config, source_auth, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(row.id.clone())
    .bind(row.project_id.to_string())
    .bind(row.kind.clone())
    .bind(row.config.clone())
    .bind(row.auth.clone())
    .bind(row.source_config.clone())
    .bind(row.source_auth.clone())
    .bind(row.created_at.as_micros())
    .execute(tx)
    .await?;
    Ok(())
}

/// Replaces the configuration of the project's backend of that type; its id stays.
pub async fn update(tx: &mut Tx, row: &BackendRow) -> Result<()> {
    sqlx::query(
        "UPDATE backends SET config = $1, auth = $2, source_config = $3, source_auth = $4 \
         WHERE project_id = $5 AND type = $6",
    )
    .bind(row.config.clone())
    .bind(row.auth.clone())
    .bind(row.source_config.clone())
    .bind(row.source_auth.clone())
    .bind(row.project_id.to_string())
    .bind(row.kind.clone())
    .execute(tx)
    .await?;
    Ok(())
}

/// Removes the project's backend of that type.
pub async fn delete(tx: &mut Tx, project: ProjectId, kind: &str) -> Result<()> {
    sqlx::query("DELETE FROM backends WHERE project_id = $1 AND type = $2")
        .bind(project.to_string())
        .bind(kind.to_owned())
        .execute(tx)
        .await?;
    Ok(())
}

/// The project's backend of that type.
pub(crate) async fn id_in(tx: &mut Tx, project: ProjectId, kind: &str) -> Result<Option<String>> {
    let row = sqlx::query("SELECT id FROM backends WHERE project_id = $1 AND type = $2")
        .bind(project.to_string())
        .bind(kind.to_owned())
        .fetch_optional(tx)
        .await?;
    row.map(|row| read_column(&row, 0, "backends", "id")).transpose()
}

/// Whether the project has instances of this type of backend that are not terminated.
pub(crate) async fn has_instances(
    tx: &mut Tx,
    keys: &RowKeys,
    project: ProjectId,
    kind: &str,
) -> Result<bool> {
    let sql = "SELECT 1 FROM instances WHERE project_id = $1 AND backend = $2 AND deleted = 0 AND status <> 'terminated' LIMIT 1";
    let row = sqlx::query(sql)
        .bind(project.to_string())
        .bind(kind.to_owned())
        .fetch_optional(&mut *tx)
        .await?;
    Ok(row.is_some() || is_asked_for_instances(tx, keys, project, kind).await?)
}

/// Whether one of the project's gateways has or may have something in this type of backend: a machine of a replica, or its load balancer,
/// which is asked for before there are replicas, and goes after them.
pub(crate) async fn has_gateways(tx: &mut Tx, project: ProjectId, kind: &str) -> Result<bool> {
    let subject = "'gateway ' || g.id";
    let sql = format!(
        "SELECT g.configuration FROM gateways g WHERE g.project_id = $1 AND (\
         EXISTS (SELECT 1 FROM gateway_replicas r WHERE r.gateway_id = g.id AND r.instance_id IS NULL AND r.status <> 'terminated') \
         OR (EXISTS (SELECT 1 FROM operations o WHERE o.subject = {subject} AND o.kind = 'create' AND o.state <> 'failed') \
         AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.subject = {subject} AND o.kind = 'remove' AND o.state = 'done')))"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(project.to_string())
        .fetch_all(tx)
        .await?;
    for row in rows {
        let configuration: Json<GatewayConfiguration> = read_column(&row, 0, "gateways", "configuration")?;
        if configuration.backend.as_str() == kind {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Names of the project's fleets with placement groups of this type of backend that are not over: only the backend can end them. First
/// of those that keep their groups, then of those whose groups are being deleted.
pub(crate) async fn fleets_with_placement_groups(
    tx: &mut Tx,
    project: ProjectId,
    kind: &str,
) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let sql = "SELECT g.configuration, f.name, CAST(CASE WHEN f.deleted = 0 AND g.status <> 'unused' THEN 1 ELSE 0 END AS BIGINT) \
        FROM placement_groups g JOIN fleets f ON f.id = g.fleet_id \
        WHERE g.project_id = $1 AND g.status NOT IN ('failed', 'deleted')";
    let rows = sqlx::query(sql).bind(project.to_string()).fetch_all(tx).await?;
    let (mut kept, mut left) = (BTreeSet::new(), BTreeSet::new());
    for row in rows {
        let configuration: Json<PlacementGroupConfiguration> =
            read_column(&row, 0, "placement_groups", "configuration")?;
        let name: String = row.try_get(1)?;
        if configuration.backend.as_str() == kind {
            match row.try_get::<i64, _>(2)? {
                0 => left.insert(name),
                _ => kept.insert(name),
            };
        }
    }
    Ok((kept, left))
}

/// Whether a cloud of this kind is being asked for an instance, or has made one that its row does not tell of yet.
async fn is_asked_for_instances(tx: &mut Tx, keys: &RowKeys, project: ProjectId, kind: &str) -> Result<bool> {
    let sql = "SELECT o.notes FROM instances i JOIN operations o ON o.subject = 'instance ' || i.id \
        WHERE i.project_id = $1 AND i.backend IS NULL AND i.deleted = 0 AND i.status <> 'terminated' \
        AND o.kind = $2 AND o.notes IS NOT NULL";
    let of_groups = "SELECT o.notes FROM compute_groups g JOIN operations o ON o.subject = 'compute-group ' || g.id \
        WHERE g.project_id = $1 AND g.status NOT IN ('terminated') AND o.kind = $2 AND o.notes IS NOT NULL";
    let mut rows = Vec::new();
    for sql in [sql, of_groups] {
        let found = sqlx::query(sql)
            .bind(project.to_string())
            .bind(OperationKind::Create.to_raw())
            .fetch_all(&mut *tx)
            .await?;
        rows.extend(found);
    }
    for row in rows {
        let attempts: Sealed<Value> = read_field(&row, keys, 0, "operations", "notes")?;
        // The first of the offers that remain is the one that is asked for. Earlier versions called them otherwise.
        let asked = ["/remaining/0/backend", "/left/0/backend"];
        let mut asked = asked.iter().filter_map(|path| attempts.pointer(path)?.as_str());
        if asked.any(|asked| asked == kind) {
            return Ok(true);
        }
    }
    Ok(false)
}
