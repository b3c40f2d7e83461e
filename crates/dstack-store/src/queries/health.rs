//! What the agents of instances said of their GPUs, asked now and then.

use dstack_model::health::HealthStatus;
use dstack_units::{InstanceId, Time};
use sqlx::Row as _;
use uuid::Uuid;

use super::Reads;
use super::select::Select;
use crate::database::Tx;
use crate::entity::read_column;
use crate::{Column, Result};

const TABLE: &str = "instance_health_checks";

/// One check of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCheck {
    /// When the agent answered.
    pub collected_at: Time,
    /// How the GPUs are as a whole.
    pub status: HealthStatus,
    /// The answer: JSON of the shape of the agent's `GET /api/instance/health`.
    pub response: String,
}

/// What agents said of GPUs: see [`crate::Database::health_checks`].
#[derive(Debug, Clone, Copy)]
pub struct HealthChecks<'a>(pub(crate) Reads<'a>);

impl HealthChecks<'_> {
    /// Checks of an instance between two times, newest first; `limit`: at most so many.
    pub async fn list(
        self,
        instance: InstanceId,
        after: Option<Time>,
        before: Option<Time>,
        limit: Option<i64>,
    ) -> Result<Vec<StoredCheck>> {
        let mut query = Select::new(format!("SELECT collected_at, status, response FROM {TABLE}"));
        let instance = query.bind(instance);
        query.filter(format_args!("instance_id = {instance}"));
        if let Some(after) = after {
            let after = query.bind(after);
            query.filter(format_args!("collected_at > {after}"));
        }
        if let Some(before) = before {
            let before = query.bind(before);
            query.filter(format_args!("collected_at < {before}"));
        }
        query.push(" ORDER BY collected_at DESC, id DESC");
        if let Some(limit) = limit {
            let limit = query.bind(limit.max(0));
            query.push(&format!(" LIMIT {limit}"));
        }
        query
            .fetch_as(self.0, |row| {
                Ok(StoredCheck {
                    collected_at: read_column(row, 0, TABLE, "collected_at")?,
                    status: read_column(row, 1, TABLE, "status")?,
                    response: row.try_get(2)?,
                })
            })
            .await
    }
}

/// Stores a check under this id.
pub async fn add(tx: &mut Tx, id: Uuid, instance: InstanceId, check: &StoredCheck) -> Result<()> {
    sqlx::query(
        "INSERT INTO instance_health_checks (id, instance_id, collected_at, status, response) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(id.to_string())
    .bind(instance.to_raw())
    .bind(check.collected_at.to_raw())
    .bind(check.status.to_raw())
    .bind(check.response.clone())
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// Deletes the oldest checks from before that time, at most `limit`, also those of instances that are gone; returns how many
/// that were.
pub async fn delete_before(tx: &mut Tx, before: Time, limit: u32) -> Result<u64> {
    let done = sqlx::query(
        "DELETE FROM instance_health_checks WHERE id IN (SELECT c.id FROM instance_health_checks c \
         WHERE c.collected_at < $1 ORDER BY c.collected_at LIMIT $2)",
    )
    .bind(before.to_raw())
    .bind(i64::from(limit))
    .execute(&mut *tx)
    .await?;
    Ok(done.rows_affected())
}
