//! From an empty directory to a serving process.

mod bootstrap;
pub(crate) mod directory;
mod identity;
mod listening;
mod reload;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dstack_compute::{Backends, Registry};
use dstack_control::ControlError;
use dstack_engine::Identity;
use dstack_images::Images;
use dstack_logs::LogStore;
use dstack_plan::jobs::Target;
use dstack_store::encryption::{Encryption, at_rest};
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_store::{Database, SqlStore, StoreError};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, SystemClock, task};
use dstack_telemetry::Telemetry;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use identity::DirectoryLock;
pub use reload::Reloader;

use crate::access::{self, Access};
use crate::backends::StoredBackends;
use crate::blobs::{Blobs, Bucket, BucketError};
use crate::cli_config::{self, Answer, Entry};
use crate::config::{self, ConfigError, ServerConfig};
use crate::connections::Connections;
use crate::engine_handle::NoEngine;
use crate::error::ApiError;
use crate::gateway_worker;
use crate::handlers;
use crate::images::UnknownImages;
use crate::job_maker::JobMaker;
use crate::log_store;
use crate::login::Logins;
use crate::overload::Overload;
use crate::plugins::Plugins;
use crate::render::run_lists::RunLists;
use crate::retention;
use crate::settings::Settings;
use crate::state::AppState;
use crate::volume_worker;
use dstack_control::EngineHandle;
use dstack_control::keys::Keys;

/// How long requests under way may take when the server stops.
const DRAIN: Duration = Duration::from_secs(3);

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The state directory cannot be used.
    #[error("cannot use the server's directory {path}: it must be writable, or set DSTACK_SERVER_DIR")]
    Dir {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another server uses the database.
    #[error(
        "another server uses {path}: stop it, or use another DSTACK_SERVER_DIR (several servers need PostgreSQL)"
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// config.yml.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database.
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    /// The admin's token cannot be read.
    #[error(
        "the admin's token cannot be decrypted: put the encryption key back (encryption.key or encryption.keys in config.yml)"
    )]
    AdminToken,
    /// A project of config.yml has a name that none can have.
    #[error(
        "the project `{0}` of config.yml: names of projects are made of 1 to 50 letters, digits, - and _"
    )]
    ProjectName(String),
    /// The keys of config.yml do not decrypt everything that is stored.
    #[error("encryption.keys lacks a key that is still needed by {0}: put it back, after the new one")]
    KeysMissing(String),
    /// The admin user or the project main cannot be created.
    #[error("cannot set up the first user and project")]
    Bootstrap(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Host and port cannot be listened on.
    #[error("cannot listen on {address}: {}", listening::remedy(source))]
    Listen {
        /// Host and port.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The bucket for code and files.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The engine cannot be started.
    #[error("cannot start the engine")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<ControlError> for ServerError {
    fn from(error: ControlError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<ApiError> for ServerError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Internal(cause) => Self::Bootstrap(cause),
            other => Self::Bootstrap(other.into()),
        }
    }
}

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What the engine is made from.
#[derive(Debug, Clone)]
pub struct EngineInit {
    /// Who this server is; `None`: one that has the same directory runs already.
    pub identity: Option<Identity>,
    /// The database.
    pub database: Database,
    /// The engine's view of it.
    pub store: SqlStore,
    /// For secrets and credentials.
    pub encryption: Encryption,
    /// Time.
    pub clock: SharedClock,
    /// Ids.
    pub random: Random,
    /// Where output goes.
    pub logs: Arc<dyn LogStore>,
    /// Uploaded code and files.
    pub blobs: Blobs,
    /// Keys of users and projects.
    pub keys: Arc<Keys>,
    /// Environment.
    pub settings: Settings,
    /// The project that the server's own machine belongs to.
    pub project: ProjectRow,
    /// The admin.
    pub admin: UserRow,
    /// Configured clouds.
    pub backends: Arc<dyn Backends>,
    /// What images say of themselves.
    pub images: Arc<dyn Images>,
}

impl EngineInit {
    /// Makes the jobs of runs, which will run there.
    pub fn jobs(&self, target: Target) -> JobMaker {
        JobMaker {
            database: self.database.clone(),
            encryption: self.encryption.clone(),
            keys: Arc::clone(&self.keys),
            images: Arc::clone(&self.images),
            registry: self.settings.default_registry(),
            defaults: self.settings.defaults(),
            target,
        }
    }
}

