//! Tasks as plain processes of this host, for trying dstack on a machine without a container engine.
//!
//! Each task is a job agent below a supervisor (`dstack-agent supervise`), which takes the place of a container: it
//! lives in a session of its own, outlives the host agent, collects every descendant and writes down the exit code.
//! Everything known about it is in the task's directory, so that a restarted host agent finds it again.

mod files;
mod notices;
mod procfs;
pub mod supervisor;
mod wait;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::shim::{PortMapping, TaskConfig};
use dstack_system::task;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::Notify;

use super::{
    Container, ContainerState, ProgressSink, RunnerSettings, Runtime, RuntimeError, Spec, key_arguments,
    token_variable,
};
use crate::gpu::Vendor;
pub(crate) use files::LAUNCH_FILE;
use files::{Launch, TaskFiles};
pub use notices::notices;
use wait::ProcessHandle;

/// The name of this runtime.
pub const PROCESS: &str = "process";

/// After this the supervisor itself is killed.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Variables of the host agent that jobs see. Not all of them: a server's secrets may be among them.
const ENV: [&str; 24] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TERM",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "CUDA_HOME",
    "CUDA_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "NVIDIA_DRIVER_CAPABILITIES",
];

/// Runs tasks on the host itself.
pub struct ProcessRuntime {
    root: PathBuf,
    settings: ProcessSettings,
    wake: Arc<Notify>,
    watched: Arc<Mutex<HashSet<String>>>,
}

/// How processes are started.
#[derive(Debug, Clone)]
pub struct ProcessSettings {
    /// The binary that understands `supervise DIR`.
    pub agent: PathBuf,
    /// The job agent and what comes before its own arguments (`dstack-agent runner`).
    pub runner_command: Vec<String>,
    /// Ports as the server knows them, log levels.
    pub runner: RunnerSettings,
    /// Variables copied into every task.
    pub pass_env: Vec<(String, String)>,
    /// Whose GPUs the host has.
    pub vendor: Vendor,
}

impl ProcessRuntime {
    /// `root`: where the task directories are.
    pub fn new(root: PathBuf, settings: ProcessSettings) -> Self {
        Self {
            root,
            settings,
            wake: Arc::default(),
            watched: Arc::default(),
        }
    }

    fn files(&self, id: &str) -> TaskFiles {
        TaskFiles::new(self.root.join(id))
    }

    /// Wakes everybody once the task's supervisor has ended.
    fn watch_one(&self, id: &str) {
        let newly = self
            .watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id.to_owned());
        if !newly {
            return;
        }
        let (files, wake, watched, id) = (
            self.files(id),
            self.wake.clone(),
            self.watched.clone(),
            id.to_owned(),
        );
        task::spawn("process task exit", async move {
            if let Some(process) = files
                .identity()
                .and_then(|identity| ProcessHandle::open(&identity))
            {
                process.exited().await;
            }
            watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            wake.notify_one();
        });
    }

    fn container(&self, id: &str) -> Option<Container> {
        let files = self.files(id);
        let launch = files.launch()?;
        let identity = files.identity()?;
        let state = match files.exit_code() {
            Some(code) => ContainerState::Exited(code),
            None if procfs::is_alive(&identity) => ContainerState::Running,
            // It may have written its exit code and ended between the two looks; else it was killed.
            None => ContainerState::Exited(files.exit_code().unwrap_or(137)),
        };
        let ports = files.ports().map(|ports| self.mapping(ports));
        Some(Container {
            id: id.to_owned(),
            name: id.to_owned(),
            task_id: launch.task_id,
            state,
            gpus: launch.gpus,
            ports,
            volumes: Vec::new(),
        })
    }

    fn mapping(&self, ports: files::Ports) -> Vec<PortMapping> {
        vec![
            PortMapping {
                host: ports.ssh,
                container: self.settings.runner.ssh_port,
            },
            PortMapping {
                host: ports.http,
                container: self.settings.runner.http_port,
            },
        ]
    }

    fn launch(&self, spec: &Spec<'_>) -> Launch {
        let files = TaskFiles::new(spec.dir.to_owned());
        let runner = &self.settings.runner;
        let mut argv = self.settings.runner_command.clone();
        argv.extend([
            "--log-level".to_owned(),
            runner.log_level.clone(),
            "start".to_owned(),
        ]);
        for (flag, value) in [
            (
                "--temp-dir",
                spec.dir.join("runner").to_string_lossy().into_owned(),
            ),
            (
                "--state-dir",
                spec.dir.join("state").to_string_lossy().into_owned(),
            ),
            ("--http-address", "127.0.0.1".to_owned()),
            ("--http-port", "0".to_owned()),
            ("--ssh-port", "0".to_owned()),
            ("--port-file", files.ports_path().to_string_lossy().into_owned()),
        ] {
            argv.extend([flag.to_owned(), value]);
        }
        argv.push("--no-profile".to_owned());
        for notice in notices(spec.config) {
            argv.extend(["--notice".to_owned(), notice]);
        }
        argv.extend(key_arguments(&spec.config.container_ssh_keys));
        if let Some(level) = &runner.ssh_log_level {
            argv.extend(["--ssh-log-level".to_owned(), level.clone()]);
        }
        Launch {
            task_id: spec.config.id.clone(),
            argv,
            env: self.env(spec),
            gpus: spec.gpus.to_vec(),
        }
    }

    fn env(&self, spec: &Spec<'_>) -> Vec<(String, String)> {
        let mut env: Vec<(String, String)> = ENV
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), dstack_system::env::var(name)?)))
            .collect();
        env.extend(self.settings.pass_env.iter().cloned());
        env.extend(token_variable(spec.config));
        // Not isolation, but frameworks honour it: two jobs do not share what only one may have.
        let list = spec.gpus.join(",");
        match self.settings.vendor {
            Vendor::None | Vendor::Tenstorrent => {}
            Vendor::Nvidia => env.push(("CUDA_VISIBLE_DEVICES".to_owned(), list)),
            Vendor::Amd => {}
            Vendor::Intel => env.push(("HABANA_VISIBLE_DEVICES".to_owned(), list)),
        }
        env
    }
}

