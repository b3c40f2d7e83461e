//! Noticing that containers ended: woken by the runtime, with a slow look around in case an event was lost.

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::shim::{TaskStatus, reason};

use super::start::LAST_LINES;
use super::{Entry, Inner};
use crate::error::chain;
use crate::runtime::{ContainerState, RuntimeError};

const SWEEP: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(1);

/// Runs for ever.
pub(super) async fn run(inner: &Arc<Inner>) {
    // Tasks that a former process removed and did not get to the end with.
    let mut wait = super::discard::due(inner).unwrap_or(SWEEP);
    loop {
        // Waking and waiting are the same here: either way one look at everything follows.
        let _ = tokio::time::timeout(wait, inner.wake.notified()).await;
        wait = match pass(inner).await {
            Ok(()) => super::discard::due(inner).unwrap_or(SWEEP).min(SWEEP),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot look at the containers");
                RETRY
            }
        };
    }
}

/// Looks at every task that runs, or is over but still holds something.
pub(super) async fn pass(inner: &Arc<Inner>) -> Result<(), RuntimeError> {
    let mut result = Ok(());
    for entry in inner.all() {
        if !concerned(&entry) {
            continue;
        }
        let looked = look(inner, &entry).await;
        result = result.and(looked);
    }
    result
}

fn concerned(entry: &Entry) -> bool {
    let task = entry.lock();
    let over = task.is_terminated() && !task.cleaned_up;
    !task.starting && (task.status == TaskStatus::Running || over)
}

async fn look(inner: &Inner, entry: &Entry) -> Result<(), RuntimeError> {
    let (id, container, over) = {
        let task = entry.lock();
        (
            task.config.id.clone(),
            task.container_id.clone(),
            task.is_terminated(),
        )
    };
    // Asked without holding the task: while a container ends, the engine answers only when it has taken down its network,
    // and an order to end the task must not wait for that.
    let end = match over {
        true => None,
        false => match how_it_ended(inner, &container).await? {
            Some(end) => Some(end),
            None => return Ok(()),
        },
    };
    // Busy: whoever is at it wakes us afterwards.
    let Ok(_op) = entry.op.try_lock() else {
        return Ok(());
    };
    if !concerned(entry) {
        return Ok(());
    }
    let Some((reason, message)) = end.filter(|_| !entry.lock().is_terminated()) else {
        return inner.stop_and_release(entry, Duration::ZERO).await;
    };
    crate::failpoint::hit("exited");
    tracing::info!(task.id = id, task.reason = reason, "task ended");
    {
        let mut task = entry.lock();
        task.terminate(reason, &message);
        inner.hub.changed(task.info());
    }
    if let Err(error) = inner.save(entry).await {
        tracing::error!(task.id = id, %error, "cannot record the end of a task");
    }
    inner.stop_and_release(entry, Duration::ZERO).await
}

/// Reason and message; `None` while it runs.
async fn how_it_ended(
    inner: &Inner,
    container: &str,
) -> Result<Option<(&'static str, String)>, RuntimeError> {
    // Each one is asked for by itself: the engine's list may still say "running" when it announces the end.
    let state = inner.runtime.inspect(container).await?.map(|found| found.state);
    Ok(Some(match state {
        Some(ContainerState::Running) => return Ok(None),
        None => (reason::EXECUTOR_ERROR, "container not found".to_owned()),
        Some(ContainerState::Created) => (reason::EXECUTOR_ERROR, "container was not started".to_owned()),
        Some(ContainerState::Exited(0)) => (reason::DONE_BY_RUNNER, String::new()),
        Some(ContainerState::Exited(_)) => {
            let lines = inner.runtime.last_lines(container, LAST_LINES).await;
            (reason::CONTAINER_EXITED_WITH_ERROR, lines.join("\n"))
        }
    }))
}
