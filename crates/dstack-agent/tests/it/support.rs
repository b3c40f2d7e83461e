//! Agents as processes, and runners made of shell.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::http::CallError;
use dstack_agent_api::shim::{StreamEvent, TaskConfig, TaskInfo, TaskStatus, TaskTerminate};
use dstack_agent_api::shim_client::{ShimClient, UnixConnector};
use futures_util::StreamExt;
use inotify::{Inotify, WatchMask};

pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_dstack-agent");

/// A runner that says its ports, tells who it is, and ends with the code written into its FIFO `go`. In a container the
/// job's directory is `/tmp/runner`, so both sides find the FIFO in it.
const RUNNER: &str = r#"#!/bin/sh
[ "$1" = --features ] && { echo ssh-server; exit 0; }
while [ $# -gt 0 ]; do
    case $1 in
    --port-file) ports=$2 ;;
    --temp-dir) dir=$2 ;;
    esac
    shift
done
echo start >> "$dir/starts"
[ -p "$dir/go" ] || mkfifo "$dir/go" 2>/dev/null
setsid sleep 100000 &
echo $! > "$dir/orphan"
echo "the runner is up"
trap 'echo "got TERM"; exit 0' TERM
[ -z "$ports" ] || { echo '{"http":40001,"ssh":40002}' > "$ports.new"; mv "$ports.new" "$ports"; }
while :; do
    read code < "$dir/go" && exit "$code"
done
"#;

/// One host's state and what runs on it.
pub(crate) struct Machine {
    pub(crate) home: tempfile::TempDir,
    runtime: &'static str,
    docker_host: Option<String>,
}

impl Machine {
    pub(crate) fn new(runtime: &'static str, docker_host: Option<String>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let runner = home.path().join("fake-runner");
        fs_err::write(&runner, RUNNER).unwrap();
        fs_err::set_permissions(&runner, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self {
            home,
            runtime,
            docker_host,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Starts the host agent with the shell runner; it dies at the failpoint.
    pub(crate) async fn agent(&self, failpoint: Option<&str>) -> Agent {
        self.agent_with(
            failpoint,
            &["--runner-binary-path", self.path("fake-runner").to_str().unwrap()],
        )
        .await
    }

    pub(crate) async fn agent_with(&self, failpoint: Option<&str>, arguments: &[&str]) -> Agent {
        let socket = self.path("shim.sock");
        let _ = fs_err::remove_file(&socket);
        let mut command = Command::new(AGENT);
        command
            .arg0("dstack-shim")
            .arg("--shim-home")
            .arg(self.home.path())
            .arg("--socket")
            .arg(&socket);
        command
            .args(["--runtime", self.runtime, "--shim-log-level", "debug"])
            .args(arguments);
        command
            .env_remove("DSTACK_SHIM_FAILPOINT")
            .env_remove("DOCKER_HOST");
        command.envs(failpoint.map(|point| ("DSTACK_SHIM_FAILPOINT", point)));
        command.envs(self.docker_host.iter().map(|host| ("DOCKER_HOST", host)));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let client = ShimClient::new(Arc::new(UnixConnector { path: socket.clone() }));
        let mut agent = Agent { child, client };
        agent.wait_ready(&self.path("shim.log")).await;
        agent
    }

    /// Waits until no task has a directory: what is left of a removed one is deleted in the background, its directory last.
    pub(crate) async fn until_no_task_dirs(&self) {
        let runners = self.path("runners");
        let emptied = until_empty(&runners);
        tokio::time::timeout(Duration::from_secs(30), emptied)
            .await
            .unwrap_or_else(|_| panic!("left: {:?}", self.task_dirs()));
    }

    pub(crate) fn task_dirs(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = fs_err::read_dir(self.path("runners"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        dirs.sort();
        dirs
    }

    /// How often the task's runner was started, over all restarts of the agent.
    pub(crate) fn starts(&self, info: &TaskInfo) -> usize {
        let path = self
            .path("runners")
            .join(&info.container_name)
            .join("runner/starts");
        fs_err::read_to_string(path).unwrap_or_default().lines().count()
    }

    /// Lets the runner end with an exit code. It opens the FIFO when it gets there: the write waits for it.
    pub(crate) async fn finish(&self, info: &TaskInfo, code: i32) {
        let path = self.path("runners").join(&info.container_name).join("runner/go");
        let write = move || fs_err::write(path, format!("{code}\n")).unwrap();
        dstack_system::task::blocking("finish", write).await.unwrap();
    }
}

/// A host agent as a process; killed when dropped.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) client: ShimClient,
}

impl Agent {
    /// There is no event for a socket that answers in another process; a failed start ends the wait.
    async fn wait_ready(&mut self, log: &Path) {
        for _ in 0..2000 {
            match self.client.healthcheck().await {
                Ok(_) => return,
                // It wants a token.
                Err(error) if error.status().is_some() => return,
                Err(_) => {}
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                if !status.success() && std::os::unix::process::ExitStatusExt::signal(&status) != Some(9) {
                    panic!(
                        "the agent ended with {status}:\n{}",
                        fs_err::read_to_string(log).unwrap_or_default()
                    );
                }
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the agent does not answer");
    }

    /// Ends a task, and forgets it.
    pub(crate) async fn end(&self, id: &str) {
        self.client
            .terminate(id, &TaskTerminate::default())
            .await
            .unwrap();
        self.client.remove(id).await.unwrap();
    }

    /// kill -9.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the failpoint has killed it.
    pub(crate) async fn died(mut self) {
        for _ in 0..6000 {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the failpoint was not reached");
    }

    /// Waits, through the stream, until the task is as wanted.
    pub(crate) async fn until(&self, id: &str, wanted: impl Fn(&TaskInfo) -> bool) -> TaskInfo {
        let mut stream = self.client.stream().await.unwrap();
        loop {
            match stream.next().await.unwrap().expect("the stream ended") {
                StreamEvent::Task(info) if info.id == id && wanted(&info) => return info,
                StreamEvent::Task(info) if info.id == id && info.status == TaskStatus::Terminated => {
                    panic!("ended too early: {info:?}")
                }
                _ => {}
            }
        }
    }

    pub(crate) async fn until_status(&self, id: &str, status: TaskStatus) -> TaskInfo {
        self.until(id, |info| {
            info.status == status && (status != TaskStatus::Running || info.ports.is_some())
        })
        .await
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn config(id: &str) -> TaskConfig {
    TaskConfig {
        id: id.into(),
        name: format!("run-{id}"),
        image_name: "dstack-test/busybox:1".into(),
        ..TaskConfig::default()
    }
}

/// The kernel says when something in it is deleted.
async fn until_empty(folder: &Path) {
    let inotify = Inotify::init().unwrap();
    inotify.watches().add(folder, WatchMask::DELETE).unwrap();
    let mut deletions = inotify.into_event_stream([0; 4096]).unwrap();
    while fs_err::read_dir(folder).unwrap().next().is_some() {
        deletions.next().await.unwrap().unwrap();
    }
}

/// Whether a process of this host lives.
pub(crate) fn alive(pid: &str) -> bool {
    let stat = fs_err::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// The status of a refused call.
pub(crate) fn status<T: std::fmt::Debug>(result: Result<T, CallError>) -> Option<u16> {
    result.unwrap_err().status().map(|status| status.as_u16())
}
