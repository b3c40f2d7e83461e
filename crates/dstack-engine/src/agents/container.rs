//! What stands for the host agent of a container that a cloud runs for one job. There is none: the job's runner is all that is
//! there, and the cloud ends the container.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::shim::{
    InstanceHealth, PortMapping, RUNNER_HTTP_PORT, StreamEvent, TaskConfig, TaskInfo, TaskStatus,
    TaskTerminate, reason,
};
use dstack_units::JobId;

use super::{AgentError, Runner, Shim, TaskSource};

/// The connection to a container.
#[async_trait]
pub trait Link: Send + Sync + Debug {
    /// Waits until it breaks; why it did.
    async fn broken(&self) -> AgentError;
}

/// A container as its one task.
///
/// To submit the task does nothing, as the cloud was asked for it. It runs when its runner answers. To end and remove it does
/// nothing either: the instance, which is the container, ends with its job.
#[derive(Debug)]
pub struct ContainerShim {
    job: JobId,
    runner_port: u16,
    runner: Arc<dyn Runner>,
    link: Arc<dyn Link>,
}

impl ContainerShim {
    /// Of the container of this job. `runner` is asked for signs of life only: it needs no token.
    pub fn new(job: JobId, runner_port: u16, runner: Arc<dyn Runner>, link: Arc<dyn Link>) -> Self {
        Self {
            job,
            runner_port,
            runner,
            link,
        }
    }

    fn check(&self, id: &str) -> Result<(), AgentError> {
        if id == self.job.to_string() {
            return Ok(());
        }
        Err(AgentError::Refused {
            status: 404,
            message: format!("the container is that of the job {}", self.job),
        })
    }

    fn running(&self) -> TaskInfo {
        TaskInfo {
            id: self.job.to_string(),
            status: TaskStatus::Running,
            // SSH is where the cloud says.
            ports: Some(vec![PortMapping {
                container: RUNNER_HTTP_PORT,
                host: self.runner_port,
            }]),
            ..TaskInfo::default()
        }
    }
}

/// The task of a container that is over.
fn ended_task(job: JobId, message: &str) -> TaskInfo {
    TaskInfo {
        id: job.to_string(),
        status: TaskStatus::Terminated,
        termination_reason: reason::CONTAINER_EXITED_WITH_ERROR.to_owned(),
        termination_message: message.to_owned(),
        ..TaskInfo::default()
    }
}

#[async_trait]
impl Shim for ContainerShim {
    async fn submit(&self, config: &TaskConfig) -> Result<(), AgentError> {
        self.check(&config.id)
    }

    async fn terminate(&self, id: &str, _order: &TaskTerminate) -> Result<(), AgentError> {
        self.check(id)
    }

    async fn remove(&self, id: &str) -> Result<(), AgentError> {
        self.check(id)
    }

    async fn watch(&self) -> Result<Box<dyn TaskSource>, AgentError> {
        let task = match self.runner.healthcheck().await {
            Ok(()) => self.running(),
            // It wants its token: it is there.
            Err(error) if error.is_status(401) => self.running(),
            // It answered before: that is when the container came to be known.
            Err(AgentError::NotRunning(error)) => ended_task(
                self.job,
                &format!("The runner does not run any more: the container was started again ({error})"),
            ),
            Err(error) => return Err(error),
        };
        Ok(Box::new(ContainerTask::new(task, Arc::clone(&self.link))))
    }

    async fn answers_within(&self, _patience: Duration) -> Result<(), AgentError> {
        self.runner.healthcheck().await
    }

    async fn health(&self) -> Result<InstanceHealth, AgentError> {
        Ok(InstanceHealth::default())
    }
}

/// Tells the task of a container, and then nothing until the connection breaks.
#[derive(Debug)]
struct ContainerTask {
    told: VecDeque<StreamEvent>,
    link: Arc<dyn Link>,
}

impl ContainerTask {
    fn new(task: TaskInfo, link: Arc<dyn Link>) -> Self {
        Self {
            told: VecDeque::from([StreamEvent::Task(task), StreamEvent::Synced]),
            link,
        }
    }
}

#[async_trait]
impl TaskSource for ContainerTask {
    async fn next(&mut self) -> Result<Option<StreamEvent>, AgentError> {
        match self.told.pop_front() {
            Some(event) => Ok(Some(event)),
            None => Err(self.link.broken().await),
        }
    }
}
