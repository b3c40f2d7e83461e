//! The verbs of the control plane, each made once.

use std::sync::Arc;

use dstack_compute::{Backends, Registry};
use dstack_control::backends::ProjectBackends;
use dstack_control::exports::Exports;
use dstack_control::gateways::Gateways;
use dstack_control::login::Logins;
use dstack_control::projects::Projects;
use dstack_control::repos::Repos;
use dstack_control::secrets::Secrets;
use dstack_control::tokens::Tokens;
use dstack_control::users::Users;
use dstack_control::volumes::Volumes;
use dstack_control::{Core, Directory, EngineHandle, Fleets, Runs, Watcher};
use dstack_store::writes::Affected;
use tokio::sync::Notify;

use super::{Auth, Data};
use crate::access::Access;
use crate::job_maker::JobMaker;
use crate::render::runs::RunCache;
use crate::run_resources::SqlRunResources;
use crate::settings::Settings;

/// Verbs that need no engine: of users, projects and what projects have.
#[derive(Debug)]
pub struct Verbs {
    /// What all of them work with.
    pub(crate) directory: Directory,
    /// Of users and their public keys.
    pub users: Users,
    /// Of API tokens.
    pub tokens: Tokens,
    /// Of logins with providers outside.
    pub logins: Logins,
    /// Of projects and members.
    pub projects: Projects,
    /// Of secrets.
    pub secrets: Secrets,
    /// Of repos.
    pub repos: Repos,
    /// Of exports and imports.
    pub exports: Exports,
    /// Of backends.
    pub backends: ProjectBackends,
    /// Of volumes.
    pub volumes: Volumes,
    /// Of gateways.
    pub gateways: Gateways,
    /// Kinds of clouds that can be configured.
    pub registry: Registry,
    /// A volume waits for its cloud.
    pub volumes_changed: Arc<Notify>,
    /// A gateway waits for its cloud.
    pub gateways_changed: Arc<Notify>,
}

impl Verbs {
    /// On this data. What they change is forgotten by `auth` and `runs`.
    pub fn new(
        data: &Data,
        auth: &Auth,
        runs: &Arc<RunCache>,
        registry: Registry,
        settings: &Settings,
    ) -> Self {
        let listeners = Listeners {
            access: Arc::clone(&auth.access),
            runs: Arc::clone(runs),
            volumes: Arc::default(),
            gateways: Arc::default(),
        };
        let (volumes_changed, gateways_changed) =
            (Arc::clone(&listeners.volumes), Arc::clone(&listeners.gateways));
        let directory = Directory {
            database: data.database.clone(),
            encryption: data.encryption.clone(),
            keys: Arc::clone(&data.keys),
            clock: Arc::clone(&data.clock),
            random: data.random.clone(),
            keep_events: settings.events_ttl > 0,
            watcher: Arc::new(listeners),
        };
        let users = || Users::new(directory.clone(), settings.user_project_quota);
        Self {
            users: users(),
            tokens: Tokens::new(directory.clone()),
            logins: Logins::new(directory.clone(), users()),
            projects: Projects::new(directory.clone()),
            secrets: Secrets::new(directory.clone()),
            repos: Repos::new(directory.clone()),
            exports: Exports::new(directory.clone()),
            backends: ProjectBackends::new(
                directory.clone(),
                registry.clone(),
                settings.default_creds_disabled,
            ),
            volumes: Volumes::new(directory.clone(), registry.clone()),
            gateways: Gateways::new(directory.clone(), registry.clone(), settings.gateway_max_replicas),
            directory,
            registry,
            volumes_changed,
            gateways_changed,
        }
    }
}

/// Forgets, and wakes, what a verb has changed.
#[derive(Debug)]
struct Listeners {
    access: Arc<Access>,
    runs: Arc<RunCache>,
    volumes: Arc<Notify>,
    gateways: Arc<Notify>,
}

impl Watcher for Listeners {
    fn changed(&self, affected: Affected) {
        if affected.access {
            self.access.changed();
        }
        if affected.names {
            self.runs.clear();
        }
        if affected.volumes {
            self.volumes.notify_one();
        }
        if affected.gateways {
            self.gateways.notify_one();
        }
    }
}

/// What verbs of runs and fleets get from the engine, or from its stand-in where there is none.
#[derive(Debug)]
pub struct EngineParts {
    /// Changes runs and fleets.
    pub handle: Arc<dyn EngineHandle>,
    /// Makes the jobs of runs, for where the engine runs them.
    pub jobs: JobMaker,
}

/// What may be asked of the control plane.
#[derive(Debug)]
pub struct Control {
    /// Changes runs and fleets.
    pub engine: Arc<dyn EngineHandle>,
    /// Makes the jobs of runs.
    pub jobs: JobMaker,
    /// Configured clouds.
    pub backends: Arc<dyn Backends>,
    /// Of runs.
    pub runs: Runs,
    /// Of fleets.
    pub fleets: Fleets,
    /// Of everything else.
    pub verbs: Verbs,
}

impl Control {
    /// With this engine.
    pub fn new(
        data: &Data,
        engine: EngineParts,
        backends: Arc<dyn Backends>,
        verbs: Verbs,
        settings: &Settings,
    ) -> Self {
        let core = Core {
            store: Arc::new(data.store()),
            engine: Arc::clone(&engine.handle),
            clock: Arc::clone(&data.clock),
            random: data.random.clone(),
            keep_events: settings.events_ttl > 0,
        };
        let resources = SqlRunResources::new(engine.jobs.clone(), data.random.clone(), settings);
        Self {
            engine: engine.handle,
            jobs: engine.jobs,
            backends,
            runs: Runs::new(core.clone(), Arc::new(resources)),
            fleets: Fleets::new(core, data.encryption.clone()),
            verbs,
        }
    }
}
