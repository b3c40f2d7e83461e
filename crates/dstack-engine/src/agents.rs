//! The agents of an instance, behind traits: real ones speak HTTP, simulated ones live in the same process.

pub mod container;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::http::CallError;
use dstack_agent_api::runner::{JobInfo, JobStatus, Metrics, SubmitBody};
use dstack_agent_api::runner_client::{EventStream, RunnerClient};
use dstack_agent_api::shim::{InstanceHealth, StreamEvent, TaskConfig, TaskTerminate};
use dstack_agent_api::shim_client::{ShimClient, TaskStream};
use dstack_agent_api::stream::StreamLine;
use dstack_model::runs::JobProvisioningData;
use dstack_store::rows::AgentAddress;
use dstack_system::{Secret, chain};
use dstack_units::{InstanceId, JobId, ProjectId};

use crate::context::Context;
use crate::inputs::InputsError;

/// Why a call to an agent brought no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AgentError {
    /// No connection, or it broke: may heal.
    #[error("{0}")]
    Unreachable(String),
    /// The agent has taken the connection, and has not answered in time.
    #[error("{0}")]
    NoAnswer(String),
    /// The machine is reached, and nothing listens where the agent should: it does not run.
    #[error("{0}")]
    NotRunning(String),
    /// The machine is reached, and what listens where the agent should has not shown that it has its token.
    #[error("{message}")]
    Unproven {
        /// HTTP status that it answered with instead, if it did. Anybody may have said so.
        status: Option<u16>,
        /// What is to be done about it.
        message: String,
    },
    /// The agent answered with an error.
    #[error("{message}")]
    Refused {
        /// HTTP status code of the agent's answer.
        status: u16,
        /// What it said.
        message: String,
    },
}

impl AgentError {
    /// Whether the agent answered with this status.
    pub const fn is_status(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == wanted)
    }
}

impl From<CallError> for AgentError {
    fn from(error: CallError) -> Self {
        match error.status() {
            Some(status) => Self::Refused {
                status: status.as_u16(),
                message: error.to_string(),
            },
            None if matches!(error, CallError::Unproven { .. }) => Self::Unproven {
                status: error.unproven_status().map(|status| status.as_u16()),
                message: error.to_string(),
            },
            None if matches!(error, CallError::Timeout { connected: true, .. }) => {
                Self::NoAnswer(chain(&error).to_string())
            }
            None if is_not_running(&error) => Self::NotRunning(chain(&error).to_string()),
            None => Self::Unreachable(chain(&error).to_string()),
        }
    }
}

/// Whether the host was reached, and nothing listens at the agent's port. An SSH server that refuses the connection is no such case:
/// then the host itself is not reached.
fn is_not_running(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
}

/// Changes of the tasks of a shim, as they happen.
#[async_trait]
pub trait TaskSource: Send {
    /// The next change; `None` when the shim closed the stream.
    async fn next(&mut self) -> Result<Option<StreamEvent>, AgentError>;
}

/// Output and states of a runner, as they happen.
#[async_trait]
pub trait EventSource: Send {
    /// The next line; `None` when the runner closed the stream.
    async fn next(&mut self) -> Result<Option<StreamLine>, AgentError>;
}

/// The agent of a host.
#[async_trait]
pub trait Shim: Send + Sync + Debug {
    /// Hands over a task; the same id again is refused with 409.
    async fn submit(&self, config: &TaskConfig) -> Result<(), AgentError>;
    /// Ends a task.
    async fn terminate(&self, id: &str, order: &TaskTerminate) -> Result<(), AgentError>;
    /// Forgets a terminated task.
    async fn remove(&self, id: &str) -> Result<(), AgentError>;
    /// Follows all tasks.
    async fn watch(&self) -> Result<Box<dyn TaskSource>, AgentError>;
    /// Whether it answers at all: [`AgentError::NoAnswer`] if it has said nothing after so long.
    async fn answers_within(&self, patience: Duration) -> Result<(), AgentError>;
    /// How its GPUs are now; empty where nothing can tell.
    async fn health(&self) -> Result<InstanceHealth, AgentError>;
}

/// The agent of a job.
#[async_trait]
pub trait Runner: Send + Sync + Debug {
    /// Whether it is up.
    async fn healthcheck(&self) -> Result<(), AgentError>;
    /// How far it is.
    async fn job(&self) -> Result<JobStatus, AgentError>;
    /// Hands over the job.
    async fn submit(&self, body: &SubmitBody) -> Result<(), AgentError>;
    /// Hands over an archive of files.
    async fn upload_archive(&self, id: &str, archive: &[u8]) -> Result<(), AgentError>;
    /// Hands over code: a tar or a diff.
    async fn upload_code(&self, code: Vec<u8>) -> Result<(), AgentError>;
    /// Starts the commands.
    async fn run(&self) -> Result<Option<JobInfo>, AgentError>;
    /// Asks the commands to end.
    async fn stop(&self) -> Result<(), AgentError>;
    /// Everything up to this time is stored.
    async fn ack(&self, timestamp: i64) -> Result<(), AgentError>;
    /// Follows output and states after `cursor`.
    async fn follow(&self, cursor: i64) -> Result<Box<dyn EventSource>, AgentError>;
    /// What the job uses now; `None`: it cannot be measured there.
    async fn metrics(&self) -> Result<Option<Metrics>, AgentError>;
}

