//! Rows of which something is wrong, whoever drives them.

use std::collections::BTreeMap;

use dstack_plan::lifecycle::WaitReason;
use dstack_units::Time;
use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::Reads;
use super::select::Select;
use crate::entities::{DRIVEN, DrivenTable};
use crate::entity::read_column;
use crate::rows::OperationKind;
use crate::{Database, Dialect, EntityRef, Result};

/// A row that is not over.
#[derive(Debug, Clone, PartialEq)]
pub struct DiagnosedRow {
    /// Kind and id of the row.
    pub entity: EntityRef,
    /// Name of the row, as users know it.
    pub name: String,
    /// Name of its project.
    pub project: String,
    /// Status of the row, in the words of the database.
    pub status: String,
    /// What it waits for.
    pub waiting_for: Option<WaitReason>,
    /// When that should have ended badly.
    pub deadline_at: Option<Time>,
    /// When it was changed last.
    pub changed_at: Time,
}

/// A call that is still to be made, or made again.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingCall {
    /// For what it is made.
    pub subject: EntityRef,
    /// What it does.
    pub kind: OperationKind,
    /// Calls of which something was written down so far.
    pub attempt: i64,
    /// When it was intended.
    pub created_at: Time,
    /// What the last call said.
    pub error: Option<String>,
}

/// Rows of which something is wrong: see [`crate::Database::diagnoses`].
#[derive(Debug, Clone, Copy)]
pub struct Diagnoses<'a>(pub(crate) Reads<'a>);

impl Diagnoses<'_> {
    /// Rows whose wait should have ended before this time.
    pub async fn overdue(self, before: Time) -> Result<Vec<DiagnosedRow>> {
        let mut found = Vec::new();
        for table in DRIVEN {
            let condition = format!("{} AND deadline_at < $1", table.driven);
            found.extend(self.in_table(table, &condition, Some(before)).await?);
        }
        Ok(found)
    }

    /// Instances, volumes, attachments and gateways that are being ended.
    pub async fn ending(self) -> Result<Vec<DiagnosedRow>> {
        let mut found = Vec::new();
        for table in DRIVEN {
            let condition = match table.name {
                "instances" => "status = 'terminating'",
                "volumes" => "to_be_deleted = 1 AND deleted = 0",
                "attachments" => "status = 'detaching'",
                "gateways" => "to_be_deleted = 1",
                _ => continue,
            };
            found.extend(self.in_table(table, condition, None).await?);
        }
        Ok(found)
    }

    /// Instances whose agents do not answer.
    pub async fn unreachable(self) -> Result<Vec<DiagnosedRow>> {
        let mut found = Vec::new();
        for table in DRIVEN.iter().filter(|table| table.name == "instances") {
            let condition = format!("{} AND unreachable = 1", table.driven);
            found.extend(self.in_table(table, &condition, None).await?);
        }
        Ok(found)
    }

    /// Calls that are still to be made and were intended before this time, oldest first.
    pub async fn pending_calls(self, before: Time) -> Result<Vec<PendingCall>> {
        let mut query = Select::new("SELECT subject, kind, attempt, created_at, error FROM operations");
        let before = query.bind(before);
        query.filter(format_args!("state = 'intended' AND created_at < {before}"));
        query.push(" ORDER BY created_at, id");
        let read = |row: &AnyRow| {
            Ok(PendingCall {
                subject: read_column(row, 0, "operations", "subject")?,
                kind: read_column(row, 1, "operations", "kind")?,
                attempt: read_column(row, 2, "operations", "attempt")?,
                created_at: read_column(row, 3, "operations", "created_at")?,
                error: read_column(row, 4, "operations", "error")?,
            })
        };
        query.fetch_as(self.0, read).await
    }

    /// The rows of these entities.
    pub async fn rows(self, entities: &[EntityRef]) -> Result<BTreeMap<EntityRef, DiagnosedRow>> {
        let mut found = BTreeMap::new();
        for table in DRIVEN {
            let of_table = entities.iter().filter(|entity| entity.table() == table.name);
            let ids: Vec<Uuid> = of_table.map(EntityRef::uuid).collect();
            if ids.is_empty() {
                continue;
            }
            let mut query = Select::new(select(table));
            let list = query.bind_list(ids);
            query.filter(format_args!("t.id IN {list}"));
            let rows = query.fetch_as(self.0, |row| read(row, table)).await?;
            found.extend(rows.into_iter().flatten().map(|row| (row.entity, row)));
        }
        Ok(found)
    }

    /// `condition` is trusted text, with `$1` for `before`.
    async fn in_table(
        self,
        table: &DrivenTable,
        condition: &str,
        before: Option<Time>,
    ) -> Result<Vec<DiagnosedRow>> {
        let mut query = Select::new(select(table));
        if let Some(before) = before {
            query.bind(before);
        }
        query.filter(format_args!(
            "t.id IN (SELECT id FROM {} WHERE {condition})",
            table.name
        ));
        query.push(" ORDER BY t.id");
        let rows = query.fetch_as(self.0, |row| read(row, table)).await?;
        Ok(rows.into_iter().flatten().collect())
    }
}

fn select(table: &DrivenTable) -> String {
    let name_of = table.name_column();
    format!(
        "SELECT t.id, t.{name_of}, p.name, t.status, t.waiting_for, t.deadline_at, t.last_processed_at FROM {} t \
         JOIN projects p ON p.id = t.project_id",
        table.name
    )
}

fn read(row: &AnyRow, table: &DrivenTable) -> Result<Option<DiagnosedRow>> {
    let id: String = row.try_get(0)?;
    let Some(entity) = (table.entity)(&id) else {
        return Ok(None);
    };
    Ok(Some(DiagnosedRow {
        entity,
        name: row.try_get(1)?,
        project: row.try_get(2)?,
        status: row.try_get(3)?,
        waiting_for: read_column(row, 4, table.name, "waiting_for")?,
        deadline_at: read_column(row, 5, table.name, "deadline_at")?,
        changed_at: read_column(row, 6, table.name, "last_processed_at")?,
    }))
}

impl Database {
    /// Asks for something and writes something, and returns the time of the database's clock; `None`: it has none of its own.
    /// What is written is a counter in the table `meta`.
    ///
    /// # Errors
    /// It does not answer, or cannot be written to any more.
    pub async fn check(&self) -> Result<Option<Time>> {
        self.check_writers()?;
        let sql = match self.dialect() {
            Dialect::Sqlite => "SELECT COUNT(*) FROM schema_version",
            Dialect::Postgres => {
                "SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT FROM schema_version LIMIT 1"
            }
        };
        let answered = self.asked(Select::new(sql).fetch_count(self.reads())).await?;
        self.write_probe().await?;
        Ok(match self.dialect() {
            Dialect::Sqlite => None,
            Dialect::Postgres => Some(Time::from_micros(answered)),
        })
    }

    /// A value that was not there before: a full disk or a database that is read only shows at nothing less.
    async fn write_probe(&self) -> Result<()> {
        self.write(|tx| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO meta (key, value) VALUES ('diagnoses', '1') ON CONFLICT (key) DO UPDATE \
                     SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT)",
                )
                .execute(tx)
                .await?;
                Ok(())
            })
        })
        .await
    }
}
