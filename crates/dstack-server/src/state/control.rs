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

use super::{Auth, Data};
use crate::access::Access;
use crate::doctor::{BackendFiles, Doctor};
use crate::job_maker::JobMaker;
use crate::late_offers::LateOffers;
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
    /// Actions on the secrets of projects.
    pub secrets: Secrets,
    /// Actions on the repos of projects.
    pub repos: Repos,
    /// Of exports and imports.
    pub exports: Exports,
    /// Actions on the configured backends of projects.
    pub backends: ProjectBackends,
    /// Kinds of clouds that can be configured.
    pub registry: Registry,
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
        };
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
            directory,
            registry,
        }
    }
}

/// Forgets what a verb has changed.
#[derive(Debug)]
struct Listeners {
    access: Arc<Access>,
    runs: Arc<RunCache>,
}

impl Watcher for Listeners {
    fn changed(&self, affected: Affected) {
        if affected.access {
            self.access.changed();
        }
        if affected.names {
            self.runs.clear();
        }
    }
}

/// What verbs of the engine's entities get from it, or from its stand-in where there is none.
#[derive(Debug)]
pub struct EngineParts {
    /// Changes runs, fleets, volumes and gateways.
    pub handle: Arc<dyn EngineHandle>,
    /// Makes the jobs of runs, for where the engine runs them.
    pub jobs: JobMaker,
}

/// What may be asked of the control plane.
#[derive(Debug)]
pub struct Control {
    /// Changes runs, fleets, volumes and gateways.
    pub engine: Arc<dyn EngineHandle>,
    /// Makes the jobs of runs.
    pub jobs: JobMaker,
    /// The configured backends of projects.
    pub backends: Arc<dyn Backends>,
    /// Backends that are waited for beside plans.
    pub late_offers: LateOffers,
    /// Actions on runs.
    pub runs: Runs,
    /// Actions on fleets.
    pub fleets: Fleets,
    /// Actions on volumes.
    pub volumes: Volumes,
    /// Actions on gateways.
    pub gateways: Gateways,
    /// Of everything else.
    pub verbs: Verbs,
    /// Says what is wrong with all this.
    pub doctor: Doctor,
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
            late_offers: LateOffers::default(),
            runs: Runs::new(core.clone(), Arc::new(resources)),
            fleets: Fleets::new(core.clone(), data.encryption.clone()),
            volumes: Volumes::new(core.clone(), verbs.registry.clone()),
            gateways: Gateways::new(
                core,
                verbs.directory.clone(),
                verbs.registry.clone(),
                settings.gateway_max_replicas,
            ),
            verbs,
            doctor: Doctor::default(),
        }
    }

    /// With a doctor that knows of these files.
    #[must_use]
    pub fn with_backend_files(self, files: BackendFiles) -> Self {
        Self {
            doctor: self.doctor.with_files(files),
            ..self
        }
    }
}
