//! How the server runs, and how its engine is started.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use dstack_compute::{Backends, Registry};
use dstack_engine::Identity;
use dstack_images::Images;
use dstack_proxy::models::Renderer;
use dstack_store::queries::projects::ProjectRow;
use dstack_system::clock::SharedClock;
use dstack_system::{Random, SystemClock};
use dstack_telemetry::Telemetry;
use dstack_units::InstallationId;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config_backends::rounds::Waits;
use crate::doctor::BackendFiles;
use crate::images::UnknownImages;
use crate::job_maker::JobMaker;
use crate::services::ServiceRoutes;
use crate::settings::Settings;
use crate::site::Site;
use crate::state::{Data, EngineParts};

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What the engine is started with.
#[derive(Debug, Clone)]
pub struct EngineContext {
    /// Who this server is; `None`: one that has the same directory runs already.
    pub identity: Option<Identity>,
    /// Rows, output, uploads, time and randomness.
    pub data: Arc<Data>,
    /// Environment and flags.
    pub settings: Settings,
    /// Makes jobs that run in containers; see [`JobMaker::on`].
    pub jobs: JobMaker,
    /// Clouds that projects have configured, by project.
    pub backends: Arc<dyn Backends>,
    /// Passes requests on to services.
    pub services: ServiceRoutes,
    /// The project that the server's own machine belongs to.
    pub project: ProjectRow,
    /// All servers on this database.
    pub installation: InstallationId,
}

/// Called once when the server stops.
pub type StopEngine = Box<dyn FnOnce() -> BoxFuture<()> + Send>;

/// A running engine.
pub struct StartedEngine {
    /// What verbs get from it.
    pub parts: EngineParts,
    /// Called once when the server stops.
    pub stop: StopEngine,
}

/// Starts the engine.
pub type EngineStart = Box<
    dyn FnOnce(EngineContext) -> BoxFuture<Result<StartedEngine, Box<dyn std::error::Error + Send + Sync>>>
        + Send,
>;

/// How the server runs.
pub struct ServerOptions {
    /// Environment and flags.
    pub settings: Settings,
    /// Dates rows and events, and ends tokens.
    pub clock: SharedClock,
    /// Ids, tokens and keys.
    pub random: Random,
    /// Home directory of the CLI's configuration; `None`: it is not touched.
    pub home: Option<PathBuf>,
    /// Starts the engine; `None`: the API only.
    pub start_engine: Option<EngineStart>,
    /// Threads for what changes things; `None`: the same as for everything else.
    pub workers: Option<Handle>,
    /// Kinds of clouds that can be configured.
    pub registry: Registry,
    /// The files that describe backends, some of which may be left out.
    pub backend_files: BackendFiles,
    /// Told which installation this server is of, once the database is open.
    pub installation: Arc<OnceLock<InstallationId>>,
    /// How long is waited for the backends of config.yml.
    pub config_waits: Waits,
    /// What images say of themselves.
    pub images: Arc<dyn Images>,
    /// Makes prompts of chat templates.
    pub prompts: Renderer,
    /// What is sent to OpenTelemetry and Sentry.
    pub telemetry: Telemetry,
    /// The web page.
    pub site: Site,
    /// Told the address once the server answers.
    pub ready: Option<oneshot::Sender<SocketAddr>>,
    /// Stops the server, as SIGTERM and Ctrl-C do.
    pub stop: CancellationToken,
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl ServerOptions {
    /// As the environment says, without an engine.
    pub fn from_env() -> Self {
        Self {
            settings: Settings::from_env(),
            clock: Arc::new(SystemClock),
            random: Random::system(),
            home: dstack_system::env::home(),
            start_engine: None,
            workers: None,
            registry: Registry::default(),
            backend_files: BackendFiles::default(),
            installation: Arc::default(),
            config_waits: Waits::default(),
            images: Arc::new(UnknownImages),
            prompts: Renderer::new("", []),
            telemetry: Telemetry::default(),
            site: Site::default(),
            ready: None,
            stop: CancellationToken::new(),
        }
    }
}
