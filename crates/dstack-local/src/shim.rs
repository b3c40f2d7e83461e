//! The agent of this machine: a process of its own that outlives the server.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dstack_agent_api::shim::{HostReport, TaskListItem, TaskStatus};
use dstack_agent_api::shim_client::{ShimClient, UnixConnector};
use dstack_system::{env, file, task};
use fs_err::os::unix::fs::OpenOptionsExt as _;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::{LocalError, environment, socket};

/// How long the agent may take to answer after its start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Pauses before an agent that does not stay is listened to again; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// An agent that was heard for so long stays.
const STEADY: Duration = Duration::from_secs(1);
/// As much of the end of its output is shown when it did not start.
const SHOWN_OUTPUT: usize = 500;

/// What to start.
#[derive(Debug, Clone)]
pub struct LocalShimOptions {
    /// State of the agent: tasks, logs, socket.
    pub dir: PathBuf,
    /// The agent's executable.
    pub binary: PathBuf,
    /// [`AUTO`], `docker` or `process`.
    pub runtime: String,
}

/// The agent decides what runs tasks, and stays with that.
pub const AUTO: &str = "auto";

/// The running agent of this machine.
#[derive(Debug, Clone)]
pub struct LocalShim {
    options: Arc<LocalShimOptions>,
    socket: PathBuf,
    client: ShimClient,
    /// What runs tasks: jobs are made for it as long as this server lives.
    runtime: Arc<OnceLock<String>>,
    /// The server stops: the agent is not started again.
    stopping: Arc<AtomicBool>,
}

