//! The start procedure of one task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dstack_agent_api::shim::{ImagePullProgress, TaskStatus, reason};
use dstack_system::task;
use tokio::sync::OwnedMutexGuard;

use super::{Entry, Inner, lock};
use crate::error::chain;
use crate::failpoint::hit;
use crate::runtime::{RuntimeError, Spec};
use crate::task::Task;
use crate::volumes;

/// Changes of the pull's progress are told at most so often.
const PROGRESS_STEP: Duration = Duration::from_secs(1);
/// As many of the container's last lines go into the message.
pub(super) const LAST_LINES: usize = 5;

/// Why the task did not start.
enum Stop {
    /// Somebody terminated it meanwhile.
    Cancelled,
    /// The start failed.
    Failed { reason: &'static str, message: String },
}

fn failed(reason: &'static str, message: impl Into<String>) -> Stop {
    Stop::Failed {
        reason,
        message: with_remedy(message.into()),
    }
}

/// What engines and the system say of a full disk, with what to do about it.
fn with_remedy(message: String) -> String {
    if !message.to_ascii_lowercase().contains("no space left on device") {
        return message;
    }
    format!(
        "{message}. A disk of the host is full: make room on it (`docker system df` shows what containers and images take, \
         `docker system prune` removes what nothing uses), and submit again"
    )
}

/// Brings the task to `running`, or ends it and gives back what it took. `op` is the task's operation lock.
pub(super) async fn run(inner: &Arc<Inner>, entry: &Arc<Entry>, op: OwnedMutexGuard<()>) {
    let id = entry.lock().config.id.clone();
    match procedure(inner, entry).await {
        Ok(()) => tracing::info!(task.id = id, "task runs"),
        Err(stop) => {
            match stop {
                Stop::Cancelled => tracing::info!(task.id = id, "task was terminated while it started"),
                Stop::Failed { reason, message } => {
                    tracing::error!(
                        task.id = id,
                        task.reason = reason,
                        error = message,
                        "task did not start"
                    );
                    let mut task = entry.lock();
                    task.terminate(reason, &message);
                    inner.hub.changed(task.info());
                }
            }
            give_back(inner, entry, &id).await;
        }
    }
    entry.lock().starting = false;
    drop(op);
    inner.wake.notify_one();
}

async fn give_back(inner: &Inner, entry: &Entry, id: &str) {
    // Recorded before the container is stopped: a restarted agent goes on from here.
    if let Err(error) = inner.save(entry).await {
        tracing::error!(task.id = id, %error, "cannot record the end of a task");
    }
    if let Err(error) = inner.stop_and_release(entry, Duration::ZERO).await {
        // The exit check tries again.
        tracing::error!(task.id = id, error = %chain(&error), "cannot stop a task that did not start");
    }
}

async fn procedure(inner: &Inner, entry: &Entry) -> Result<(), Stop> {
    advance(inner, entry, TaskStatus::Preparing, |_| ())?;
    hit("preparing");
    prepare(inner, entry).await?;
    hit("prepared");
    advance(inner, entry, TaskStatus::Pulling, |_| ())?;
    hit("pulling");
    pull(inner, entry).await?;
    advance(inner, entry, TaskStatus::Creating, |_| ())?;
    hit("pulled");
    let container = create_and_start(inner, entry).await?;
    tracing::debug!(task.id = entry.lock().config.id, "container started");
    hit("started");
    finish(inner, entry, &container).await
}

/// Waits for the ports and says that the task runs.
pub(super) async fn adopt(inner: &Arc<Inner>, entry: &Arc<Entry>, op: OwnedMutexGuard<()>) {
    let container = entry.lock().container_id.clone();
    let ports = tokio::select! {
        ports = inner.runtime.ports(&container) => ports.ok(),
        () = entry.cancel.cancelled() => None,
    };
    let over = {
        let mut task = entry.lock();
        task.starting = false;
        task.ports = task.ports.take().or(ports);
        inner.hub.changed(task.info());
        task.is_terminated()
    };
    if over {
        let id = entry.lock().config.id.clone();
        give_back(inner, entry, &id).await;
    }
    drop(op);
    inner.wake.notify_one();
}

async fn finish(inner: &Inner, entry: &Entry, container: &str) -> Result<(), Stop> {
    let ports = tokio::select! {
        ports = inner.runtime.ports(container) => ports,
        () = entry.cancel.cancelled() => return Err(Stop::Cancelled),
    };
    let ports = ports.map_err(|error| failed(reason::CONTAINER_EXITED_WITH_ERROR, chain(&error)))?;
    advance(inner, entry, TaskStatus::Running, |task| {
        task.ports = Some(ports);
        // From here on an order to end it stops the container by itself.
        task.starting = false;
    })
}

/// Moves on unless the task was terminated meanwhile.
fn advance(inner: &Inner, entry: &Entry, to: TaskStatus, change: impl FnOnce(&mut Task)) -> Result<(), Stop> {
    let mut task = entry.lock();
    if task.is_terminated() {
        return Err(Stop::Cancelled);
    }
    task.advance(to)
        .map_err(|error| failed(reason::EXECUTOR_ERROR, error.to_string()))?;
    change(&mut task);
    inner.hub.changed(task.info());
    Ok(())
}

async fn prepare(inner: &Inner, entry: &Entry) -> Result<(), Stop> {
    let executor = |message: String| failed(reason::EXECUTOR_ERROR, message);
    let (user, network_volumes, config) = {
        let mut task = entry.lock();
        let taken = lock(&inner.gpus)
            .acquire(task.config.gpu)
            .map_err(|error| executor(error.to_string()))?;
        task.gpus = taken;
        let config = &task.config;
        (
            config.host_ssh_user.clone(),
            config.volumes.clone(),
            config.clone(),
        )
    };
    inner.set_keys(&user).map_err(|error| executor(chain(&error)))?;
    volumes::prepare(inner.disks.as_ref(), &network_volumes)
        .await
        .map_err(|error| executor(format!("prepareVolumes error: {}", chain(&error))))?;
    if inner.runtime.name() == "docker" {
        task::blocking("instance mounts", move || {
            volumes::check_protected(&config)?;
            volumes::prepare_instance_mounts(&config.instance_mounts)
        })
        .await
        .map_err(|error| executor(error.to_string()))?
        .map_err(|error| executor(format!("prepareInstanceMountPoints error: {error}")))?;
    }
    Ok(())
}

async fn pull(inner: &Inner, entry: &Entry) -> Result<(), Stop> {
    let (config, dir) = {
        let task = entry.lock();
        (task.config.clone(), task.dir.clone().unwrap_or_default())
    };
    let log = dir.join("pull.log");
    let started = tokio::time::Instant::now();
    let told = AtomicU64::new(0);
    let progress = |progress: ImagePullProgress| {
        let mut task = entry.lock();
        let first = task.progress.replace(progress).is_none();
        let now = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let step = u64::try_from(PROGRESS_STEP.as_millis()).unwrap_or(u64::MAX);
        if first || now.saturating_sub(told.load(Ordering::Relaxed)) >= step {
            told.store(now, Ordering::Relaxed);
            inner.hub.changed(task.info());
        }
    };
    tokio::select! {
        pulled = inner.runtime.pull(&config, &log, &progress) => pulled
            .map_err(|error| failed(reason::CREATING_CONTAINER_ERROR, format!("pullImage error: {}", chain(&error)))),
        () = entry.cancel.cancelled() => Err(Stop::Cancelled),
    }
}

async fn create_and_start(inner: &Inner, entry: &Entry) -> Result<String, Stop> {
    let container = create(inner, entry, true).await?;
    let Err(error) = inner.runtime.start(&container).await else {
        return Ok(container);
    };
    let retry = inner.runtime.is_display_failure(&error) && entry.lock().config.gpu_devices.is_empty();
    if !retry {
        return Err(not_started(inner, &container, &error).await);
    }
    tracing::warn!(error = %chain(&error), "starting again without the display capability");
    let _ = inner.runtime.remove(&container).await;
    let container = create(inner, entry, false).await?;
    match inner.runtime.start(&container).await {
        Ok(()) => Ok(container),
        Err(error) => Err(not_started(inner, &container, &error).await),
    }
}

async fn create(inner: &Inner, entry: &Entry, display: bool) -> Result<String, Stop> {
    let (config, name, dir, gpus) = {
        let task = entry.lock();
        if task.is_terminated() {
            return Err(Stop::Cancelled);
        }
        (
            task.config.clone(),
            task.container_name.clone(),
            task.dir.clone().unwrap_or_default(),
            task.gpus.clone(),
        )
    };
    let spec = Spec {
        config: &config,
        name: &name,
        dir: &dir,
        gpus: &gpus,
        display,
    };
    let id = inner.runtime.create(&spec).await.map_err(|error| {
        failed(
            reason::CREATING_CONTAINER_ERROR,
            format!("createContainer error: {}", chain(&error)),
        )
    })?;
    hit("created");
    entry.lock().container_id.clone_from(&id);
    tracing::debug!(task.id = config.id, container.id = id, "container created");
    inner.publish(entry);
    Ok(id)
}

/// The container's last words; the engine's when it said nothing.
async fn not_started(inner: &Inner, container: &str, error: &RuntimeError) -> Stop {
    let lines = inner.runtime.last_lines(container, LAST_LINES).await.join("\n");
    let message = if lines.trim().is_empty() {
        chain(error)
    } else {
        lines
    };
    failed(reason::CONTAINER_EXITED_WITH_ERROR, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_with_its_remedy() {
        let said = |message: &str| match failed(reason::CREATING_CONTAINER_ERROR, message) {
            Stop::Failed { message, .. } => message,
            Stop::Cancelled => String::new(),
        };
        let full = said("createContainer error: write /var/lib/docker/x: no space left on device");
        assert!(
            full.starts_with("createContainer error: ") && full.contains("make room on it"),
            "{full}"
        );
        assert_eq!(said("no such image"), "no such image");
    }
}
