//! Finding the tasks of a former process of the agent, of ours or of dstack 0.22.5's.
//!
//! A task is never given to another runtime than the one that had it: what ran in a container, or was to, would run once more as
//! a process of the host.
//!
//! What dstack 0.22.5 does: a container makes a running task (or a terminated one, when a reason is recorded), a task
//! directory without a container is cleaned up and deleted. Ours goes further: a task whose start was interrupted is
//! started again, and one that failed to start is kept until the server has seen why and removes it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dstack_agent_api::shim::{TaskConfig, TaskStatus, Volume};
use dstack_system::task;
use tokio::time::Instant;

use super::{Entry, Inner, lock, start};
use crate::runtime::process::PROCESS;
use crate::runtime::{Container, ContainerState, RuntimeError};
use crate::store::Record;
use crate::task::Task;

/// Restores all tasks; starts go on in the background. After an error nothing is restored: it may be called again.
pub(super) async fn restore(inner: &Arc<Inner>) -> Result<(), RuntimeError> {
    let mut containers = Vec::new();
    for listed in inner.runtime.list().await? {
        containers.extend(inner.runtime.inspect(&listed.id).await?);
    }
    let mut records: HashMap<String, (PathBuf, Record)> = inner
        .store
        .scan()
        .into_iter()
        .filter(|(dir, record)| is_ours(inner.runtime.name(), dir, record))
        .map(|(dir, record)| (record.id.clone(), (dir, record)))
        .collect();
    // First those with a container: they hold GPUs.
    for container in containers {
        let record = records.remove(&container.task_id);
        with_container(inner, container, record);
    }
    for (dir, record) in records.into_values() {
        without_container(inner, dir, record).await;
    }
    for user in users(inner) {
        if let Err(error) = inner.set_keys(&user) {
            tracing::error!(host.user = user, error = %crate::error::chain(&error), "cannot update authorized_keys");
        }
    }
    Ok(())
}

/// Whether this runtime may run the task. Of a record that does not say, it is known only that it is not that of a process:
/// see [`Record::runtime`].
fn is_ours(runtime: &str, dir: &Path, record: &Record) -> bool {
    let ours = record.runtime == runtime || (record.runtime.is_empty() && runtime != PROCESS);
    if !ours {
        tracing::warn!(
            task.id = record.id,
            task.runtime = record.runtime,
            dir = %dir.display(),
            runtime,
            "a task of another runtime is left alone"
        );
    }
    ours
}

fn users(inner: &Inner) -> std::collections::BTreeSet<String> {
    inner
        .all()
        .iter()
        .map(|entry| entry.lock().config.host_ssh_user.clone())
        .filter(|user| !user.is_empty())
        .collect()
}

fn with_container(inner: &Arc<Inner>, container: Container, record: Option<(PathBuf, Record)>) {
    let known = record.is_some();
    let mut task = match record {
        Some((dir, record)) => from_record(dir, record),
        None => unrecorded(inner, &container),
    };
    // Never started, and we know how: start it once more instead of giving up.
    if known && container.state == ContainerState::Created && !task.is_terminated() {
        return resume(inner, task);
    }
    if !task.is_terminated() {
        task.status = TaskStatus::Running;
    }
    task.container_id = container.id;
    task.container_name = container.name;
    task.ports = container.ports;
    if !task.cleaned_up {
        task.gpus = lock(&inner.gpus).claim(&container.gpus);
    }
    let waits_for_ports = task.status == TaskStatus::Running && task.ports.is_none();
    task.starting = waits_for_ports;
    let id = task.config.id.clone();
    tracing::info!(task.id = id, task.status = %task.status, "task restored");
    let entry = Entry::new(task);
    lock(&inner.entries).insert(id, entry.clone());
    if waits_for_ports && let Ok(op) = entry.op.clone().try_lock_owned() {
        let inner = inner.clone();
        task::spawn(
            "task adoption",
            async move { start::adopt(&inner, &entry, op).await },
        );
    }
}

async fn without_container(inner: &Arc<Inner>, dir: PathBuf, record: Record) {
    let needs_credentials = record.registry_auth && !inner.runtime.has_image(&record.config).await;
    let task = from_record(dir.clone(), record);
    let id = task.config.id.clone();
    if task.is_terminated() {
        // The exit check releases what it still holds.
        lock(&inner.entries).insert(id, Entry::new(task));
    } else if needs_credentials {
        // They are not kept on disk: the server finds the task gone and decides.
        tracing::warn!(
            task.id = id,
            "the start was interrupted before the image was there: task dropped"
        );
        inner.release(&Entry::new(task)).await;
        inner.store.delete(&dir);
    } else {
        resume(inner, task);
    }
}

/// Runs the start procedure again from its beginning; every step of it may be repeated.
fn resume(inner: &Arc<Inner>, mut task: Task) {
    let id = task.config.id.clone();
    tracing::info!(task.id = id, "the start was interrupted: starting again");
    task.starting = true;
    let entry = Entry::new(task);
    lock(&inner.entries).insert(id, entry.clone());
    if let Ok(op) = entry.op.clone().try_lock_owned() {
        let inner = inner.clone();
        task::spawn("task start", async move { start::run(&inner, &entry, op).await });
    }
}

fn from_record(dir: PathBuf, record: Record) -> Task {
    let terminated = record.is_terminated();
    let mut task = Task::new(TaskConfig {
        id: record.id,
        ..record.config
    });
    if let Some(name) = dir.file_name() {
        task.container_name = name.to_string_lossy().into_owned();
    }
    task.dir = Some(dir);
    task.cleaned_up = record.cleaned_up;
    task.removed = record.removed.then(Instant::now);
    if terminated {
        task.terminate(&record.termination_reason, &record.termination_message);
    }
    task
}

/// A container of an old agent that kept no record: what it is made of tells its volumes.
fn unrecorded(inner: &Inner, container: &Container) -> Task {
    let volumes = container
        .volumes
        .iter()
        .map(|name| Volume {
            name: name.clone(),
            ..Volume::default()
        })
        .collect();
    let dir = inner.store.dir(&container.name);
    Task {
        config: TaskConfig {
            id: container.task_id.clone(),
            volumes,
            ..TaskConfig::default()
        },
        dir: dir.is_dir().then_some(dir),
        ..Task::default()
    }
}