/// A running engine.
pub struct StartedEngine {
    /// For handlers.
    pub handle: Arc<dyn EngineHandle>,
    /// Where jobs run.
    pub target: Target,
    /// Called once when the server stops.
    pub stop: Box<dyn FnOnce() -> BoxFuture<()> + Send>,
}

/// Starts the engine.
pub type EngineStart = Box<
    dyn FnOnce(EngineInit) -> BoxFuture<Result<StartedEngine, Box<dyn std::error::Error + Send + Sync>>>
        + Send,
>;

/// How the server runs.
pub struct ServerOptions {
    /// Environment and flags.
    pub settings: Settings,
    /// Time.
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
    /// What images say of themselves.
    pub images: Arc<dyn Images>,
    /// What is sent to OpenTelemetry and Sentry.
    pub telemetry: Telemetry,
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
            images: Arc::new(UnknownImages),
            telemetry: Telemetry::default(),
            ready: None,
            stop: CancellationToken::new(),
        }
    }
}

/// Runs the server until it is told to stop.
pub async fn serve(options: ServerOptions) -> Result<(), ServerError> {
    let ServerOptions {
        settings,
        clock,
        random,
        home,
        start_engine,
        workers,
        registry,
        images,
        telemetry,
        ready,
        stop,
    } = options;
    let open_files = listening::raise_file_limit();
    let listener = listening::listen(settings.listening_address()).await?;
    let dir = settings.dir.clone();
    directory::prepare(&dir)?;
    let loaded = match settings.config_disabled {
        true => None,
        false => config::load(&dir)?,
    };
    let config = loaded.clone().unwrap_or_default();
    let encryption = config.encryption(&dir, &random)?;
    at_rest::install(&encryption);
    let bucket = Bucket::of(&settings)?;
    let (database, mut lock) = open_database(&settings, &random, workers.as_ref()).await?;
    let logs = log_store::open(&settings, &clock).await;
    let blobs = Blobs::new(database.clone(), bucket);
    let store = SqlStore::new(database.clone());
    let keys = Arc::new(Keys::new(database.clone(), encryption.clone(), random.clone()));
    let backends = Arc::new(StoredBackends::new(
        database.clone(),
        encryption.clone(),
        registry.clone(),
    ));
    let mut state = AppState {
        engine: Arc::new(NoEngine(store.clone())),
        access: Arc::new(Access::new(database.clone(), settings.failed_logins())),
        database,
        store,
        encryption,
        clock,
        overload: Overload::new(settings.limits(), workers),
        random,
        logs,
        blobs,
        permissions: config.permissions().into(),
        logins: Logins::new(&config.logins(), settings.login_patience()),
        keys,
        runs: Arc::default(),
        run_lists: RunLists::default(),
        target: Target::Container,
        backends,
        registry,
        images,
        plugins: Plugins::new(&settings),
        telemetry,
        volumes_changed: Arc::default(),
        gateways_changed: Arc::default(),
        settings,
    };
    let first = bootstrap::first_user_and_project(&state).await?;
    apply_config(&state, loaded.as_ref(), &config, &first.admin).await?;
    let stop_engine = start(&mut state, start_engine, &first, lock.as_mut()).await?;
    let state = Arc::new(state);
    warm_keys(&state, first.admin.clone());
    retention::start(&state, stop.clone());
    access::shared::start(&state, stop.clone());
    reload_on_hangup(&state, first.admin.clone(), stop.clone());
    if !state.settings.background_disabled {
        volume_worker::start(&state, stop.clone());
        gateway_worker::start(&state, stop.clone());
    }
    announce(&state, &listener, home, &first).await;
    if let (Some(ready), Ok(address)) = (ready, listener.local_addr()) {
        ready.send(address).ok(); // whoever asked may be gone
    }
    let connections = Connections::new(state.settings.max_connections, open_files);
    run(listener, connections, &state, stop).await;
    if let Some(stop_engine) = stop_engine {
        stop_engine().await;
    }
    state.database.close().await;
    Ok(())
}

