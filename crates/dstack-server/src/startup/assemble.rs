//! Makes what handlers and workers share, in the order in which one part needs the other.

use std::sync::Arc;

use dstack_hosts::pool::Pool;
use dstack_store::Database;
use dstack_store::encryption::Encryption;
use dstack_store::queries::users::UserRow;
use dstack_system::Random;
use tokio::runtime::Handle;

use super::announce::{say, shown_path};
use super::bootstrap::{self, First};
use super::identity::DirectoryLock;
use super::options::{EngineContext, EngineStart, ServerOptions, StopEngine};
use super::{ServerError, directory, listening};
use crate::backends::StoredBackends;
use crate::blobs::Bucket;
use crate::config::{self, ServerConfig};
use crate::config_backends::rounds::Rounds;
use crate::connections;
use crate::engine_handle::NoEngine;
use crate::job_maker::JobMaker;
use crate::log_store;
use crate::login::Logins;
use crate::overload::Overload;
use crate::services::ServiceRoutes;
use crate::settings::Settings;
use crate::state::{AppState, Auth, Control, Data, Edge, EngineParts, Verbs};
use crate::wiring::{ConnectedAgents, DatabaseKeyring};

/// A server that is ready to serve.
pub(super) struct Assembled {
    pub(super) state: Arc<AppState>,
    /// Whom and what the server began with.
    pub(super) first: First,
    /// The `config.yml` that was applied.
    pub(super) config: ServerConfig,
    /// `None` where no engine runs.
    pub(super) stop_engine: Option<StopEngine>,
    /// Keeps others from this server's directory until it is dropped.
    pub(super) lock: Option<DirectoryLock>,
}

/// Opens what is stored, applies `config.yml`, and starts the engine.
pub(super) async fn assemble(options: ServerOptions) -> Result<Assembled, ServerError> {
    let settings = options.settings;
    directory::prepare(&settings.dir)?;
    let loaded = match settings.config_disabled {
        true => None,
        false => config::load(&settings.dir)?,
    };
    let config = loaded.clone().unwrap_or_default();
    let encryption = config.encryption(&settings.dir, &options.random)?;
    let bucket = Bucket::of(&settings)?;
    let (database, mut lock) =
        open_database(&settings, &encryption, &options.random, options.workers.as_ref()).await?;
    let logs = log_store::open(&settings, &options.clock).await;
    let data = Data::new(database, encryption, bucket, logs, options.clock, options.random);
    let data = Arc::new(data);
    let installation = data.database.installation(data.random.uuid().into()).await?;
    // Nobody else sets it.
    options.installation.set(installation).ok();
    let logins = Logins::new(&config.logins(), settings.login_patience());
    let auth = Auth::new(&data, settings.failed_logins(), logins, config.permissions());
    let runs = Arc::default();
    let verbs = Verbs::new(&data, &auth, &runs, options.registry.clone(), &settings);
    let overload = Overload::new(settings.limits(), options.workers);
    let rounds = Rounds::new(options.config_waits, options.stop.clone(), data.random.clone());
    let edge = Edge::new(settings, overload, options.telemetry, runs)
        .with_site(options.site)
        .with_config_backends(rounds);
    let first = bootstrap::first_user_and_project(&data, &verbs, &edge.settings).await?;
    apply_config(&data, &verbs, &edge, loaded.as_ref(), &first.admin).await?;
    let (database, encryption) = (data.database.clone(), data.encryption.clone());
    let backends = Arc::new(StoredBackends::new(database, encryption, options.registry));
    let services = ServiceRoutes::new(
        &data,
        &edge.settings,
        connections::passed_on(listening::raise_file_limit()),
        options.prompts,
    );
    let context = EngineContext {
        identity: None,
        services: services.clone(),
        data: Arc::clone(&data),
        settings: edge.settings.clone(),
        jobs: JobMaker::new(&data, options.images, &edge.settings),
        backends: Arc::clone(&backends) as _,
        project: first.project.clone(),
        installation,
    };
    let start_engine = options
        .start_engine
        .filter(|_| !edge.settings.background_disabled);
    let (engine, stop_engine) = match start_engine {
        Some(start_engine) => {
            let (engine, stop) = start(start_engine, context, &verbs, lock.as_mut()).await?;
            (engine, Some(stop))
        }
        None => {
            say(&data.clock, "Background processing is disabled");
            services.reach_through(Arc::new(hosts_only(&context)));
            (without_engine(context), None)
        }
    };
    services.load().await?;
    let control = Control::new(&data, engine, backends, verbs, &edge.settings);
    let control = control.with_backend_files(options.backend_files);
    let state = AppState {
        data,
        auth: Arc::new(auth),
        control: Arc::new(control),
        services,
        edge: Arc::new(edge),
    };
    Ok(Assembled {
        state: Arc::new(state),
        first,
        config,
        stop_engine,
        lock,
    })
}

