//! A container engine in memory, and an agent on a socket.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::http::TcpConnector;
use dstack_agent_api::shim::{
    HostReport, ImagePullProgress, InstanceInfo, PortMapping, StreamEvent, TaskConfig, TaskInfo,
};
use dstack_agent_api::shim_client::{ShimClient, TaskStream};
use dstack_shim::api::{Api, router};
use dstack_shim::components::Components;
use dstack_shim::gpu::GpuLock;
use dstack_shim::keys::HostKeys;
use dstack_shim::runtime::{Container, ContainerState, ProgressSink, Runtime, RuntimeError, Spec};
use dstack_shim::self_termination::Needed;
use dstack_shim::store::Store;
use dstack_shim::tasks::{Host, Tasks};
use dstack_shim::volumes::HostDisks;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

/// Containers in memory. Outlives agents, as an engine does.
pub(crate) struct FakeRuntime {
    pub(crate) containers: Mutex<HashMap<String, Container>>,
    /// A pull takes one permit.
    pub(crate) pulls: Semaphore,
    pub(crate) pull_error: Mutex<Option<String>>,
    pub(crate) start_error: Mutex<Option<String>>,
    pub(crate) stop_error: Mutex<Option<String>>,
    pub(crate) list_error: Mutex<Option<String>>,
    pub(crate) unavailable: Mutex<Option<String>>,
    pub(crate) calls: Mutex<Vec<String>>,
    wake: Notify,
    removed: Notify,
    /// A removal takes one permit.
    removals: Semaphore,
    pub(crate) remove_error: Mutex<Option<String>>,
    storage: PathBuf,
}

impl FakeRuntime {
    pub(crate) fn new(storage: &Path) -> Arc<Self> {
        Arc::new(Self {
            containers: Mutex::default(),
            pulls: Semaphore::new(1000),
            pull_error: Mutex::default(),
            start_error: Mutex::default(),
            stop_error: Mutex::default(),
            list_error: Mutex::default(),
            unavailable: Mutex::default(),
            calls: Mutex::default(),
            wake: Notify::new(),
            removed: Notify::new(),
            removals: Semaphore::new(1000),
            remove_error: Mutex::default(),
            storage: storage.to_owned(),
        })
    }

    /// Removals wait from now on.
    pub(crate) fn hold_removals(&self) {
        self.removals.forget_permits(1000);
    }

    /// The same containers in an engine that is not hindered.
    pub(crate) fn without_holds(&self) -> Arc<Self> {
        let runtime = Self::new(&self.storage);
        *runtime.containers.lock().unwrap() = self.containers.lock().unwrap().clone();
        runtime
    }

    /// Waits until no container is left.
    pub(crate) async fn until_empty(&self) {
        self.until(HashMap::is_empty).await;
    }

    /// Waits until this one is not there any more.
    pub(crate) async fn until_gone(&self, id: &str) {
        self.until(|containers| !containers.contains_key(id)).await;
    }

    async fn until(&self, wanted: impl Fn(&HashMap<String, Container>) -> bool) {
        loop {
            let removed = self.removed.notified();
            if wanted(&self.containers.lock().unwrap()) {
                return;
            }
            removed.await;
        }
    }

    fn call(&self, what: &str, id: &str) {
        self.calls.lock().unwrap().push(format!("{what} {id}"));
    }

