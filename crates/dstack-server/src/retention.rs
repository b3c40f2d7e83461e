//! Deletes what is kept for a while only: events, what jobs used, and how the GPUs of instances were. Once an hour.

use std::sync::Arc;
use std::time::Duration;

use dstack_store::directory::{events, health, metrics};
use dstack_system::{observe, task, task_span};
use tokio_util::sync::CancellationToken;

use crate::state::AppState;

const EVERY: Duration = Duration::from_secs(3600);

/// Deletes at once what is too old, and again every hour.
pub(crate) fn start(state: &Arc<AppState>, stop: CancellationToken) {
    let state = Arc::clone(state);
    task::spawn("forget what is old", async move {
        loop {
            let span = task_span!("scheduled_tasks.delete_events");
            if let Err(error) = observe::task(span, forget(&state)).await {
                tracing::warn!(%error, "old events, metrics and health checks cannot be deleted");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    });
}

/// Deletes what is too old now.
pub async fn forget(state: &AppState) -> dstack_store::Result<()> {
    let (now, settings) = (state.clock.now(), &state.settings);
    let before = |seconds: i64| now - Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let (running, finished) = (
        before(settings.metrics_running_ttl),
        before(settings.metrics_finished_ttl),
    );
    let old_events = before(settings.events_ttl);
    let old_checks = before(settings.health_ttl);
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                events::delete_before(tx, old_events).await?;
                metrics::delete_before(tx, running, finished).await?;
                health::delete_before(tx, old_checks).await?;
                Ok(())
            })
        })
        .await
}