/// Reaches agents by the address of their instance.
pub trait Agents: Send + Sync + Debug {
    /// The host agent; `token` is what it was started with, if it was.
    fn shim(&self, address: &AgentAddress, token: Option<Secret>) -> Arc<dyn Shim>;
    /// The agent of a job; `port` is where its API is on the host, `token` what the job's task was submitted with.
    fn runner(&self, address: &AgentAddress, job: JobId, port: u16, token: Secret) -> Arc<dyn Runner>;
    /// The agent of this address is not needed any more: what is kept for reaching it may go.
    fn forget(&self, _address: &AgentAddress) {}
    /// How the agent of an instance that a cloud has made is reached; `None`: not by this build, so that the instance ends
    /// when its time to become reachable is over.
    fn address(&self, _instance: InstanceId, _place: &JobProvisioningData) -> Option<AgentAddress> {
        None
    }
}

/// The host agent of an instance.
///
/// # Errors
/// What its calls are authorized with is not known, now or at all.
pub async fn shim_of(
    ctx: &Context,
    project: ProjectId,
    instance: InstanceId,
    address: &AgentAddress,
) -> Result<Arc<dyn Shim>, InputsError> {
    let token = match address {
        // Its socket looks who is at the other end.
        AgentAddress::Local { .. } => None,
        // There is none: what answers for it asks the job's runner.
        AgentAddress::Container { .. } => None,
        AgentAddress::Ssh { .. } => Some(ctx.deps.inputs.shim_token(project, instance).await?),
    };
    Ok(ctx.deps.agents.shim(address, token))
}

/// A shim reached over HTTP.
#[derive(Debug)]
pub struct HttpShim(pub ShimClient);

/// A runner reached over HTTP.
#[derive(Debug)]
pub struct HttpRunner(pub RunnerClient);

#[async_trait]
impl TaskSource for TaskStream {
    async fn next(&mut self) -> Result<Option<StreamEvent>, AgentError> {
        Ok(TaskStream::next(self).await?)
    }
}

#[async_trait]
impl EventSource for EventStream {
    async fn next(&mut self) -> Result<Option<StreamLine>, AgentError> {
        Ok(EventStream::next(self).await?)
    }
}

#[async_trait]
impl Shim for HttpShim {
    async fn submit(&self, config: &TaskConfig) -> Result<(), AgentError> {
        self.0.submit(config).await?;
        Ok(())
    }
    async fn terminate(&self, id: &str, order: &TaskTerminate) -> Result<(), AgentError> {
        self.0.terminate(id, order).await?;
        Ok(())
    }
    async fn remove(&self, id: &str) -> Result<(), AgentError> {
        Ok(self.0.remove(id).await?)
    }
    async fn watch(&self) -> Result<Box<dyn TaskSource>, AgentError> {
        Ok(Box::new(self.0.stream().await?))
    }
    async fn answers_within(&self, patience: Duration) -> Result<(), AgentError> {
        self.0.healthcheck_within(patience).await?;
        Ok(())
    }
    async fn health(&self) -> Result<InstanceHealth, AgentError> {
        match self.0.instance_health().await.map_err(AgentError::from) {
            // An agent from before there was the route.
            Err(error) if error.is_status(404) => Ok(InstanceHealth::default()),
            answer => answer,
        }
    }
}

