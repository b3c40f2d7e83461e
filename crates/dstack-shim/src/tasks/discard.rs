//! Deleting what is left of removed tasks: containers, which take the engine a while, and directories.

use std::sync::Arc;
use std::time::Duration;

use dstack_system::task;
use tokio::time::Instant;

use super::{Entry, Inner, lock};
use crate::error::chain;
use crate::failpoint::hit;
use crate::runtime::RuntimeError;

/// The next task often comes right after the last, and the engine does one thing at a time: the new one goes first.
const LINGER: Duration = Duration::from_secs(1);
/// But it is not waited for longer than this.
const LONGEST_LINGER: Duration = Duration::from_secs(30);
/// From a failure to the next try.
const RETRY: Duration = Duration::from_secs(5);

/// Begins to delete, in the background, what it is time for; returns when to look again. The end of a start wakes the
/// caller.
pub(super) fn due(inner: &Arc<Inner>) -> Option<Duration> {
    let entries = inner.all();
    let starting = entries.iter().any(|entry| entry.lock().starting);
    let mut next: Option<Duration> = None;
    let linger = match starting {
        true => LONGEST_LINGER,
        false => LINGER,
    };
    for entry in entries {
        let at = {
            let task = entry.lock();
            let Some(removed) = task.removed else {
                continue;
            };
            task.retry_removal_at.unwrap_or(removed + linger)
        };
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            begin(inner, entry);
        } else {
            next = Some(next.map_or(left, |next| next.min(left)));
        }
    }
    next
}

fn begin(inner: &Arc<Inner>, entry: Arc<Entry>) {
    if entry.op.try_lock().is_err() {
        // It is being deleted.
        return;
    }
    let inner = inner.clone();
    task::spawn("task removal", async move {
        if let Err(error) = discard(&inner, &entry).await {
            let id = entry.lock().config.id.clone();
            tracing::warn!(task.id = id, error = %chain(&error), "cannot delete a removed task yet");
            entry.lock().retry_removal_at = Some(Instant::now() + RETRY);
            inner.wake.notify_one();
        }
    });
}

/// Deletes container and directory, if nobody did yet; then the id is free again.
pub(super) async fn discard(inner: &Inner, entry: &Arc<Entry>) -> Result<(), RuntimeError> {
    let _op = entry.op.lock().await;
    let (id, container, dir) = {
        let task = entry.lock();
        let container = match task.container_id.is_empty() {
            true => &task.container_name,
            false => &task.container_id,
        };
        (task.config.id.clone(), container.clone(), task.dir.clone())
    };
    let is_left = |entries: &std::collections::HashMap<String, Arc<Entry>>| {
        entries.get(&id).is_some_and(|known| Arc::ptr_eq(known, entry))
    };
    if !is_left(&lock(&inner.entries)) {
        return Ok(());
    }
    inner.runtime.remove(&container).await?;
    hit("discarding");
    if let Some(dir) = dir {
        let store = inner.store.clone();
        let _ = task::blocking("delete task directory", move || store.delete(&dir)).await;
    }
    lock(&inner.entries).remove(&id);
    tracing::debug!(task.id = id, "container and directory of a task deleted");
    Ok(())
}
