//! Containers through the Docker Engine API.

pub mod config;
mod engine;
pub mod image;
mod init;
mod inspect;
mod pull;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, EventsOptionsBuilder, InspectContainerOptions,
    ListContainersOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
    StopContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use dstack_agent_api::shim::{PortMapping, TaskConfig};
use futures_util::StreamExt as _;
use tokio::sync::{Notify, Semaphore};

use super::{Container, ProgressSink, RunnerSettings, Runtime, RuntimeError, Spec};
use crate::gpu::Vendor;
use config::{HostDevices, LABEL_IS_TASK, LABEL_TASK_ID, RunnerKind};
pub(crate) use engine::DEFAULT_SOCKET;
use engine::Engine;
use init::Init;

/// The name of this runtime.
pub const DOCKER: &str = "docker";
/// A killed process may be in the kernel for so long before the engine is asked to see to it.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// From the end of one stream of events to the next.
const EVENTS_PAUSE: Duration = Duration::from_millis(250);
/// Concurrent pulls beyond this only slow each other down.
const PULLS: usize = 3;

/// Runs tasks in containers. The engine may be away, at first or later: it is connected to when it is needed.
pub struct DockerRuntime {
    engine: Engine,
    settings: DockerSettings,
    pulls: Semaphore,
    // By path and modification time of the runner's file: it may be replaced while we run.
    runner_kind: Mutex<Option<((PathBuf, i64), RunnerKind)>>,
    // Of containers that ran when they were last looked at, by id.
    inits: Mutex<HashMap<String, Arc<Init>>>,
}

/// How containers are made on this host.
#[derive(Debug, Clone)]
pub struct DockerSettings {
    /// The job agent.
    pub runner: RunnerSettings,
    /// Variables copied into every container.
    pub pass_env: Vec<(String, String)>,
    /// Every container is privileged.
    pub privileged: bool,
    /// Value of `PJRT_DEVICE` for containers (TPU).
    pub pjrt_device: Option<String>,
    /// Whose GPUs the host has.
    pub vendor: Vendor,
    /// Where the task directories are: tells our containers from other agents'.
    pub root: PathBuf,
}

impl DockerRuntime {
    /// For the engine at `host` (`DOCKER_HOST`'s form) or the usual socket.
    pub fn new(host: Option<&str>, settings: DockerSettings) -> Self {
        Self {
            engine: Engine::at(host),
            settings,
            pulls: Semaphore::new(PULLS),
            runner_kind: Mutex::default(),
            inits: Mutex::default(),
        }
    }

    /// Fails unless the engine answers now.
    pub async fn connect(&self) -> Result<(), RuntimeError> {
        self.engine.docker().await.map(drop)
    }

    async fn runner_kind(&self) -> RunnerKind {
        let path = self.settings.runner.binary.clone();
        let modified = fs_err::metadata(&path).map_or(0, |meta| std::os::unix::fs::MetadataExt::mtime(&meta));
        let key = (path.clone(), modified);
        if let Some((known, kind)) = &*lock(&self.runner_kind)
            && *known == key
        {
            return *kind;
        }
        let kind = RunnerKind::of(&path).await;
        *lock(&self.runner_kind) = Some((key, kind));
        kind
    }

