//! What jobs used of their machines, measured now and then.

use std::collections::HashMap;

use dstack_units::{JobId, Time};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::Reads;
use super::select::Select;
use crate::database::Tx;
use crate::entity::read_column;
use crate::{Column, Result};

/// A measured point of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricsPoint {
    /// When the agent measured.
    pub at: Time,
    /// CPU time used so far, microseconds.
    pub cpu_usage_micro: i64,
    /// Memory used, page cache included.
    pub memory_usage_bytes: i64,
    /// Memory that cannot be reclaimed.
    pub memory_working_set_bytes: i64,
    /// Memory used of each GPU.
    pub gpus_memory_usage_bytes: Vec<i64>,
    /// Utilisation of each GPU.
    pub gpus_util_percent: Vec<i64>,
    /// Bytes received so far; `None`: not known.
    pub network_receive_bytes: Option<i64>,
    /// Bytes sent so far; `None`: not known.
    pub network_transmit_bytes: Option<i64>,
}

/// What jobs used: see [`crate::Database::metrics`].
#[derive(Debug, Clone, Copy)]
pub struct Metrics<'a>(pub(crate) Reads<'a>);

impl Metrics<'_> {
    /// Points of a job between two times, newest first, at most `limit`.
    pub async fn between(
        self,
        job: JobId,
        after: Option<Time>,
        before: Option<Time>,
        limit: i64,
    ) -> Result<Vec<MetricsPoint>> {
        let mut query = Select::new(
            "SELECT timestamp_micro, cpu_usage_micro, memory_usage_bytes, memory_working_set_bytes, \
             gpus_memory_usage_bytes, gpus_util_percent, network_receive_bytes, network_transmit_bytes FROM job_metrics_points",
        );
        let job = query.bind(job);
        query.filter(format_args!("job_id = {job}"));
        if let Some(after) = after {
            let after = query.bind(after);
            query.filter(format_args!("timestamp_micro >= {after}"));
        }
        if let Some(before) = before {
            let before = query.bind(before);
            query.filter(format_args!("timestamp_micro < {before}"));
        }
        let limit = query.bind(limit);
        query.push(&format!(" ORDER BY timestamp_micro DESC LIMIT {limit}"));
        query.fetch_as(self.0, read_point).await
    }
}

fn read_point(row: &AnyRow) -> Result<MetricsPoint> {
    let list = |text: String| serde_json::from_str(&text).unwrap_or_default();
    Ok(MetricsPoint {
        at: read_column(row, 0, "job_metrics_points", "timestamp_micro")?,
        cpu_usage_micro: row.try_get(1)?,
        memory_usage_bytes: row.try_get(2)?,
        memory_working_set_bytes: row.try_get(3)?,
        gpus_memory_usage_bytes: list(row.try_get(4)?),
        gpus_util_percent: list(row.try_get(5)?),
        network_receive_bytes: row.try_get(6)?,
        network_transmit_bytes: row.try_get(7)?,
    })
}

impl Metrics<'_> {
    /// The latest point of each of these jobs that has one. The ids have to fit into one statement.
    pub async fn latest(self, jobs: &[JobId]) -> Result<HashMap<JobId, MetricsPoint>> {
        // One look into the index for each job, however many points it has.
        let mut query = Select::new(
            "SELECT p.timestamp_micro, p.cpu_usage_micro, p.memory_usage_bytes, p.memory_working_set_bytes, \
             p.gpus_memory_usage_bytes, p.gpus_util_percent, p.network_receive_bytes, p.network_transmit_bytes, p.job_id FROM jobs j JOIN job_metrics_points p \
             ON p.job_id = j.id AND p.timestamp_micro = \
             (SELECT MAX(m.timestamp_micro) FROM job_metrics_points m WHERE m.job_id = j.id)",
        );
        let list = query.bind_list(jobs.iter().copied());
        query.filter(format_args!("j.id IN {list}"));
        let point = |row: &AnyRow| {
            Ok((
                read_column(row, 8, "job_metrics_points", "job_id")?,
                read_point(row)?,
            ))
        };
        Ok(query.fetch_as(self.0, point).await?.into_iter().collect())
    }
}

/// Stores a point; one of the same time is known already.
pub async fn add(tx: &mut Tx, job: JobId, point: &MetricsPoint) -> Result<()> {
    let list = |values: &[i64]| serde_json::Value::from(values).to_string();
    sqlx::query(
        "INSERT INTO job_metrics_points (job_id, timestamp_micro, cpu_usage_micro, memory_usage_bytes, \
         memory_working_set_bytes, gpus_memory_usage_bytes, gpus_util_percent, network_receive_bytes, network_transmit_bytes) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING",
    )
    .bind(job.to_string())
    .bind(point.at.as_micros())
    .bind(point.cpu_usage_micro)
    .bind(point.memory_usage_bytes)
    .bind(point.memory_working_set_bytes)
    .bind(list(&point.gpus_memory_usage_bytes))
    .bind(list(&point.gpus_util_percent))
    .bind(point.network_receive_bytes)
    .bind(point.network_transmit_bytes)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// Whose points are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointsOf {
    /// Jobs that run.
    Running,
    /// Jobs that have ended.
    Finished,
}

impl Metrics<'_> {
    /// Finds such jobs that have points from before a time. It takes as long as there are jobs with points, however many points
    /// they have, and however many jobs have none any more.
    pub async fn jobs_with_points_before(self, of: PointsOf, before: Time) -> Result<Vec<JobId>> {
        // From one job to the next in the index of points.
        let mut query = Select::new(
            "WITH RECURSIVE measured(id) AS (SELECT MIN(job_id) FROM job_metrics_points UNION ALL \
             SELECT (SELECT MIN(n.job_id) FROM job_metrics_points n WHERE n.job_id > measured.id) FROM measured \
             WHERE measured.id IS NOT NULL) SELECT m.id FROM measured m JOIN jobs j ON j.id = m.id",
        );
        query.filter(match of {
            PointsOf::Running => "j.status = 'running'",
            PointsOf::Finished => "j.status IN ('terminated', 'aborted', 'failed', 'done')",
        });
        let before = query.bind(before);
        query.filter(format_args!(
            "EXISTS (SELECT 1 FROM job_metrics_points p WHERE p.job_id = m.id AND p.timestamp_micro < {before})"
        ));
        let rows = query.fetch(self.0).await?;
        let id = |row: &AnyRow| read_column(row, 0, "job_metrics_points", "job_id");
        rows.iter().map(id).collect()
    }
}

/// Deletes points of these jobs from before a time, at most `limit` of them; returns how many there were.
pub async fn delete_before(tx: &mut Tx, jobs: &[JobId], before: Time, limit: u32) -> Result<u64> {
    let limit = u64::from(limit);
    let mut count = 0;
    for job in jobs {
        let left = i64::try_from(limit.saturating_sub(count)).unwrap_or(i64::MAX);
        if left == 0 {
            break;
        }
        let done = sqlx::query(
            "DELETE FROM job_metrics_points WHERE job_id = $1 AND timestamp_micro IN \
             (SELECT p.timestamp_micro FROM job_metrics_points p WHERE p.job_id = $2 AND p.timestamp_micro < $3 \
             ORDER BY p.timestamp_micro LIMIT $4)",
        )
        .bind(job.to_raw())
        .bind(job.to_raw())
        .bind(before.as_micros())
        .bind(left)
        .execute(&mut *tx)
        .await?;
        count += done.rows_affected();
    }
    Ok(count)
}
