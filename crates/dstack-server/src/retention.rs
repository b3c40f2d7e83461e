//! Deletes what is kept for a while only: events, what jobs used, and how the GPUs of instances were. Once an hour.
//!
//! In batches, each a transaction of its own: whoever writes does not wait for all of it, and what was deleted stays deleted
//! when a later batch fails.

use std::sync::Arc;
use std::time::Duration;

use dstack_store::Result;
use dstack_store::queries::metrics::PointsOf;
use dstack_store::queries::{events, health, metrics};
use dstack_system::{observe, task, task_span};
use dstack_units::{JobId, Time};
use tokio_util::sync::CancellationToken;

use crate::settings::Settings;
use crate::state::{Data, Edge};

const EVERY: Duration = Duration::from_secs(3600);

/// Most rows of one transaction.
const BATCH: u32 = 5000;

/// Most jobs whose points one transaction deletes: one that runs has 360 of an hour.
const BATCH_JOBS: usize = 10;

/// Deletes at once what is too old, and again every hour.
pub(crate) fn start(data: &Arc<Data>, edge: &Arc<Edge>, stop: CancellationToken) {
    let (data, edge) = (Arc::clone(data), Arc::clone(edge));
    task::spawn("delete what is old", async move {
        loop {
            let span = task_span!("scheduled_tasks.delete_events");
            tokio::select! {
                () = stop.cancelled() => return,
                done = observe::task(span, forget(&data, &edge.settings)) => if let Err(error) = done {
                    tracing::warn!(%error, "old events, metrics and health checks cannot all be deleted: the rest is tried again in an hour");
                },
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    });
}

/// Deletes what is too old now.
///
/// # Errors
/// The first one. What was deleted before it stays deleted, and the other kinds are deleted all the same.
pub async fn forget(data: &Data, settings: &Settings) -> Result<()> {
    let now = data.clock.now();
    let before = |seconds: i64| now - Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let done = [
        delete_events(data, before(settings.events_ttl)).await,
        delete_metrics(data, PointsOf::Running, before(settings.metrics_running_ttl)).await,
        delete_metrics(data, PointsOf::Finished, before(settings.metrics_finished_ttl)).await,
        delete_health_checks(data, before(settings.health_ttl)).await,
    ];
    done.into_iter().collect()
}

async fn delete_events(data: &Data, before: Time) -> Result<()> {
    loop {
        let batch = data
            .database
            .write(move |tx| Box::pin(async move { events::delete_before(tx, before, BATCH).await }));
        if batch.await? < u64::from(BATCH) {
            return Ok(());
        }
    }
}

async fn delete_metrics(data: &Data, of: PointsOf, before: Time) -> Result<()> {
    let jobs = data
        .database
        .metrics()
        .jobs_with_points_before(of, before)
        .await?;
    let mut first = Ok(());
    for batch in jobs.chunks(BATCH_JOBS) {
        let done = match delete_points(data, batch, before).await {
            // The others of the batch are not kept because of one.
            Err(error) if error.unavailable().is_none() => one_by_one(data, batch, before).await,
            done => done,
        };
        match done {
            // So are all others: each would wait for as long.
            Err(error) if error.unavailable().is_some() => return Err(error),
            done => first = first.and(done),
        }
    }
    first
}

/// The first error, after all were tried.
async fn one_by_one(data: &Data, jobs: &[JobId], before: Time) -> Result<()> {
    let mut first = Ok(());
    for job in jobs.chunks(1) {
        first = first.and(delete_points(data, job, before).await);
    }
    first
}

async fn delete_points(data: &Data, jobs: &[JobId], before: Time) -> Result<()> {
    loop {
        let jobs = jobs.to_vec();
        let batch = data
            .database
            .write(move |tx| Box::pin(async move { metrics::delete_before(tx, &jobs, before, BATCH).await }));
        if batch.await? < u64::from(BATCH) {
            return Ok(());
        }
    }
}

async fn delete_health_checks(data: &Data, before: Time) -> Result<()> {
    loop {
        let batch = data
            .database
            .write(move |tx| Box::pin(async move { health::delete_before(tx, before, BATCH).await }));
        if batch.await? < u64::from(BATCH) {
            return Ok(());
        }
    }
}