    pub(crate) fn called(&self, what: &str) -> usize {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|call| call.starts_with(what))
            .count()
    }

    /// The container's program ends.
    pub(crate) fn exit(&self, id: &str, code: i64) {
        self.containers.lock().unwrap().get_mut(id).unwrap().state = ContainerState::Exited(code);
        self.wake.notify_one();
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn unavailable(&self) -> Option<String> {
        self.unavailable.lock().unwrap().clone()
    }
    fn storage(&self) -> &Path {
        &self.storage
    }
    async fn list(&self) -> Result<Vec<Container>, RuntimeError> {
        if let Some(error) = self.list_error.lock().unwrap().clone() {
            return Err(RuntimeError::Other(error));
        }
        Ok(self.containers.lock().unwrap().values().cloned().collect())
    }
    async fn inspect(&self, id: &str) -> Result<Option<Container>, RuntimeError> {
        Ok(self.containers.lock().unwrap().get(id).cloned())
    }
    async fn has_image(&self, _config: &TaskConfig) -> bool {
        false
    }
    async fn pull(
        &self,
        config: &TaskConfig,
        _log: &Path,
        progress: ProgressSink<'_>,
    ) -> Result<(), RuntimeError> {
        progress(ImagePullProgress {
            downloaded_bytes: 1,
            total_bytes: 2,
            ..ImagePullProgress::default()
        });
        self.call("pull", &config.image_name);
        self.pulls.acquire().await.unwrap().forget();
        match self.pull_error.lock().unwrap().clone() {
            Some(error) => Err(RuntimeError::Pull(error)),
            None => Ok(()),
        }
    }
    async fn create(&self, spec: &Spec<'_>) -> Result<String, RuntimeError> {
        let id = format!("c-{}", spec.name);
        self.call("create", &id);
        let container = Container {
            id: id.clone(),
            name: spec.name.to_owned(),
            task_id: spec.config.id.clone(),
            state: ContainerState::Created,
            gpus: spec.gpus.to_vec(),
            ports: Some(vec![PortMapping {
                host: 32768,
                container: 10999,
            }]),
            volumes: vec![],
        };
        self.containers.lock().unwrap().insert(id.clone(), container);
        Ok(id)
    }
    async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        self.call("start", id);
        if let Some(error) = self.start_error.lock().unwrap().clone() {
            return Err(RuntimeError::Other(error));
        }
        self.containers.lock().unwrap().get_mut(id).unwrap().state = ContainerState::Running;
        Ok(())
    }
    async fn ports(&self, id: &str) -> Result<Vec<PortMapping>, RuntimeError> {
        Ok(self.containers.lock().unwrap()[id].ports.clone().unwrap())
    }
    async fn stop(&self, id: &str, timeout: Duration) -> Result<(), RuntimeError> {
        self.call(&format!("stop {}", timeout.as_secs()), id);
        if let Some(error) = self.stop_error.lock().unwrap().take() {
            return Err(RuntimeError::Other(error));
        }
        if let Some(container) = self.containers.lock().unwrap().get_mut(id)
            && container.state == ContainerState::Running
        {
            container.state = ContainerState::Exited(137);
        }
        Ok(())
    }
    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        self.call("remove", id);
        self.removals.acquire().await.unwrap().forget();
        if let Some(error) = self.remove_error.lock().unwrap().take() {
            return Err(RuntimeError::Other(error));
        }
        self.containers.lock().unwrap().remove(id);
        self.removed.notify_waiters();
        Ok(())
    }
    async fn last_lines(&self, _id: &str, _count: usize) -> Vec<String> {
        vec!["one".into(), "two".into()]
    }
    async fn watch(&self, wake: Arc<Notify>) {
        loop {
            self.wake.notified().await;
            wake.notify_one();
        }
    }
}

/// A running agent.
pub(crate) struct Agent {
    pub(crate) client: ShimClient,
    pub(crate) tasks: Tasks,
    pub(crate) url: String,
    pub(crate) shutdown: CancellationToken,
    pub(crate) force: CancellationToken,
    server: tokio::task::JoinHandle<Option<()>>,
    watching: tokio::task::JoinHandle<Option<()>>,
}

impl Agent {
    /// With two GPUs, `g0` and `g1`.
    pub(crate) async fn start(home: &Path, runtime: Arc<FakeRuntime>) -> Self {
        let agent = Self::start_waiting(home, runtime).await;
        agent.tasks.restored().await;
        agent
    }

    /// Whose engine may not answer yet.
    pub(crate) async fn start_waiting(home: &Path, runtime: Arc<FakeRuntime>) -> Self {
        let tasks = Tasks::new(Host {
            runtime,
            store: Store::new(home),
            gpus: GpuLock::new(vec!["g0".into(), "g1".into()]),
            keys: HostKeys::with_passwd(home.join("passwd")),
            disks: Arc::new(HostDisks::default()),
        });
        let (shutdown, force) = (CancellationToken::new(), CancellationToken::new());
        let api = Arc::new(Api {
            gate: None,
            needed: Needed::default(),
            tasks: tasks.clone(),
            components: Components::new(home.join("runner"), home.join("shim")),
            instance: InstanceInfo {
                gpu_vendor: "nvidia".into(),
                gpu_driver_version: "570".into(),
            },
            host: HostReport {
                runtime: "fake".into(),
                ..HostReport::default()
            },
            exporter: None,
            shutdown: shutdown.clone(),
            force: force.clone(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ended = shutdown.clone();
        let server = dstack_system::task::spawn("server", async move {
            axum::serve(listener, router(api))
                .with_graceful_shutdown(ended.cancelled_owned())
                .await
                .unwrap();
        });
        let watched = tasks.clone();
        let watching = dstack_system::task::spawn("watch", async move {
            watched.restore_when_available().await;
            watched.watch().await;
        });
        Self {
            client: ShimClient::new(Arc::new(TcpConnector { address })),
            tasks,
            url: address.to_string(),
            shutdown,
            force,
            server,
            watching,
        }
    }

    /// Ends without any good-bye to its tasks.
    pub(crate) async fn kill(self) {
        self.server.abort();
        self.watching.abort();
        let _ = self.server.await;
    }

    /// Waits, through the stream, until the task is as wanted.
    pub(crate) async fn until(&self, id: &str, wanted: impl Fn(&TaskInfo) -> bool) -> TaskInfo {
        let mut stream: TaskStream = self.client.stream().await.unwrap();
        loop {
            match stream.next().await.unwrap().expect("the stream ended") {
                StreamEvent::Task(info) if info.id == id && wanted(&info) => return info,
                _ => {}
            }
        }
    }
}

pub(crate) fn config(id: &str) -> TaskConfig {
    TaskConfig {
        id: id.into(),
        name: format!("run-{id}"),
        image_name: "ubuntu:24.04".into(),
        ..TaskConfig::default()
    }
}