    async fn create_once(&self, docker: &Docker, spec: &Spec<'_>) -> Result<String, Error> {
        let body = config::container(
            spec,
            &self.settings,
            self.runner_kind().await,
            &HostDevices::detect(),
        );
        let options = CreateContainerOptionsBuilder::new().name(spec.name).build();
        Ok(docker.create_container(Some(options), body).await?.id)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// 304: already so. 404: gone.
fn done_already(result: Result<(), Error>) -> Result<(), Error> {
    result.or_else(|error| {
        if matches!(status(&error), Some(304 | 404)) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

#[async_trait]
impl Runtime for DockerRuntime {
    fn name(&self) -> &'static str {
        DOCKER
    }

    fn unavailable(&self) -> Option<String> {
        self.engine.away()
    }

    fn storage(&self) -> &Path {
        self.engine.root_dir()
    }

    async fn list(&self) -> Result<Vec<Container>, RuntimeError> {
        let filters = HashMap::from([("label", vec![format!("{LABEL_IS_TASK}=true")])]);
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&filters)
            .build();
        let listed = self
            .engine
            .docker()
            .await?
            .list_containers(Some(options))
            .await
            .map_err(|error| RuntimeError::engine("cannot list containers", error))?;
        Ok(listed
            .into_iter()
            .filter_map(|row| inspect::summary(row, &self.settings.root))
            .collect())
    }

    async fn inspect(&self, id: &str) -> Result<Option<Container>, RuntimeError> {
        let docker = self.engine.docker().await?;
        match docker
            .inspect_container(id, None::<InspectContainerOptions>)
            .await
        {
            Ok(answer) => {
                let container = inspect::container(&answer, &self.settings.root);
                if let (Some(container), Some(pid)) = (&container, inspect::pid(&answer)) {
                    self.remember(&container.id, pid);
                }
                Ok(container)
            }
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(RuntimeError::engine("cannot inspect a container", error)),
        }
    }

    async fn has_image(&self, config: &TaskConfig) -> bool {
        let image = image::Reference::parse(&config.image_name);
        let Ok(docker) = self.engine.docker().await else {
            return false;
        };
        !image.is_latest() && docker.inspect_image(&image.full()).await.is_ok()
    }

    async fn pull(
        &self,
        config: &TaskConfig,
        log: &Path,
        progress: ProgressSink<'_>,
    ) -> Result<(), RuntimeError> {
        if self.has_image(config).await {
            return Ok(());
        }
        let _permit = self.pulls.acquire().await;
        pull::pull(self.engine.docker().await?, config, log, progress).await
    }

    async fn create(&self, spec: &Spec<'_>) -> Result<String, RuntimeError> {
        let docker = self.engine.docker().await?;
        let created = match self.create_once(docker, spec).await {
            Err(error) if status(&error) == Some(409) && is_leftover(docker, spec).await => {
                self.remove(spec.name).await?;
                self.create_once(docker, spec).await
            }
            other => other,
        };
        created.map_err(|error| RuntimeError::engine("cannot create the container", error))
    }

    async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        let docker = self.engine.docker().await?;
        let started = docker.start_container(id, None::<StartContainerOptions>).await;
        match started {
            Err(error) if status(&error) == Some(304) => Ok(()),
            other => other.map_err(|error| RuntimeError::engine("cannot start the container", error)),
        }
    }

    async fn ports(&self, id: &str) -> Result<Vec<PortMapping>, RuntimeError> {
        Ok(self
            .inspect(id)
            .await?
            .and_then(|container| container.ports)
            .unwrap_or_default())
    }

    async fn stop(&self, id: &str, timeout: Duration) -> Result<(), RuntimeError> {
        if self.is_over(id, timeout.is_zero()).await {
            return Ok(());
        }
        let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::new().t(seconds).build();
        // The engine answers only once the container has stopped.
        let limit = timeout + Duration::from_secs(120);
        let docker = self.engine.docker().await?.clone().with_timeout(limit);
        done_already(docker.stop_container(id, Some(options)).await)
            .map_err(|error| RuntimeError::engine("cannot stop the container", error))
    }

    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let docker = self.engine.docker().await?;
        let removed = match docker.remove_container(id, Some(options)).await {
            // Being removed already: what it holds is free once that is done.
            Err(error) if status(&error) == Some(409) => removed(docker, id).await,
            other => other,
        };
        done_already(removed).map_err(|error| RuntimeError::engine("cannot remove the container", error))?;
        lock(&self.inits).remove(id);
        Ok(())
    }

    async fn last_lines(&self, id: &str, count: usize) -> Vec<String> {
        let options = LogsOptionsBuilder::new()
            .stdout(true)
            .stderr(true)
            .tail(&count.to_string())
            .build();
        let Ok(docker) = self.engine.docker().await else {
            return Vec::new();
        };
        let mut text = Vec::new();
        let mut lines = docker.logs(id, Some(options));
        while let Some(Ok(line)) = lines.next().await {
            text.extend_from_slice(&line.into_bytes());
        }
        super::tail(&String::from_utf8_lossy(&text), count)
    }

    async fn watch(&self, wake: Arc<Notify>) {
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            ("event", vec!["die".to_owned(), "destroy".to_owned()]),
            ("label", vec![format!("{LABEL_IS_TASK}=true")]),
        ]);
        loop {
            let docker = self.engine.until_it_answers().await;
            let options = EventsOptionsBuilder::new().filters(&filters).build();
            let mut events = docker.events(Some(options));
            // Something may have ended while nobody listened.
            wake.notify_one();
            while let Some(event) = events.next().await {
                match event {
                    Ok(_) => wake.notify_one(),
                    Err(Error::RequestTimeoutError) => break,
                    Err(error) => {
                        tracing::warn!(error = %crate::error::chain(&error), "lost the engine's events");
                        break;
                    }
                }
            }
            tokio::time::sleep(EVENTS_PAUSE).await;
        }
    }

    fn is_display_failure(&self, error: &RuntimeError) -> bool {
        self.settings.vendor == Vendor::Nvidia && crate::error::chain(error).contains("/dev/nvidia-modeset")
    }
}

impl DockerRuntime {
    /// Keeps hold of a running container's first process.
    fn remember(&self, container: &str, pid: i32) {
        if lock(&self.inits).contains_key(container) {
            return;
        }
        if let Some(init) = Init::open(pid, container) {
            lock(&self.inits).insert(container.to_owned(), Arc::new(init));
        }
    }

    /// Whether nothing of a container runs, after it was killed if so wished. That needs no engine, which hears of the end
    /// from the kernel as we do; false: the engine has to see to it.
    async fn is_over(&self, container: &str, kill: bool) -> bool {
        let init = lock(&self.inits).get(container).cloned();
        let Some(init) = init else { return false };
        let limit = match kill {
            true if init.kill() => KILL_LIMIT,
            _ => Duration::ZERO,
        };
        tokio::time::timeout(limit, init.exited()).await.is_ok()
    }
}

/// Waits until whoever is removing the container has done so.
async fn removed(docker: &Docker, id: &str) -> Result<(), Error> {
    let options = WaitContainerOptionsBuilder::new().condition("removed").build();
    match docker.wait_container(id, Some(options)).next().await {
        // It says how the container ended, as an error unless well.
        Some(Err(
            Error::DockerContainerWaitError { .. }
            | Error::DockerResponseServerError { status_code: 404, .. },
        )) => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// Whether a container of that name belongs to this task, whoever made it.
async fn is_leftover(docker: &Docker, spec: &Spec<'_>) -> bool {
    let found = docker
        .inspect_container(spec.name, None::<InspectContainerOptions>)
        .await;
    let labels = found.ok().and_then(|found| found.config?.labels);
    task_label(labels.as_ref()).as_deref() == Some(spec.config.id.as_str())
}

/// The label of a container's task.
pub(crate) fn task_label(labels: Option<&HashMap<String, String>>) -> Option<String> {
    let labels = labels?;
    (labels.get(LABEL_IS_TASK).map(String::as_str) == Some("true"))
        .then(|| labels.get(LABEL_TASK_ID).cloned())?
}
