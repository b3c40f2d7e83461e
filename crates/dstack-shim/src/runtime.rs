//! What runs tasks: a container engine, or the host itself.

pub mod docker;
mod pollable;
pub mod process;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::runner::TOKEN_VARIABLE;
use dstack_agent_api::shim::{ImagePullProgress, PortMapping, TaskConfig};
use tokio::sync::Notify;

/// Why the runtime could not do it. `Display` is one sentence; causes are in `source`.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The engine refused or does not answer.
    #[error("{what}")]
    Engine {
        /// What was tried.
        what: String,
        /// What the engine said.
        #[source]
        source: bollard::errors::Error,
    },
    /// An image pull failed; the text says how far it came.
    #[error("{0}")]
    Pull(String),
    /// A file of the task.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Something that cannot be.
    #[error("{0}")]
    Other(String),
}

impl RuntimeError {
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    pub(crate) fn engine(what: impl Into<String>, source: bollard::errors::Error) -> Self {
        Self::Engine {
            what: what.into(),
            source,
        }
    }
}

/// What a task's container is made from.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// The task, as it was submitted.
    pub config: &'a TaskConfig,
    /// The container's name.
    pub name: &'a str,
    /// The task's private directory.
    pub dir: &'a Path,
    /// Locked GPUs' ids.
    pub gpus: &'a [String],
    /// NVIDIA only: ask for the `display` capability, which hosts without a modeset device refuse.
    pub display: bool,
}

/// Where a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    /// Made, but never started.
    Created,
    /// Running, paused or restarting.
    Running,
    /// Over, with an exit code.
    Exited(i64),
}

/// A container of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// Without a leading slash.
    pub name: String,
    /// The task it belongs to.
    pub task_id: String,
    /// Whether it runs, and how it ended.
    pub state: ContainerState,
    /// GPUs it was given, as lock ids.
    pub gpus: Vec<String>,
    /// `None`: not known yet.
    pub ports: Option<Vec<PortMapping>>,
    /// Names of the mount points of network volumes that are mounted into it.
    pub volumes: Vec<String>,
}

/// Receives pull progress.
pub type ProgressSink<'a> = &'a (dyn Fn(ImagePullProgress) + Send + Sync);

/// A container runtime. All operations may be repeated: what is done already is fine.
#[async_trait]
pub trait Runtime: Send + Sync {
    /// [`docker::DOCKER`] or [`process::PROCESS`].
    fn name(&self) -> &'static str;

    /// What this runtime does not honour, for people.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why it can do nothing now, as far as is known; it will be able to again by itself.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Where images or task directories are kept: its free space is the host's disk size.
    fn storage(&self) -> &Path;

    /// All containers of ours, running or not, without `gpus`, `ports` and `volumes`.
    async fn list(&self) -> Result<Vec<Container>, RuntimeError>;

    /// One container in full; `None` when it is gone.
    async fn inspect(&self, id: &str) -> Result<Option<Container>, RuntimeError>;

    /// Whether the task can start without reaching a registry.
    async fn has_image(&self, config: &TaskConfig) -> bool;

    /// Makes the image available. Dropping the future cancels the pull. `log` receives the engine's own lines.
    async fn pull(
        &self,
        config: &TaskConfig,
        log: &Path,
        progress: ProgressSink<'_>,
    ) -> Result<(), RuntimeError>;

    /// Creates the container and returns its id; one left by an interrupted attempt is replaced.
    async fn create(&self, spec: &Spec<'_>) -> Result<String, RuntimeError>;

    /// Starts the container.
    async fn start(&self, id: &str) -> Result<(), RuntimeError>;

    /// Its ports, as soon as they are known. Empty: the host's own ports.
    async fn ports(&self, id: &str) -> Result<Vec<PortMapping>, RuntimeError>;

    /// Ends it: TERM, and KILL after `timeout`. Gone or stopped is fine.
    async fn stop(&self, id: &str, timeout: Duration) -> Result<(), RuntimeError>;

    /// Removes it by id or name, killing it if need be. Gone is fine.
    async fn remove(&self, id: &str) -> Result<(), RuntimeError>;

    /// The last lines of its output.
    async fn last_lines(&self, id: &str, count: usize) -> Vec<String>;

    /// Notifies `wake` whenever a container may have ended. Runs for ever.
    async fn watch(&self, wake: Arc<Notify>);

    /// Whether it is worth creating the container again without the `display` capability after this failure.
    fn is_display_failure(&self, _error: &RuntimeError) -> bool {
        false
    }
}

/// How the job agent is started in a task.
#[derive(Debug, Clone)]
pub struct RunnerSettings {
    /// The binary on the host.
    pub binary: PathBuf,
    /// Its API's port in the container.
    pub http_port: u16,
    /// Its SSH port in the container.
    pub ssh_port: u16,
    /// Value of the runner's `--log-level`.
    pub log_level: String,
    /// `--ssh-log-level`, when set.
    pub ssh_log_level: Option<String>,
}

/// The variable that tells the task's runner its token, if the task has one.
pub(crate) fn token_variable(config: &TaskConfig) -> Option<(String, String)> {
    let token = config.runner_token.expose();
    (!token.is_empty()).then(|| (TOKEN_VARIABLE.to_owned(), token.to_owned()))
}

/// `--ssh-authorized-key` for every valid key.
pub(crate) fn key_arguments(keys: &[String]) -> Vec<String> {
    keys.iter()
        .filter_map(|key| {
            let normal = crate::keys::normalize(key);
            if normal.is_none() {
                tracing::warn!("a container SSH key is not a plain public key: ignored");
            }
            normal
        })
        .flat_map(|key| ["--ssh-authorized-key".to_owned(), key])
        .collect()
}

/// The last `count` lines of a text.
pub(crate) fn tail(text: &str, count: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    lines
        .into_iter()
        .skip(from)
        .map(|line| line.trim_end().to_owned())
        .collect()
}
