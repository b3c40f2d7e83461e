//! Agents of many hosts. Each host wakes only those who follow it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::runner::{
    JobInfo, JobState, JobStateEvent, JobStatus, Metrics, RunnerState, SubmitBody,
};
use dstack_agent_api::shim::{InstanceHealth, StreamEvent, TaskConfig, TaskInfo, TaskStatus, TaskTerminate};
use dstack_agent_api::stream::{End, StreamLine, Tick};
use dstack_engine::{AgentError, Agents, EventSource, Runner, Shim, TaskSource};
use dstack_store::rows::AgentAddress;
use dstack_system::clock::SharedClock;
use dstack_system::{Locked, Secret};
use dstack_units::JobId;
use tokio::sync::Notify;

/// How often an agent says that it lives, as ours do.
const TICK: Duration = Duration::from_secs(5);

/// Hosts by their addresses; each comes into being when it is first asked for.
#[derive(Debug)]
pub(crate) struct ManyHosts {
    hosts: Locked<HashMap<String, Arc<Host>>>,
    clock: SharedClock,
}

impl ManyHosts {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self {
            hosts: Locked::default(),
            clock,
        }
    }

    fn at(&self, address: &AgentAddress) -> Arc<Host> {
        let name = match address {
            AgentAddress::Local { host, .. } => host,
            AgentAddress::Ssh { reach, .. } | AgentAddress::Container { reach, .. } => &reach.host.host,
        };
        let mut hosts = self.hosts.lock();
        let host = hosts.entry(name.clone()).or_insert_with(|| {
            Arc::new(Host {
                tasks: Locked::default(),
                changed: Notify::new(),
                clock: Arc::clone(&self.clock),
            })
        });
        Arc::clone(host)
    }
}

impl Agents for ManyHosts {
    fn shim(&self, address: &AgentAddress, _: Option<Secret>) -> Arc<dyn Shim> {
        Arc::new(HostShim(self.at(address)))
    }

    fn runner(&self, address: &AgentAddress, job: JobId, _: u16, _: Secret) -> Arc<dyn Runner> {
        Arc::new(HostRunner {
            host: self.at(address),
            id: job.to_string(),
        })
    }
}

#[derive(Debug)]
struct Host {
    tasks: Locked<BTreeMap<String, Task>>,
    changed: Notify,
    clock: SharedClock,
}

#[derive(Debug)]
struct Task {
    info: TaskInfo,
    runner: RunnerState,
    events: Vec<JobStateEvent>,
}

fn refused(status: u16, message: &str) -> AgentError {
    AgentError::Refused {
        status,
        message: message.to_owned(),
    }
}

impl Host {
    fn change<T>(
        &self,
        id: &str,
        change: impl FnOnce(&mut Task) -> Result<T, AgentError>,
    ) -> Result<T, AgentError> {
        let mut tasks = self.tasks.lock();
        let task = tasks.get_mut(id).ok_or_else(|| refused(404, "not found"))?;
        let changed = change(task);
        drop(tasks);
        self.changed.notify_waiters();
        changed
    }

    /// What `find` finds, now or as soon as something changes here; `None`: nothing did for a while.
    async fn wait<T>(&self, mut find: impl FnMut(&BTreeMap<String, Task>) -> Option<T>) -> Option<T> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = find(&self.tasks.lock()) {
                return Some(found);
            }
            tokio::time::timeout(TICK, changed).await.ok()?;
        }
    }

    fn now(&self) -> i64 {
        self.clock.now().as_millis()
    }
}

#[derive(Debug)]
struct HostShim(Arc<Host>);

#[async_trait]
impl Shim for HostShim {
    async fn submit(&self, config: &TaskConfig) -> Result<(), AgentError> {
        let mut tasks = self.0.tasks.lock();
        if tasks.contains_key(&config.id) {
            return Err(refused(409, "already submitted"));
        }
        let info = TaskInfo {
            id: config.id.clone(),
            status: TaskStatus::Running,
            ports: Some(Vec::new()),
            container_name: config.name.clone(),
            ..TaskInfo::default()
        };
        let task = Task {
            info,
            runner: RunnerState::WaitSubmit,
            events: Vec::new(),
        };
        tasks.insert(config.id.clone(), task);
        drop(tasks);
        self.0.changed.notify_waiters();
        Ok(())
    }

    async fn terminate(&self, id: &str, order: &TaskTerminate) -> Result<(), AgentError> {
        self.0.change(id, |task| {
            task.info.status = TaskStatus::Terminated;
            task.info.termination_reason.clone_from(&order.termination_reason);
            Ok(())
        })
    }

    async fn remove(&self, id: &str) -> Result<(), AgentError> {
        self.0.tasks.lock().remove(id);
        self.0.changed.notify_waiters();
        Ok(())
    }

    async fn watch(&self) -> Result<Box<dyn TaskSource>, AgentError> {
        Ok(Box::new(Tasks {
            host: Arc::clone(&self.0),
            told: BTreeMap::new(),
            is_synced: false,
        }))
    }

    async fn answers_within(&self, _: Duration) -> Result<(), AgentError> {
        Ok(())
    }

    async fn health(&self) -> Result<InstanceHealth, AgentError> {
        Ok(InstanceHealth::default())
    }
}

