//! Calls the host agent: ours and dstack 0.22.5's.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_system::Secret;
use tokio::net::UnixStream;

use crate::http::{AgentHttp, CALL_TIMEOUT, Call, CallError, Connector, Lines, Wire};
use crate::peer;
use crate::shim::routes::route_of;
use crate::shim::{
    ComponentInstall, Components, Healthcheck, HostReport, InstanceHealth, InstanceInfo, ShutdownRequest,
    StreamEvent, TaskConfig, TaskInfo, TaskList, TaskTerminate, paths,
};

/// Beyond the grace period given to a terminating task: the time the engine needs to stop and unmount.
const TERMINATE_MARGIN: Duration = Duration::from_secs(20);

/// The longest name and version of an agent, in characters: they are shown.
const MAX_NAME_CHARS: usize = 64;
/// As many of a machine's incidents are taken, the worst first: they are stored, each minute.
const MAX_INCIDENTS: usize = 64;
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
            http: AgentHttp::new(connector).with_max_line(MAX_LINE_BYTES),
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
        self.healthcheck_within(CALL_TIMEOUT).await
    }

    /// The same, for which it may take so long.
    pub async fn healthcheck_within(&self, patience: Duration) -> Result<Healthcheck, CallError> {
        let call = get(paths::HEALTHCHECK).within(patience);
        let mut health: Healthcheck = self.http.send(call).await?.json()?;
        for text in [&mut health.service, &mut health.version] {
            *text = text.chars().take(MAX_NAME_CHARS).collect();
        }
        Ok(health)
    }

    /// Lets the agent exit; its supervisor starts it again.
    pub async fn shutdown(&self, force: bool) -> Result<(), CallError> {
        self.http
            .send(post(paths::SHUTDOWN).json(&ShutdownRequest { force })?)
            .await
            .map(drop)
    }

    /// GPU health. `Refused` 404: an agent before 0.19.22.
    pub async fn instance_health(&self) -> Result<InstanceHealth, CallError> {
        let mut health: InstanceHealth = self.http.send(get(paths::INSTANCE_HEALTH)).await?.json()?;
        if let Some(dcgm) = &mut health.dcgm {
            dcgm.incidents.truncate(MAX_INCIDENTS);
        }
        Ok(health)
    }

    /// GPU vendor and driver. `Refused` 404: an agent before 0.20.30.
    pub async fn instance_info(&self) -> Result<InstanceInfo, CallError> {
        self.http.send(get(paths::INSTANCE_INFO)).await?.json()
    }

    /// What the machine has and how it runs tasks. `Refused` 404: dstack 0.22.5's agent.
    pub async fn host(&self) -> Result<HostReport, CallError> {
        self.http.send(get(paths::HOST)).await?.json()
    }

    /// Returns the installed binaries with their versions.
    pub async fn components(&self) -> Result<Components, CallError> {
        self.http.send(get(paths::COMPONENTS)).await?.json()
    }

    /// Downloads and installs a binary in the background. `Refused` 409: it is being installed.
    pub async fn install_component(&self, request: &ComponentInstall) -> Result<(), CallError> {
        self.http
            .send(post(paths::COMPONENTS_INSTALL).json(request)?)
            .await
            .map(drop)
    }

    /// Returns the ids and states of all tasks.
    pub async fn tasks(&self) -> Result<TaskList, CallError> {
        self.http.send(get(paths::TASKS)).await?.json()
    }

    /// Submits a task, which starts at once. `Refused` 409: it is there already, see [`Self::task`]. (dstack 0.22.5's
    /// agent answers under other keys: read the task again instead of this answer.)
    pub async fn submit(&self, config: &TaskConfig) -> Result<TaskInfo, CallError> {
        self.http.send(post(paths::TASKS).json(config)?).await?.json()
    }

    /// One task. `Refused` 404: not known.
    pub async fn task(&self, id: &str) -> Result<TaskInfo, CallError> {
        self.http.send(get(paths::task(id))).await?.json()
    }

    /// Ends a task; may be repeated. `Refused` 404: not known.
    pub async fn terminate(&self, id: &str, order: &TaskTerminate) -> Result<TaskInfo, CallError> {
        let limit = Duration::from_secs(u64::from(order.timeout)) + TERMINATE_MARGIN;
        self.http
            .send(post(paths::terminate(id)).json(order)?.within(limit))
            .await?
            .json()
    }

    /// Forgets a terminated task. `Refused` 404: not known; 409: not terminated.
    pub async fn remove(&self, id: &str) -> Result<(), CallError> {
        self.http
            .send(post(paths::remove(id)).within(TERMINATE_MARGIN))
            .await
            .map(drop)
    }

    /// Prometheus text of a task's GPUs. `Refused` 404: no exporter, or no such task.
    pub async fn metrics(&self, id: &str) -> Result<String, CallError> {
        let answer = self.http.send(get(paths::metrics(id))).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// All tasks, then every change as it happens. `Refused` 404: dstack 0.22.5's agent, use [`Self::task`].
    pub async fn stream(&self) -> Result<TaskStream, CallError> {
        Ok(TaskStream {
            lines: self.http.stream(get(paths::STREAM)).await?,
        })
    }
}

fn get(path: impl Into<String>) -> Call {
    limited(Call::get(path))
}

fn post(path: impl Into<String>) -> Call {
    limited(Call::post(path))
}

/// With the longest answer of its route.
fn limited(call: Call) -> Call {
    let route = route_of(call.method(), call.path());
    let limit = route.map_or(0, |route| route.max_answer);
    call.at_most(limit)
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
    use dstack_system::task;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::http::TcpConnector;

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

    /// A client of an agent that answers every call with this.
    async fn client_of(answer: String) -> ShimClient {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        task::spawn("agent", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
                let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
            }
        });
        ShimClient::new(Arc::new(TcpConnector { address }))
    }

    #[tokio::test]
    async fn what_an_agent_says_and_we_keep_is_bounded() {
        let long = "x".repeat(2_000);
        let client = client_of(format!(r#"{{"service":"{long}","version":"{long}"}}"#)).await;
        let health = client.healthcheck().await.unwrap();
        assert_eq!((health.service.len(), health.version.len()), (64, 64));
        let longer = client_of(format!(r#"{{"service":"{}"}}"#, "x".repeat(5_000))).await;
        let too_long = [
            longer.healthcheck().await.err(),
            longer.instance_info().await.err(),
            longer.shutdown(false).await.err(),
            client_of(format!(r#"{{"x":"{}"}}"#, "x".repeat(70_000)))
                .await
                .instance_health()
                .await
                .err(),
            client_of(format!(r#"{{"x":"{}"}}"#, "x".repeat(300_000)))
                .await
                .task("1")
                .await
                .err(),
        ];
        for error in too_long {
            assert!(matches!(error, Some(CallError::Unreadable { .. })), "{error:?}");
        }
        let incidents = vec![r#"{"health":10,"error_message":"worst first"}"#; 1000].join(",");
        let answer = format!(r#"{{"dcgm":{{"overall_health":10,"incidents":[{incidents}]}}}}"#);
        let health = client_of(answer).await.instance_health().await.unwrap();
        assert_eq!(health.dcgm.unwrap().incidents.len(), 64);
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