impl LocalShim {
    /// Finds the agent that an earlier server left running, or starts one; then keeps it running.
    pub async fn start(options: LocalShimOptions) -> Result<Self, LocalError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&options.dir)?;
        let socket = socket::path(&options.dir)?;
        let client = ShimClient::new(Arc::new(UnixConnector { path: socket.clone() }));
        let shim = Self {
            options: Arc::new(options),
            socket,
            client,
            runtime: Arc::default(),
            stopping: Arc::default(),
        };
        shim.ensure_running().await?;
        let supervised = shim.clone();
        task::spawn("local agent", async move { supervised.supervise().await });
        Ok(shim)
    }

    /// Path of the socket that the agent listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its executable.
    pub fn binary(&self) -> &Path {
        &self.options.binary
    }

    /// What the machine has.
    pub async fn report(&self) -> Result<HostReport, LocalError> {
        self.client.host().await.map_err(LocalError::Agent)
    }

    /// Ends the agent if it has nothing to do: called when the server stops. Jobs keep it alive.
    pub async fn stop_if_idle(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let idle = self.client.tasks().await.is_ok_and(|list| list.tasks.is_empty());
        if idle {
            self.client.shutdown(false).await.ok(); // already gone is as good
        }
    }

    /// Ends the agent that a server left behind when it was killed, if nothing runs there. Nobody else would, once the machine
    /// is not offered any more.
    pub async fn end_left_behind(dir: &Path) {
        // Where an agent was, there is its directory.
        let Some(socket) = socket::path(dir).ok().filter(|_| dir.is_dir()) else {
            return;
        };
        let client = ShimClient::new(Arc::new(UnixConnector { path: socket }));
        let over = |task: &TaskListItem| task.status == TaskStatus::Terminated;
        let is_idle = client.tasks().await.is_ok_and(|list| list.tasks.iter().all(over));
        if is_idle && client.shutdown(false).await.is_ok() {
            tracing::info!("the agent that an earlier server left running on this machine was ended");
        }
    }

    async fn ensure_running(&self) -> Result<(), LocalError> {
        match self.client.healthcheck().await {
            Ok(health) if self.is_wanted(&health.version).await => {}
            // Left by another build, or by a server that wanted another runtime: it hands its tasks over to the new one.
            Ok(_) => {
                self.client.shutdown(false).await.map_err(LocalError::Agent)?;
                self.wait_until_gone().await;
                self.start_agent().await?;
            }
            Err(_) => self.start_agent().await?,
        }
        self.check_runtime().await
    }

    /// Whether the agent that runs is of our version, was started from the file that we would start, which is the runner of
    /// its next tasks as well, and runs tasks as was said.
    async fn is_wanted(&self, version: &str) -> bool {
        let Ok(report) = self.report().await else {
            return false;
        };
        let wanted = &self.options.runtime;
        let is_ours = file::id(&self.options.binary).is_ok_and(|ours| ours == report.executable);
        version == env!("CARGO_PKG_VERSION") && is_ours && (wanted == AUTO || report.runtime == *wanted)
    }

    /// Another runtime than at the first start would get jobs that were made for the first.
    async fn check_runtime(&self) -> Result<(), LocalError> {
        let found = self.report().await?.runtime;
        let expected = self.runtime.get_or_init(|| found.clone());
        if *expected == found {
            return Ok(());
        }
        self.client.shutdown(false).await.map_err(LocalError::Agent)?;
        Err(LocalError::OtherRuntime {
            expected: expected.clone(),
            found,
        })
    }

    /// The next agent's answers must not be taken from this one. There is no event for a socket that nobody listens to any
    /// more.
    async fn wait_until_gone(&self) {
        let gone = async {
            while self.client.healthcheck().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        // One that does not go keeps the directory locked, which the next one says.
        let _ = tokio::time::timeout(START_TIMEOUT, gone).await;
    }

    async fn start_agent(&self) -> Result<(), LocalError> {
        let log = self.options.dir.join("agent.out");
        let mut child = self.spawn(&log)?;
        self.wait_until_up(&mut child, &log).await?;
        task::spawn("local agent's end", async move {
            let status = child.wait().await;
            tracing::debug!(?status, "the local agent ended");
        });
        Ok(())
    }

    fn spawn(&self, log: &Path) -> Result<Child, LocalError> {
        let output = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(log)?;
        let mut command = Command::new(&self.options.binary);
        command
            .arg("shim")
            .arg("--shim-home")
            .arg(&self.options.dir)
            .arg("--socket")
            .arg(&self.socket)
            .arg("--runtime")
            .arg(&self.options.runtime)
            .arg("--runner-binary-path")
            .arg(&self.options.binary)
            .env_clear()
            .envs(environment::of_agent(env::all()))
            .current_dir(&self.options.dir)
            .stdin(Stdio::null())
            .stdout(output.file().try_clone()?)
            .stderr(output.file().try_clone()?)
            // A Ctrl-C for the server must not reach the jobs.
            .process_group(0)
            .kill_on_drop(false);
        Ok(command.spawn()?)
    }

    async fn wait_until_up(&self, child: &mut Child, log: &Path) -> Result<(), LocalError> {
        let up = async {
            let mut pause = Duration::from_millis(2);
            while self.client.healthcheck().await.is_err() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
        };
        let up = tokio::select! {
            up = tokio::time::timeout(START_TIMEOUT, up) => up.is_ok(),
            _ = child.wait() => false,
        };
        if up {
            return Ok(());
        }
        Err(LocalError::NotUp {
            log: log.display().to_string(),
            said: last_line(log),
        })
    }

    /// Holds a stream open; when it breaks, the agent is started again.
    async fn supervise(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let was_steady = self.listen().await;
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            tracing::warn!("the local agent is gone: it is started again. Jobs go on meanwhile");
            let started = self.ensure_running().await;
            if let Err(error) = &started {
                tracing::error!(%error, "the local agent cannot be started");
            }
            if was_steady && started.is_ok() {
                pause = FIRST_PAUSE;
            } else {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Until the stream breaks; whether it was there for a while.
    async fn listen(&self) -> bool {
        let began = Instant::now();
        if let Ok(mut stream) = self.client.stream().await {
            while let Ok(Some(_)) = stream.next().await {}
        }
        began.elapsed() >= STEADY
    }
}

/// What the agent said last, after a colon.
fn last_line(log: &Path) -> String {
    let text = fs_err::read(log).unwrap_or_default();
    let end = text
        .get(text.len().saturating_sub(SHOWN_OUTPUT)..)
        .unwrap_or_default();
    let end = String::from_utf8_lossy(end).trim().to_owned();
    end.lines()
        .next_back()
        .map(|line| format!(": {line}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use async_trait::async_trait;
    use dstack_agent_api::http::{Connector, Wire};
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn agent(script: &str) -> (tempfile::TempDir, LocalShim) {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("agent");
        fs_err::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs_err::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = LocalShimOptions {
            dir: dir.path().to_owned(),
            binary,
            runtime: AUTO.to_owned(),
        };
        let socket = dir.path().join("shim.sock");
        let shim = LocalShim {
            options: Arc::new(options),
            client: ShimClient::new(Arc::new(UnixConnector { path: socket.clone() })),
            socket,
            runtime: Arc::default(),
            stopping: Arc::default(),
        };
        (dir, shim)
    }

    #[tokio::test]
    async fn an_agent_that_ends_at_once_is_not_waited_for_and_says_why() {
        let (_dir, shim) = agent("echo first; echo 'error: no engine'; exit 1");
        let error = shim.start_agent().await.unwrap_err().to_string();
        assert!(error.ends_with("/agent.out: error: no engine"), "{error}");
    }

    /// An agent that answers all calls but the one for its stream, which it counts.
    #[derive(Debug, Default, Clone)]
    struct WithoutStream {
        streams: Arc<AtomicUsize>,
        /// How often it was told to end.
        ends: Arc<AtomicUsize>,
        executable: String,
    }

    #[async_trait]
    impl Connector for WithoutStream {
        async fn connect(&self) -> std::io::Result<Box<dyn Wire>> {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            task::spawn("agent of the test", self.clone().answer(theirs));
            Ok(Box::new(ours))
        }
    }

    impl WithoutStream {
        async fn answer(self, mut wire: tokio::io::DuplexStream) {
            let mut request = vec![0; 4096];
            let count = wire.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..count]).into_owned();
            let (status, body) = match request.split(' ').nth(1) {
                Some("/api/healthcheck") => {
                    let health = json!({"service": "dstack-shim", "version": env!("CARGO_PKG_VERSION")});
                    ("200 OK", health)
                }
                Some("/api/host") => (
                    "200 OK",
                    json!({"runtime": "process", "executable": self.executable}),
                ),
                Some("/api/shutdown") => {
                    self.ends.fetch_add(1, Ordering::Relaxed);
                    ("200 OK", json!({}))
                }
                _ => {
                    self.streams.fetch_add(1, Ordering::Relaxed);
                    ("503 Service Unavailable", json!({}))
                }
            };
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            wire.write_all(format!("{head}{body}").as_bytes()).await.ok();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_whose_stream_does_not_stay_is_not_asked_without_end() {
        let (_dir, mut shim) = agent("exit 1");
        let agent = WithoutStream {
            executable: file::id(shim.binary()).unwrap(),
            ..WithoutStream::default()
        };
        let streams = Arc::clone(&agent.streams);
        shim.client = ShimClient::new(Arc::new(agent));
        let minute = tokio::time::timeout(Duration::from_secs(60), shim.supervise());
        minute.await.unwrap_err();
        let asked = streams.load(Ordering::Relaxed);
        assert!((5..20).contains(&asked), "{asked}");
    }

    /// The build was replaced by another of the same version: tasks of an agent that stayed would look for a file that is
    /// not there any more.
    #[tokio::test(start_paused = true)]
    async fn an_agent_of_another_build_hands_over_whatever_its_version_says() {
        let (_dir, mut shim) = agent("exit 1");
        for (executable, ends) in [
            (file::id(shim.binary()).unwrap(), 0),
            (file::own_executable().unwrap(), 1),
            (String::new(), 1),
        ] {
            let agent = WithoutStream {
                executable,
                ..WithoutStream::default()
            };
            let told = Arc::clone(&agent.ends);
            shim.client = ShimClient::new(Arc::new(agent));
            shim.ensure_running().await.ok(); // this one does not go
            assert_eq!(told.load(Ordering::Relaxed), ends);
        }
    }

    #[tokio::test]
    async fn the_agent_is_not_told_what_only_the_server_is_to_know() {
        let (dir, shim) = agent("tr '\\0' '\\n' < /proc/self/environ");
        // What the test itself was started with stands for the server's settings.
        let foreign: Vec<(String, String)> = env::all()
            .into_iter()
            .filter(|(name, _)| name.starts_with("CARGO") || name.starts_with("NEXTEST"))
            .collect();
        assert!(!foreign.is_empty());
        let mut child = shim.spawn(&dir.path().join("agent.out")).unwrap();
        child.wait().await.unwrap();
        let told = fs_err::read_to_string(dir.path().join("agent.out")).unwrap();
        assert!(told.lines().any(|line| line.starts_with("PATH=")), "{told}");
        for (name, _) in foreign {
            assert!(
                !told.lines().any(|line| line.starts_with(&format!("{name}="))),
                "{told}"
            );
        }
    }
}