/// Opens the database, and locks the server's directory. `None`: another server of this directory runs, which several may on
/// PostgreSQL.
pub(crate) async fn open_database(
    settings: &Settings,
    random: &Random,
    workers: Option<&Handle>,
) -> Result<(Database, Option<DirectoryLock>), ServerError> {
    let url = settings
        .database_url
        .clone()
        .unwrap_or_else(|| format!("sqlite://{}", settings.dir.join("data/dstack.db").display()));
    let lock = match url.split_once("://") {
        Some((scheme, path)) if scheme.starts_with("sqlite") => {
            let path = path.split('?').next().unwrap_or(path);
            let lock = DirectoryLock::of_sqlite(Path::new(path))?;
            // One whose path is written with escapes, or that lies nowhere, is the database's own affair.
            if path.starts_with('/') && !path.contains('%') {
                directory::prepare_database(Path::new(path))?;
            }
            Some(lock)
        }
        _ => match DirectoryLock::of_directory(&settings.dir, random) {
            Ok(lock) => Some(lock),
            Err(ServerError::InUse { .. }) => None,
            Err(error) => return Err(error),
        },
    };
    let options = settings.database_options();
    let database = Database::open_on(&url, options, workers).await?;
    Ok((database, lock))
}

async fn apply_config(
    state: &AppState,
    loaded: Option<&ServerConfig>,
    config: &ServerConfig,
    admin: &UserRow,
) -> Result<(), ServerError> {
    let file = shown_path(&config::path(&state.settings.dir));
    if state.settings.config_disabled {
        return Ok(());
    }
    if loaded.is_none() {
        say(state, "Initializing the default configuration...");
        let main = state.database.projects().by_name("main").await?;
        let configured = match main {
            Some(project) => !state.database.backends().list(project.id).await?.is_empty(),
            None => false,
        };
        config::write_default(&state.settings.dir, configured)?;
        say(state, &format!("Initialized the default configuration at {file}"));
        return Ok(());
    }
    say(state, &format!("Applying {file}..."));
    bootstrap::apply_projects(state, config, admin).await?;
    state
        .plugins
        .enable(config.plugins.as_deref().unwrap_or_default());
    Ok(())
}

async fn start(
    state: &mut AppState,
    start_engine: Option<EngineStart>,
    first: &bootstrap::First,
    lock: Option<&mut DirectoryLock>,
) -> Result<Option<Box<dyn FnOnce() -> BoxFuture<()> + Send>>, ServerError> {
    let Some(start_engine) = start_engine.filter(|_| !state.settings.background_disabled) else {
        say(state, "Background processing is disabled");
        return Ok(None);
    };
    let init = EngineInit {
        identity: lock.map(|lock| lock.identity(&state.random)).transpose()?,
        database: state.database.clone(),
        store: state.store.clone(),
        encryption: state.encryption.clone(),
        clock: Arc::clone(&state.clock),
        random: state.random.clone(),
        logs: Arc::clone(&state.logs),
        blobs: state.blobs.clone(),
        keys: Arc::clone(&state.keys),
        settings: state.settings.clone(),
        project: first.project.clone(),
        admin: first.admin.clone(),
        backends: Arc::clone(&state.backends),
        images: Arc::clone(&state.images),
    };
    let projects = state.project_verbs();
    let machine_before = projects.own_machine(first.project.id).await?;
    let started = start_engine(init).await.map_err(ServerError::Engine)?;
    state.engine = started.handle;
    state.target = started.target;
    if let (None, Some(machine)) = (machine_before, projects.own_machine(first.project.id).await?) {
        projects.own_machine_added(&machine, &first.project).await?;
    }
    Ok(Some(started.stop))
}

/// The first request should not have to wait for prime numbers.
fn warm_keys(state: &Arc<AppState>, admin: UserRow) {
    let state = Arc::clone(state);
    task::spawn("make the admin's key pair", async move {
        match state.keys.of_user(&admin).await {
            Ok((_, made)) if made => state.access.changed(),
            Ok(_) => {}
            Err(error) => tracing::warn!(?error, "cannot make the admin's key pair"),
        }
    });
}

