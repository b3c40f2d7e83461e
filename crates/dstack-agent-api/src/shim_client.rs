//! Calls the host agent: ours and dstack 0.22.5's.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_system::Secret;
use tokio::net::UnixStream;

use crate::http::{AgentHttp, Call, CallError, Connector, Lines, Wire};
use crate::peer;
use crate::shim::{
    ComponentInstall, Components, Healthcheck, HostReport, InstanceHealth, InstanceInfo, ShutdownRequest,
    StreamEvent, TaskConfig, TaskInfo, TaskList, TaskTerminate, paths,
};

/// Beyond the grace period given to a terminating task: the time the engine needs to stop and unmount.
const TERMINATE_MARGIN: Duration = Duration::from_secs(20);

/// The largest answer: a list of tasks, or the metrics of one.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// The longest report of what a machine has, which is stored.
const MAX_REPORT_BYTES: usize = 256 * 1024;
/// The longest event: a task with the message of its end.
const MAX_LINE_BYTES: usize = 256 * 1024;

/// Connects to an agent's Unix socket on this machine, which must be of this process's user: see [`crate::peer`].
#[derive(Debug, Clone)]
pub struct UnixConnector {
    /// The socket's file.
    pub path: PathBuf,
}

#[async_trait]
impl Connector for UnixConnector {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        let stream = UnixStream::connect(&self.path).await?;
        peer::check(&stream)?;
        Ok(Box::new(stream))
    }
}

/// Client of one host agent.
#[derive(Debug, Clone)]
pub struct ShimClient {
    http: AgentHttp,
}

impl ShimClient {
    /// A client over this connector.
    pub fn new(connector: Arc<dyn Connector>) -> Self {
        Self {
            http: AgentHttp::new(connector).with_limits(MAX_ANSWER_BYTES, MAX_LINE_BYTES),
        }
    }

    /// With the token that the agent was started with. One that was started without a token does not look at it.
    pub fn with_token(self, token: Secret) -> Self {
        Self {
            http: self.http.with_token(token),
        }
    }

    /// Who answers, and its version. Another `service` than [`crate::shim::SERVICE`] is not a host agent.
    pub async fn healthcheck(&self) -> Result<Healthcheck, CallError> {
        self.http.send(Call::get(paths::HEALTHCHECK)).await?.json()
    }

    /// Lets the agent exit; its supervisor starts it again.
    pub async fn shutdown(&self, force: bool) -> Result<(), CallError> {
        self.http
            .send(Call::post(paths::SHUTDOWN).json(&ShutdownRequest { force })?)
            .await
            .map(drop)
    }

    /// GPU health. `Refused` 404: an agent before 0.19.22.
    pub async fn instance_health(&self) -> Result<InstanceHealth, CallError> {
        self.http.send(Call::get(paths::INSTANCE_HEALTH)).await?.json()
    }

    /// GPU vendor and driver. `Refused` 404: an agent before 0.20.30.
    pub async fn instance_info(&self) -> Result<InstanceInfo, CallError> {
        self.http.send(Call::get(paths::INSTANCE_INFO)).await?.json()
    }

    /// What the machine has and how it runs tasks. `Refused` 404: dstack 0.22.5's agent.
    pub async fn host(&self) -> Result<HostReport, CallError> {
        let call = Call::get(paths::HOST).at_most(MAX_REPORT_BYTES);
        self.http.send(call).await?.json()
    }

    /// Returns the installed binaries with their versions.
    pub async fn components(&self) -> Result<Components, CallError> {
        self.http.send(Call::get(paths::COMPONENTS)).await?.json()
    }

    /// Downloads and installs a binary in the background. `Refused` 409: it is being installed.
    pub async fn install_component(&self, request: &ComponentInstall) -> Result<(), CallError> {
        self.http
            .send(Call::post(paths::COMPONENTS_INSTALL).json(request)?)
            .await
            .map(drop)
    }

    /// Returns the ids and states of all tasks.
    pub async fn tasks(&self) -> Result<TaskList, CallError> {
        self.http.send(Call::get(paths::TASKS)).await?.json()
    }

    /// Submits a task, which starts at once. `Refused` 409: it is there already, see [`Self::task`]. (dstack 0.22.5's
    /// agent answers under other keys: read the task again instead of this answer.)
    pub async fn submit(&self, config: &TaskConfig) -> Result<TaskInfo, CallError> {
        self.http
            .send(Call::post(paths::TASKS).json(config)?)
            .await?
            .json()
    }

    /// One task. `Refused` 404: not known.
    pub async fn task(&self, id: &str) -> Result<TaskInfo, CallError> {
        self.http.send(Call::get(paths::task(id))).await?.json()
    }

    /// Ends a task; may be repeated. `Refused` 404: not known.
    pub async fn terminate(&self, id: &str, order: &TaskTerminate) -> Result<TaskInfo, CallError> {
        let limit = Duration::from_secs(u64::from(order.timeout)) + TERMINATE_MARGIN;
        self.http
            .send(Call::post(paths::terminate(id)).json(order)?.within(limit))
            .await?
            .json()
    }

    /// Forgets a terminated task. `Refused` 404: not known; 409: not terminated.
    pub async fn remove(&self, id: &str) -> Result<(), CallError> {
        self.http
            .send(Call::post(paths::remove(id)).within(TERMINATE_MARGIN))
            .await
            .map(drop)
    }

    /// Prometheus text of a task's GPUs. `Refused` 404: no exporter, or no such task.
    pub async fn metrics(&self, id: &str) -> Result<String, CallError> {
        let answer = self.http.send(Call::get(paths::metrics(id))).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// All tasks, then every change as it happens. `Refused` 404: dstack 0.22.5's agent, use [`Self::task`].
    pub async fn stream(&self) -> Result<TaskStream, CallError> {
        Ok(TaskStream {
            lines: self.http.stream(Call::get(paths::STREAM)).await?,
        })
    }
}

/// Changes of a host agent's tasks.
#[derive(Debug)]
pub struct TaskStream {
    lines: Lines,
}

impl TaskStream {
    /// The next event; `None` when the agent goes away. Safe to cancel. After an error open the stream again: it starts
    /// with all tasks. [`StreamEvent::Unknown`] is passed over.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, CallError> {
        loop {
            let Some(line) = self.lines.next().await? else {
                return Ok(None);
            };
            let parsed = serde_json::from_slice(&line).map_err(|source| CallError::Unreadable {
                call: format!("GET {}", paths::STREAM),
                source: source.into(),
            })?;
            if parsed != StreamEvent::Unknown {
                return Ok(Some(parsed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Listens as another user, in a thread of its own that becomes that user. `None`: this process may not.
    #[allow(clippy::disallowed_methods)] // a pooled thread would stay that user
    fn foreign_listener(path: PathBuf) -> Option<std::os::unix::net::UnixListener> {
        let listen = move || {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).ok()?;
            Some(std::os::unix::net::UnixListener::bind(path).unwrap())
        };
        std::thread::spawn(listen).join().unwrap()
    }

    #[tokio::test]
    async fn an_agent_of_another_user_is_not_talked_to() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        fs_err::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.path().join("foreign.sock");
        let Some(_listener) = foreign_listener(path.clone()) else {
            eprintln!("skipped: only root can be somebody else");
            return;
        };
        let Err(error) = UnixConnector { path }.connect().await else {
            panic!("connected")
        };
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }
}
