//! All tasks of this host: submitted, started, watched, ended, removed.
//!
//! Each task has a lock for operations (`op`), held during the start procedure, the end and the removal, and its data
//! under a short mutex. Whoever held `op` wakes the exit check afterwards: it skips busy tasks.

mod discard;
mod exits;
mod recover;
mod start;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_agent_api::shim::{StreamEvent, TaskConfig, TaskInfo, TaskList, TaskListItem, TaskTerminate};
use dstack_system::task;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failpoint::hit;
use crate::gpu::GpuLock;
use crate::hub::Hub;
use crate::keys::HostKeys;
use crate::runtime::{Runtime, RuntimeError};
use crate::store::{Record, Store};
use crate::task::Task;
use crate::volumes::{self, Disks};

/// From one look for the container engine to the next, while it does not answer; doubles up to the longest.
const FIRST_RESTORE_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_RESTORE_PAUSE: Duration = Duration::from_secs(5);

/// Why an order was not carried out; each has its HTTP status.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The order is not valid (400).
    #[error("{0}")]
    Invalid(&'static str),
    /// There is no such task (404).
    #[error("Not Found")]
    NotFound,
    /// The task exists already, or is in another state than the order needs (409).
    #[error("Conflict")]
    Conflict,
    /// 503: not now. The text says what is waited for.
    #[error("waiting for the container engine: {0}")]
    Unavailable(String),
    /// 500: the runtime.
    #[error("the task's container cannot be ended")]
    Runtime(#[from] RuntimeError),
    /// 500: the disk.
    #[error("the task cannot be recorded")]
    Io(#[from] std::io::Error),
}

/// What tasks need of the host.
pub struct Host {
    /// Runs the tasks' containers or processes.
    pub runtime: Arc<dyn Runtime>,
    /// Keeps the tasks' records and directories.
    pub store: Store,
    /// Hands out the GPUs of the host.
    pub gpus: GpuLock,
    /// Keeps the `authorized_keys` of the host's users.
    pub keys: HostKeys,
    /// Mounts network volumes.
    pub disks: Arc<dyn Disks>,
}

/// All tasks. Cheap to clone.
#[derive(Clone)]
pub struct Tasks {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Arc<dyn Runtime>,
    store: Store,
    gpus: Mutex<GpuLock>,
    keys: HostKeys,
    // One writer of authorized_keys at a time.
    keys_lock: Mutex<()>,
    disks: Arc<dyn Disks>,
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    hub: Hub,
    wake: Arc<Notify>,
    /// The tasks of the former process are in `entries`.
    restored: watch::Sender<bool>,
    /// Why they are not yet.
    obstacle: Mutex<String>,
}

struct Entry {
    op: Arc<tokio::sync::Mutex<()>>,
    /// Held while `task.json` is written, from before the task is read: the last write has the newest state.
    writing: tokio::sync::Mutex<()>,
    cancel: CancellationToken,
    task: Mutex<Task>,
}

impl Entry {
    fn new(task: Task) -> Arc<Self> {
        Arc::new(Self {
            op: Arc::default(),
            writing: tokio::sync::Mutex::default(),
            cancel: CancellationToken::new(),
            task: Mutex::new(task),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Task> {
        lock(&self.task)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tasks {
    /// Without any task yet: see [`Tasks::restore`].
    pub fn new(host: Host) -> Self {
        Self {
            inner: Arc::new(Inner {
                runtime: host.runtime,
                store: host.store,
                gpus: Mutex::new(host.gpus),
                keys: host.keys,
                keys_lock: Mutex::default(),
                disks: host.disks,
                entries: Mutex::default(),
                hub: Hub::default(),
                wake: Arc::default(),
                restored: watch::Sender::new(false),
                obstacle: Mutex::default(),
            }),
        }
    }

    /// Finds the tasks of the former process, and looks at their containers once. Until it has succeeded, orders are answered
    /// with [`OrderError::Unavailable`].
    pub async fn restore(&self) -> Result<(), RuntimeError> {
        if let Err(error) = recover::restore(&self.inner).await {
            *lock(&self.inner.obstacle) = crate::error::chain(&error);
            return Err(error);
        }
        let looked = exits::pass(&self.inner).await;
        self.inner.restored.send_replace(true);
        looked
    }

    /// The same for an engine that may not answer yet: tries again until it does.
    pub async fn restore_when_available(&self) {
        let mut pause = FIRST_RESTORE_PAUSE;
        while !*self.inner.restored.borrow() {
            if let Err(error) = self.restore().await {
                tracing::warn!(error = %crate::error::chain(&error), "waiting for the container engine");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_RESTORE_PAUSE);
            }
        }
    }

    /// Waits until the tasks of the former process are known.
    pub async fn restored(&self) {
        // The sender lives as long as this.
        let _ = self
            .inner
            .restored
            .subscribe()
            .wait_for(|restored| *restored)
            .await;
    }

    /// What is waited for before anything can be done, if something is.
    pub fn waits_for(&self) -> Option<String> {
        self.inner.available(true).err().map(|error| error.to_string())
    }

    /// Watches containers; runs for ever.
    pub async fn watch(&self) {
        let watching = self.inner.runtime.watch(self.inner.wake.clone());
        tokio::join!(watching, exits::run(&self.inner));
    }

    /// Accepts a task: durable before this returns, started in the background.
    pub async fn submit(&self, config: TaskConfig) -> Result<TaskInfo, OrderError> {
        check(&config)?;
        self.inner.available(true)?;
        let id = config.id.clone();
        let mut new = Task::new(config);
        new.starting = true;
        new.dir = Some(self.inner.store.dir(&new.container_name));
        let entry = Entry::new(new);
        let op = entry.op.clone().lock_owned().await;
        while let Some(known) = self.inner.insert(&id, &entry) {
            if known.lock().removed.is_none() {
                return Err(OrderError::Conflict);
            }
            // It would have the same container and directory.
            discard::discard(&self.inner, &known).await?;
        }
        if let Err(error) = self.inner.create_dir(&entry).await {
            lock(&self.inner.entries).remove(&id);
            // A full disk may have let half of it through.
            if let Some(dir) = &entry.lock().dir {
                self.inner.store.delete(dir);
            }
            return Err(error.into());
        }
        hit("submitted");
        let info = self.inner.publish(&entry);
        tracing::info!(
            task.id = id,
            task.name = entry.lock().config.name,
            "task submitted"
        );
        let inner = self.inner.clone();
        task::spawn("task start", async move { start::run(&inner, &entry, op).await });
        Ok(info)
    }

    /// Returns what is known of a task.
    pub fn get(&self, id: &str) -> Result<TaskInfo, OrderError> {
        Ok(self.inner.entry(id)?.lock().info())
    }

    /// Returns the ids and states of all tasks.
    pub fn list(&self) -> Result<TaskList, OrderError> {
        // Where nothing was recorded there is nothing to wait for: a server that ends wants to know whether it may end us.
        let is_restored = *self.inner.restored.borrow();
        if !is_restored && !self.inner.store.scan().is_empty() {
            self.inner.available(false)?;
        }
        let tasks = self
            .inner
            .known()
            .iter()
            .map(|entry| {
                let task = entry.lock();
                TaskListItem {
                    id: task.config.id.clone(),
                    status: task.status,
                }
            })
            .collect();
        Ok(TaskList {
            tasks,
            ids: Vec::new(),
        })
    }

    /// Ends a task. The order is recorded before anything is stopped; it may be repeated.
    pub async fn terminate(&self, id: &str, order: &TaskTerminate) -> Result<TaskInfo, OrderError> {
        let entry = self.inner.entry(id)?;
        // A start in flight sees the cancellation at its next step and gives back by itself what it took. Otherwise the
        // task is marked with `op` held: the exit check, which kills at once, must not come first.
        let op = if self.inner.mark_if_starting(&entry, order) {
            None
        } else {
            let op = entry.op.lock().await;
            self.inner.mark(&mut entry.lock(), order);
            Some(op)
        };
        entry.cancel.cancel();
        self.inner.save(&entry).await?;
        hit("terminating");
        if op.is_some() {
            self.inner
                .stop_and_release(&entry, Duration::from_secs(order.timeout.into()))
                .await?;
        }
        drop(op);
        tracing::info!(
            task.id = id,
            task.reason = order.termination_reason,
            "task terminated"
        );
        Ok(entry.lock().info())
    }

    /// Forgets a terminated task once nothing of it runs. What is left, its container and its directory, is deleted in the
    /// background: whoever waits for the end of the task need not wait for that. It is recorded first, so that a
    /// restarted agent goes on with it.
    pub async fn remove(&self, id: &str) -> Result<(), OrderError> {
        let entry = self.inner.entry(id)?;
        if !entry.lock().is_terminated() {
            return Err(OrderError::Conflict);
        }
        let op = entry.op.lock().await;
        self.inner.stop_and_release(&entry, Duration::ZERO).await?;
        // A second removal may have waited for this one.
        if entry.lock().removed.replace(Instant::now()).is_some() {
            return Err(OrderError::NotFound);
        }
        let recorded = self.inner.save(&entry).await;
        drop(op);
        if let Err(error) = recorded {
            // A full disk, say: then nothing may be left to do when this returns.
            tracing::warn!(task.id = id, %error, "cannot record that a task is removed");
            let discarded = discard::discard(&self.inner, &entry).await;
            discarded.inspect_err(|_| entry.lock().removed = None)?;
        }
        hit("removing");
        self.inner.hub.removed(id);
        tracing::info!(task.id = id, "task removed");
        self.inner.wake.notify_one();
        Ok(())
    }

    /// Deletes what is left of removed tasks now: for an agent that ends, and may never start again.
    pub async fn finish_removals(&self) {
        let entries = self.inner.all();
        if entries.iter().any(|entry| entry.lock().starting) {
            // A start that was begun must not go on beside the next agent, which begins it again.
            return;
        }
        for entry in entries {
            if entry.lock().removed.is_some()
                && let Err(error) = discard::discard(&self.inner, &entry).await
            {
                let id = entry.lock().config.id.clone();
                tracing::warn!(task.id = id, error = %crate::error::chain(&error), "a removed task leaves something behind");
            }
        }
    }

    /// Every task now, and all changes from now on.
    pub fn subscribe(&self) -> (Vec<TaskInfo>, broadcast::Receiver<StreamEvent>) {
        let changes = self.inner.hub.listen();
        let now = self
            .inner
            .known()
            .iter()
            .map(|entry| entry.lock().info())
            .collect();
        (now, changes)
    }
}

fn check(config: &TaskConfig) -> Result<(), OrderError> {
    for (value, message) in [
        (&config.id, "empty id"),
        (&config.name, "empty name"),
        (&config.image_name, "empty image_name"),
    ] {
        if value.is_empty() {
            return Err(OrderError::Invalid(message));
        }
    }
    // It becomes a variable, and is compared with a header's value.
    if !config
        .runner_token
        .expose()
        .bytes()
        .all(|byte| byte.is_ascii_graphic())
    {
        return Err(OrderError::Invalid(
            "runner_token has characters that no header can carry",
        ));
    }
    // It becomes a directory's name.
    if config.name.contains('/') || config.name.starts_with('.') {
        return Err(OrderError::Invalid("name cannot contain / or start with a dot"));
    }
    Ok(())
}

impl Inner {
    /// Whether the tasks of the former process are known, and, for `new` ones, whether the runtime can start any.
    fn available(&self, new: bool) -> Result<(), OrderError> {
        if !*self.restored.borrow() {
            return Err(OrderError::Unavailable(lock(&self.obstacle).clone()));
        }
        match self.runtime.unavailable().filter(|_| new) {
            Some(reason) => Err(OrderError::Unavailable(reason)),
            None => Ok(()),
        }
    }

    fn entry(&self, id: &str) -> Result<Arc<Entry>, OrderError> {
        self.available(false)?;
        let found = lock(&self.entries).get(id).cloned();
        found
            .filter(|entry| entry.lock().removed.is_none())
            .ok_or(OrderError::NotFound)
    }

    /// Adds a task, unless there is one of this id, which is returned.
    fn insert(&self, id: &str, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let mut entries = lock(&self.entries);
        let known = entries.get(id).cloned();
        if known.is_none() {
            entries.insert(id.to_owned(), entry.clone());
        }
        known
    }

    /// Those that are not removed.
    fn known(&self) -> Vec<Arc<Entry>> {
        let mut entries = self.all();
        entries.retain(|entry| entry.lock().removed.is_none());
        entries
    }

    fn all(&self) -> Vec<Arc<Entry>> {
        lock(&self.entries).values().cloned().collect()
    }

    fn mark(&self, task: &mut Task, order: &TaskTerminate) {
        task.terminate(&order.termination_reason, &order.termination_message);
        self.hub.changed(task.info());
    }

    /// Marks the task as terminated if its start procedure still runs; that one never begins again.
    fn mark_if_starting(&self, entry: &Entry, order: &TaskTerminate) -> bool {
        let mut task = entry.lock();
        if task.starting {
            self.mark(&mut task, order);
        }
        task.starting
    }

    fn publish(&self, entry: &Entry) -> TaskInfo {
        let task = entry.lock();
        let info = task.info();
        self.hub.changed(info.clone());
        info
    }

    async fn create_dir(&self, entry: &Entry) -> std::io::Result<()> {
        self.write(entry, true).await
    }

    /// Writes the task's record, `task.json`.
    async fn save(&self, entry: &Entry) -> std::io::Result<()> {
        self.write(entry, false).await
    }

    async fn write(&self, entry: &Entry, create: bool) -> std::io::Result<()> {
        let _writing = entry.writing.lock().await;
        let (dir, record) = {
            let task = entry.lock();
            (task.dir.clone(), Record::of(&task, self.runtime.name()))
        };
        let Some(dir) = dir else { return Ok(()) };
        let store = self.store.clone();
        let write = move || {
            if create {
                store.create(&dir, &record)
            } else {
                store.save(&dir, &record)
            }
        };
        task::blocking("write task.json", write)
            .await
            .map_err(std::io::Error::other)?
    }

    /// Stops the container if there is one, then gives everything back. `op` must be held.
    async fn stop_and_release(&self, entry: &Entry, timeout: Duration) -> Result<(), RuntimeError> {
        let container = {
            let task = entry.lock();
            if task.cleaned_up {
                return Ok(());
            }
            task.container_id.clone()
        };
        if !container.is_empty() {
            self.runtime.stop(&container, timeout).await?;
        }
        hit("stopped");
        self.release(entry).await;
        self.wake.notify_one();
        Ok(())
    }

    /// Gives GPUs, volumes and keys back, once. The container must have stopped.
    async fn release(&self, entry: &Entry) {
        let (id, network_volumes) = {
            let task = entry.lock();
            if task.cleaned_up {
                return;
            }
            (task.config.id.clone(), task.config.volumes.clone())
        };
        if let Err(error) = volumes::release(self.disks.as_ref(), &network_volumes).await {
            tracing::error!(task.id = id, error = %crate::error::chain(&error), "cannot unmount a volume");
        }
        {
            let mut task = entry.lock();
            let mut gpus = lock(&self.gpus);
            gpus.release(&task.gpus);
            task.cleaned_up = true;
        }
        self.reconcile_keys(entry).await;
        if let Err(error) = self.save(entry).await {
            tracing::error!(task.id = id, %error, "cannot record that the task is over");
        }
        hit("released");
        self.publish(entry);
    }

    async fn reconcile_keys(&self, entry: &Entry) {
        let user = entry.lock().config.host_ssh_user.clone();
        if let Err(error) = self.set_keys(&user) {
            tracing::error!(host.user = user, error = %crate::error::chain(&error), "cannot update authorized_keys");
        }
    }

    /// Makes a host user's keys those that the tasks alive need.
    fn set_keys(&self, user: &str) -> Result<(), crate::keys::KeysError> {
        if user.is_empty() {
            return Ok(());
        }
        let _writing = lock(&self.keys_lock);
        let mut wanted = Vec::new();
        for entry in self.all() {
            let task = entry.lock();
            if task.holds_resources() && task.config.host_ssh_user == user {
                wanted.extend(task.config.host_ssh_keys.iter().cloned());
            }
        }
        self.keys.reconcile(user, &wanted)
    }
}