struct Tasks {
    host: Arc<Host>,
    told: BTreeMap<String, TaskInfo>,
    is_synced: bool,
}

impl Tasks {
    fn next_change(&mut self, tasks: &BTreeMap<String, Task>) -> Option<StreamEvent> {
        let changed = tasks
            .values()
            .find(|task| self.told.get(&task.info.id) != Some(&task.info));
        if let Some(task) = changed {
            self.told.insert(task.info.id.clone(), task.info.clone());
            return Some(StreamEvent::Task(task.info.clone()));
        }
        if !self.is_synced {
            self.is_synced = true;
            return Some(StreamEvent::Synced);
        }
        let gone = self.told.keys().find(|id| !tasks.contains_key(*id)).cloned()?;
        self.told.remove(&gone);
        Some(StreamEvent::Removed { id: gone })
    }
}

#[async_trait]
impl TaskSource for Tasks {
    async fn next(&mut self) -> Result<Option<StreamEvent>, AgentError> {
        let host = Arc::clone(&self.host);
        let next = host.wait(|tasks| self.next_change(tasks)).await;
        Ok(Some(next.unwrap_or(StreamEvent::Tick)))
    }
}

#[derive(Debug)]
struct HostRunner {
    host: Arc<Host>,
    id: String,
}

impl HostRunner {
    fn change<T>(&self, change: impl FnOnce(&mut Task) -> Result<T, AgentError>) -> Result<T, AgentError> {
        self.host.change(&self.id, change)
    }

    /// The job is so from now on.
    fn becomes(&self, state: JobState) -> Result<(), AgentError> {
        let now = self.host.now();
        self.change(|task| {
            // Times of events grow.
            let timestamp = task.events.last().map_or(now, |last| now.max(last.timestamp + 1));
            task.events.push(JobStateEvent {
                timestamp,
                state,
                ..JobStateEvent::default()
            });
            Ok(())
        })
    }
}

#[async_trait]
impl Runner for HostRunner {
    async fn healthcheck(&self) -> Result<(), AgentError> {
        self.change(|_| Ok(()))
    }

    async fn job(&self) -> Result<JobStatus, AgentError> {
        let state = self.change(|task| Ok(task.runner))?;
        Ok(JobStatus {
            state,
            ..JobStatus::default()
        })
    }

    async fn submit(&self, _: &SubmitBody) -> Result<(), AgentError> {
        self.change(|task| {
            task.runner = RunnerState::WaitRun;
            Ok(())
        })
    }

    async fn upload_archive(&self, _: &str, _: &[u8]) -> Result<(), AgentError> {
        Ok(())
    }

    async fn upload_code(&self, _: Vec<u8>) -> Result<(), AgentError> {
        Ok(())
    }

    async fn run(&self) -> Result<Option<JobInfo>, AgentError> {
        self.change(|task| match task.runner {
            RunnerState::WaitRun => {
                task.runner = RunnerState::ServeLogs;
                Ok(())
            }
            _ => Err(refused(409, "conflict")),
        })?;
        self.becomes(JobState::Running)?;
        Ok(Some(JobInfo {
            working_dir: "/".to_owned(),
            username: "root".to_owned(),
        }))
    }

    async fn stop(&self) -> Result<(), AgentError> {
        self.becomes(JobState::Terminated)?;
        self.change(|task| {
            task.runner = RunnerState::WaitLogsFinished;
            Ok(())
        })
    }

    async fn ack(&self, _: i64) -> Result<(), AgentError> {
        Ok(())
    }

    async fn follow(&self, cursor: i64) -> Result<Box<dyn EventSource>, AgentError> {
        Ok(Box::new(Events {
            host: Arc::clone(&self.host),
            id: self.id.clone(),
            cursor,
        }))
    }

    async fn metrics(&self) -> Result<Option<Metrics>, AgentError> {
        Ok(Some(Metrics {
            timestamp_micro: self.host.clock.now().as_micros(),
            ..Metrics::default()
        }))
    }
}

struct Events {
    host: Arc<Host>,
    id: String,
    cursor: i64,
}

impl Events {
    /// An inner `None`: the stream is over.
    fn next_line(&mut self, tasks: &BTreeMap<String, Task>) -> Option<Option<StreamLine>> {
        let Some(task) = tasks
            .get(&self.id)
            .filter(|task| task.info.status == TaskStatus::Running)
        else {
            return Some(None);
        };
        if let Some(event) = task.events.iter().find(|event| event.timestamp > self.cursor) {
            self.cursor = event.timestamp;
            return Some(Some(StreamLine::State(event.clone())));
        }
        let end = StreamLine::End(End {
            timestamp: self.cursor,
        });
        (task.runner == RunnerState::WaitLogsFinished).then_some(Some(end))
    }
}

#[async_trait]
impl EventSource for Events {
    async fn next(&mut self) -> Result<Option<StreamLine>, AgentError> {
        let host = Arc::clone(&self.host);
        let next = host.wait(|tasks| self.next_line(tasks)).await;
        let tick = Tick {
            timestamp: self.cursor,
            no_connections_secs: 0,
        };
        Ok(next.unwrap_or(Some(StreamLine::Tick(tick))))
    }
}