/// Opens the database, and locks the server's directory. `None`: another server of this directory runs, which several may on
/// PostgreSQL.
pub(crate) async fn open_database(
    settings: &Settings,
    encryption: &Encryption,
    random: &Random,
    workers: Option<&Handle>,
) -> Result<(Database, Option<DirectoryLock>), ServerError> {
    let url = settings
        .database_url
        .clone()
        .unwrap_or_else(|| format!("sqlite://{}", settings.dir.join("data/dstack.db").display()));
    let lock = match settings.sqlite_path() {
        Some(path) => {
            let lock = DirectoryLock::of_sqlite(&path)?;
            // One whose path is written with escapes, or that lies nowhere, is the database's own affair.
            if path.has_root() && settings.sqlite_file().as_ref() == Some(&path) {
                directory::prepare_database(&path)?;
            }
            Some(lock)
        }
        None => match DirectoryLock::of_directory(&settings.dir, random) {
            Ok(lock) => Some(lock),
            Err(ServerError::InUse { .. }) => None,
            Err(error) => return Err(error),
        },
    };
    let options = settings.database_options();
    let database = Database::open_on(&url, options, encryption.into(), workers).await?;
    Ok((database, lock))
}

async fn apply_config(
    data: &Data,
    verbs: &Verbs,
    edge: &Edge,
    loaded: Option<&ServerConfig>,
    admin: &UserRow,
) -> Result<(), ServerError> {
    let dir = &edge.settings.dir;
    let file = shown_path(&config::path(dir));
    if edge.settings.config_disabled {
        return Ok(());
    }
    let Some(config) = loaded else {
        say(&data.clock, "Initializing the default configuration...");
        config::write_default(dir)?;
        say(
            &data.clock,
            &format!("Initialized the default configuration at {file}"),
        );
        return Ok(());
    };
    say(&data.clock, &format!("Applying {file}..."));
    bootstrap::apply_projects(data, verbs, &edge.config_backends, config, admin).await?;
    edge.plugins.enable(config.plugins.as_deref().unwrap_or_default());
    Ok(())
}

/// Starts the engine. A machine that it offers for the first time, or with another runtime than before, is told of, whether or
/// not other servers offer theirs.
async fn start(
    start_engine: EngineStart,
    context: EngineContext,
    verbs: &Verbs,
    lock: Option<&mut DirectoryLock>,
) -> Result<(EngineParts, StopEngine), ServerError> {
    let (random, project) = (&context.data.random, context.project.clone());
    let context = EngineContext {
        identity: lock.map(|lock| lock.identity(random)).transpose()?,
        ..context.clone()
    };
    let started = start_engine(context).await.map_err(ServerError::Engine)?;
    // It is told at the next start if it is not told now.
    if let Err(error) = verbs.projects.tell_of_own_machines(&project).await {
        tracing::error!(
            project.name = project.name,
            "who can run code on the server's own machine cannot be told: {}",
            dstack_system::chain(&error)
        );
    }
    Ok((started.parts, started.stop))
}

/// The way to hosts where no engine runs: not to this machine's own jobs.
fn hosts_only(context: &EngineContext) -> ConnectedAgents {
    let data = &context.data;
    let keyring = DatabaseKeyring::new(
        data.database.clone(),
        data.encryption.clone(),
        Arc::clone(&data.keys),
    );
    let keyring = Arc::new(keyring);
    ConnectedAgents::new(None, Pool::new(Arc::clone(&keyring) as _), Pool::new(keyring))
}

/// Rows of runs and fleets are written, and nobody acts on them.
fn without_engine(context: EngineContext) -> EngineParts {
    EngineParts {
        handle: Arc::new(NoEngine(context.data.store())),
        jobs: context.jobs,
    }
}