#[async_trait]
impl Runner for HttpRunner {
    async fn healthcheck(&self) -> Result<(), AgentError> {
        self.0.healthcheck().await?;
        Ok(())
    }
    async fn job(&self) -> Result<JobStatus, AgentError> {
        Ok(self.0.job().await?)
    }
    async fn submit(&self, body: &SubmitBody) -> Result<(), AgentError> {
        Ok(self.0.submit(body).await?)
    }
    async fn upload_archive(&self, id: &str, archive: &[u8]) -> Result<(), AgentError> {
        Ok(self.0.upload_archive(id, archive).await?)
    }
    async fn upload_code(&self, code: Vec<u8>) -> Result<(), AgentError> {
        Ok(self.0.upload_code(code).await?)
    }
    async fn run(&self) -> Result<Option<JobInfo>, AgentError> {
        Ok(self.0.run().await?)
    }
    async fn stop(&self) -> Result<(), AgentError> {
        Ok(self.0.stop().await?)
    }
    async fn ack(&self, timestamp: i64) -> Result<(), AgentError> {
        Ok(self.0.ack(timestamp).await?)
    }
    async fn follow(&self, cursor: i64) -> Result<Box<dyn EventSource>, AgentError> {
        Ok(Box::new(self.0.stream_until_clients_left(cursor).await?))
    }
    async fn metrics(&self) -> Result<Option<Metrics>, AgentError> {
        match self.0.metrics().await.map_err(AgentError::from) {
            Err(error) if error.is_status(404) => Ok(None),
            answer => answer.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use dstack_agent_api::http::{Connector, Wire};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// An agent that answers everything with this.
    #[derive(Debug)]
    struct Always(&'static str);

    #[async_trait]
    impl Connector for Always {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            let answer = self.0;
            dstack_system::task::spawn("agent", async move {
                theirs.read_buf(&mut Vec::with_capacity(4096)).await.ok();
                theirs.write_all(answer.as_bytes()).await.ok();
            });
            Ok(Box::new(ours))
        }
    }

    /// Nothing is reached, for this reason.
    #[derive(Debug)]
    struct Never(io::ErrorKind);

    #[async_trait]
    impl Connector for Never {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            Err(self.0.into())
        }
    }

    #[tokio::test]
    async fn an_agent_that_does_not_run_is_told_from_a_host_that_is_not_reached() {
        let asked = async |kind| {
            HttpShim(ShimClient::new(Arc::new(Never(kind))))
                .watch()
                .await
                .err()
        };
        let refused = asked(io::ErrorKind::ConnectionRefused).await;
        assert!(matches!(refused, Some(AgentError::NotRunning(_))), "{refused:?}");
        for kind in [
            io::ErrorKind::HostUnreachable,
            io::ErrorKind::TimedOut,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::NotConnected,
        ] {
            let out_of_reach = asked(kind).await;
            assert!(
                matches!(out_of_reach, Some(AgentError::Unreachable(_))),
                "{out_of_reach:?}"
            );
        }
    }

    /// Nobody is there who would say anything: connected or not.
    #[derive(Debug)]
    struct Mute {
        connects: bool,
        /// Other ends of connections, which stay open.
        held: std::sync::Mutex<Vec<tokio::io::DuplexStream>>,
    }

    #[async_trait]
    impl Connector for Mute {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            if !self.connects {
                std::future::pending::<()>().await;
            }
            let (ours, theirs) = tokio::io::duplex(4096);
            self.held.lock().unwrap().push(theirs);
            Ok(Box::new(ours))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_takes_connections_and_says_nothing_is_told_from_one_that_is_not_reached() {
        for connects in [true, false] {
            let held = std::sync::Mutex::default();
            let shim = HttpShim(ShimClient::new(Arc::new(Mute { connects, held })));
            let patience = Duration::from_secs(60);
            let began = tokio::time::Instant::now();
            let asked = shim.answers_within(patience).await.err();
            assert!(began.elapsed() >= patience);
            for error in [shim.watch().await.err(), asked] {
                let is_mute = matches!(error, Some(AgentError::NoAnswer(_)));
                assert_eq!(is_mute, connects, "{error:?}");
            }
        }
    }

    async fn health(answer: &'static str) -> Result<InstanceHealth, AgentError> {
        HttpShim(ShimClient::new(Arc::new(Always(answer)))).health().await
    }

    #[tokio::test]
    async fn agents_that_are_too_old_have_no_health_to_tell() {
        let old = health("HTTP/1.1 404 Not Found\r\ncontent-length: 19\r\n\r\n404 page not found\n").await;
        assert_eq!(old.unwrap(), InstanceHealth::default());
        let without = health("HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"dcgm\":null}").await;
        assert_eq!(without.unwrap(), InstanceHealth::default());
        let failing = health("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n").await;
        assert!(failing.unwrap_err().is_status(500));
    }

    /// The connection to a container, which does not break.
    #[derive(Debug)]
    struct Whole;

    #[async_trait]
    impl container::Link for Whole {
        async fn broken(&self) -> AgentError {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_container_runs_when_its_runner_answers_or_wants_its_token() {
        let watch = async |answer| {
            let runner = Arc::new(HttpRunner(RunnerClient::new(Arc::new(Always(answer)))));
            let shim =
                container::ContainerShim::new(JobId::new(uuid::Uuid::nil()), 1, runner, Arc::new(Whole));
            shim.watch().await.map(|_| ())
        };
        let token = watch("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").await;
        assert!(token.is_ok(), "{token:?}");
        // Something on the way there: nobody knows.
        let away = watch("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await;
        assert!(away.unwrap_err().is_status(503));
    }
}