/// Applies config.yml again at each SIGHUP.
fn reload_on_hangup(state: &Arc<AppState>, admin: UserRow, stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (state, Ok(mut hangup)) = (Arc::clone(state), signal(SignalKind::hangup())) else {
        return;
    };
    let reloader = Reloader::new(admin);
    task::spawn("reload config.yml", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                received = hangup.recv() => if received.is_none() { return },
            }
            if state.settings.config_disabled {
                tracing::warn!("config.yml is not applied again: DSTACK_SERVER_CONFIG_DISABLED is set");
                continue;
            }
            match reloader.reload(&state).await {
                Ok(changes) => {
                    for change in changes {
                        tracing::info!("config.yml: {change}");
                    }
                    tracing::info!("config.yml was applied again");
                }
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "config.yml is not applied again, everything stays as it was: {error}"
                ),
            }
        }
    });
}

async fn announce(
    state: &Arc<AppState>,
    listener: &TcpListener,
    home: Option<PathBuf>,
    first: &bootstrap::First,
) {
    let mut settings = state.settings.clone();
    if let Ok(address) = listener.local_addr() {
        settings.port = address.port();
    }
    let url = settings.server_url();
    let answer = match (
        settings.do_not_update_default_project,
        settings.update_default_project,
    ) {
        (true, _) => Answer::No,
        (_, true) => Answer::Yes,
        _ => Answer::Ask,
    };
    let entry = Entry {
        name: first.project.name.clone(),
        url: url.clone(),
        token: first.token.clone(),
    };
    let configured = match home.clone() {
        Some(home) => cli_config::update(home, entry.clone(), answer).await,
        None => false,
    };
    if configured {
        say_configured(state, &entry.name);
    }
    say(state, &format!("The admin token is {}", first.token.expose()));
    say(
        state,
        &format!("The dstack server {} is running at {url}", dstack_api::VERSION),
    );
    match home {
        Some(_) if configured => say(
            state,
            "Next, in another terminal: `dstack apply` in a folder with a .dstack.yml, `dstack offer` for what there is",
        ),
        Some(home) if answer == Answer::Ask => ask_about_config(state, home, entry).await,
        _ => {}
    }
}

fn say_configured(state: &AppState, project: &str) {
    say(
        state,
        &format!("Configured the {project} project in ~/.dstack/config.yml"),
    );
}

/// Asks beside the server's work: it answers whether somebody looks at its terminal or not.
async fn ask_about_config(state: &Arc<AppState>, home: PathBuf, entry: Entry) {
    let Some(question) = cli_config::question(home.clone(), entry.clone()).await else {
        return;
    };
    let state = Arc::clone(state);
    task::spawn("ask about the CLI config", async move {
        if !cli_config::is_agreed(question).await {
            let add = format!("dstack project add --name {} --url {}", entry.name, entry.url);
            say(
                &state,
                &format!("The command line goes on with its default project. `{add}` changes that"),
            );
            return;
        }
        let name = entry.name.clone();
        if cli_config::update(home, entry, Answer::Yes).await {
            say_configured(&state, &name);
        }
    });
}

/// A line for whoever started the server: what the reference prints, in the form of the log's lines.
fn say(state: &AppState, message: &str) {
    use std::io::Write;
    let now = state.clock.now().to_jiff().to_zoned(jiff::tz::TimeZone::system());
    let mut out = std::io::stdout().lock();
    // Nobody may be listening: the server runs all the same.
    writeln!(out, "[{}]  INFO {message}", now.strftime("%H:%M:%S"))
        .and_then(|()| out.flush())
        .ok();
}

fn shown_path(path: &Path) -> String {
    match dstack_system::env::home().and_then(|home| path.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(inside) => format!("~/{}", inside.display()),
        None => path.display().to_string(),
    }
}

async fn run(
    listener: TcpListener,
    connections: Connections,
    state: &Arc<AppState>,
    stop: CancellationToken,
) {
    let (signals, told) = (stop.clone(), Arc::clone(state));
    let watcher = task::spawn("signals", async move {
        terminated().await;
        say(&told, "The dstack server is stopping. Jobs go on");
        signals.cancel();
    });
    let router = handlers::router(Arc::clone(state));
    tokio::select! {
        () = connections.serve(listener, router, stop.clone()) => {}
        () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await; } => {}
    }
    watcher.abort();
}

/// SIGTERM or Ctrl-C.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