#[async_trait]
impl Runtime for ProcessRuntime {
    fn name(&self) -> &'static str {
        PROCESS
    }

    fn notices(&self) -> Vec<String> {
        vec![
            "No container engine: tasks run directly on this host. Images, users, volumes, CPU and memory limits are ignored."
                .to_owned(),
        ]
    }

    fn storage(&self) -> &Path {
        &self.root
    }

    async fn list(&self) -> Result<Vec<Container>, RuntimeError> {
        let entries = match fs_err::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(RuntimeError::io("cannot list task directories", error)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let found: Vec<Container> = names
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| self.container(&name))
            .collect();
        for container in &found {
            if container.state == ContainerState::Running {
                self.watch_one(&container.id);
            }
        }
        Ok(found)
    }

    async fn inspect(&self, id: &str) -> Result<Option<Container>, RuntimeError> {
        Ok(self.container(id))
    }

    async fn has_image(&self, _config: &TaskConfig) -> bool {
        true
    }

    async fn pull(
        &self,
        _config: &TaskConfig,
        _log: &Path,
        _progress: ProgressSink<'_>,
    ) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn create(&self, spec: &Spec<'_>) -> Result<String, RuntimeError> {
        let files = TaskFiles::new(spec.dir.to_owned());
        files
            .save_launch(&self.launch(spec))
            .map_err(|error| RuntimeError::io("cannot write the task's launch file", error))?;
        Ok(files.name())
    }

    async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        let files = self.files(id);
        let what = |text: &str| format!("cannot start the task's supervisor: {text}");
        let mut child = tokio::process::Command::new(&self.settings.agent)
            .arg("supervise")
            .arg(files.dir())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| RuntimeError::io(what("not executable"), error))?;
        let Some(stdout) = child.stdout.take() else {
            return Err(RuntimeError::Other(what("no pipe")));
        };
        // "ready" once it has written who it is. Dropping the child leaves it running; tokio collects it later.
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line).await;
        read.map_err(|error| RuntimeError::io(what("it does not answer"), error))?;
        match line.trim() {
            // "taken": one that an earlier host agent started runs already.
            "ready" | "taken" => {
                self.watch_one(id);
                Ok(())
            }
            "" => Err(RuntimeError::Other(what("it ended at once"))),
            other => Err(RuntimeError::Other(what(other))),
        }
    }

    async fn ports(&self, id: &str) -> Result<Vec<PortMapping>, RuntimeError> {
        let files = self.files(id);
        let process = files
            .identity()
            .and_then(|identity| ProcessHandle::open(&identity));
        let path = files.ports_path();
        let appeared = wait::for_file(&path, || files.ports());
        let ended = async {
            if let Some(process) = &process {
                process.exited().await;
            }
        };
        tokio::select! {
            biased;
            ports = appeared => ports
                .map(|ports| self.mapping(ports))
                .map_err(|error| RuntimeError::io("cannot wait for the runner's ports", error)),
            // It ended before listening: the exit code tells why, the ports do not matter.
            () = ended => Ok(files.ports().map(|ports| self.mapping(ports)).unwrap_or_default()),
        }
    }

    async fn stop(&self, id: &str, timeout: Duration) -> Result<(), RuntimeError> {
        let Some(identity) = self.files(id).identity() else {
            return Ok(());
        };
        let Some(process) = ProcessHandle::open(&identity) else {
            return Ok(());
        };
        if !timeout.is_zero() {
            process.signal(rustix::process::Signal::TERM);
            if tokio::time::timeout(timeout, process.exited()).await.is_ok() {
                return Ok(());
            }
        }
        // The supervisor kills everything below it and ends.
        process.signal(rustix::process::Signal::USR1);
        if tokio::time::timeout(KILL_LIMIT, process.exited()).await.is_ok() {
            return Ok(());
        }
        tracing::warn!(
            task.container = id,
            "the supervisor does not answer: killing its processes one by one"
        );
        procfs::kill_tree(identity.pid);
        tokio::time::timeout(KILL_LIMIT, process.exited())
            .await
            .map_err(|_| RuntimeError::Other("the task's processes cannot be killed".to_owned()))
    }

    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        self.stop(id, Duration::ZERO).await
    }

    async fn last_lines(&self, id: &str, count: usize) -> Vec<String> {
        super::tail(&self.files(id).output_end(), count)
    }

    async fn watch(&self, wake: Arc<Notify>) {
        loop {
            self.wake.notified().await;
            wake.notify_one();
        }
    }
}
