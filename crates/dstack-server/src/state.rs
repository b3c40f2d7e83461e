//! What handlers work with.

use std::sync::{Arc, PoisonError, RwLock};

use dstack_compute::{Backends, Registry};
use dstack_control::backends::ProjectBackends;
use dstack_control::exports::Exports;
use dstack_control::gateways::Gateways;
use dstack_control::keys::Keys;
use dstack_control::login::Logins as LoginVerbs;
use dstack_control::projects::Projects;
use dstack_control::repos::Repos;
use dstack_control::secrets::Secrets;
use dstack_control::tokens::Tokens;
use dstack_control::users::Users;
use dstack_control::volumes::Volumes;
use dstack_control::{Core, Directory, EngineHandle, Fleets, Runs, Watcher};
use dstack_images::Images;
use dstack_logs::LogStore;
use dstack_plan::jobs::Target;
use dstack_store::encryption::Encryption;
use dstack_store::writes::Affected;
use dstack_store::{Database, SqlStore};
use dstack_system::Random;
use dstack_system::clock::SharedClock;
use dstack_telemetry::Telemetry;
use tokio::sync::Notify;

use crate::access::Access;
use crate::blobs::Blobs;
use crate::job_maker::JobMaker;
use crate::login::Logins;
use crate::overload::Overload;
use crate::plugins::Plugins;
use crate::render::run_lists::RunLists;
use crate::render::runs::RunCache;
use crate::run_resources::SqlRunResources;
use crate::settings::Settings;

/// Process-wide permissions (`default_permissions` of config.yml).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultPermissions {
    /// Users may create projects.
    pub allow_non_admins_create_projects: bool,
    /// Members may apply and delete SSH fleets.
    pub allow_non_admins_manage_ssh_fleets: bool,
    /// Managers may read and write secrets.
    pub allow_managers_manage_secrets: bool,
}

impl Default for DefaultPermissions {
    fn default() -> Self {
        Self {
            allow_non_admins_create_projects: true,
            allow_non_admins_manage_ssh_fleets: true,
            allow_managers_manage_secrets: false,
        }
    }
}

/// The permissions in force: they change when `config.yml` is applied again.
#[derive(Debug, Default)]
pub struct SharedPermissions(RwLock<DefaultPermissions>);

impl From<DefaultPermissions> for SharedPermissions {
    fn from(permissions: DefaultPermissions) -> Self {
        Self(RwLock::new(permissions))
    }
}

impl SharedPermissions {
    /// As they are now.
    pub fn get(&self) -> DefaultPermissions {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on.
    pub fn set(&self, permissions: DefaultPermissions) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = permissions;
    }
}

/// Shared by all requests.
#[derive(Debug)]
pub struct AppState {
    /// The database.
    pub database: Database,
    /// The engine's view of it.
    pub store: SqlStore,
    /// Secrets at rest.
    pub encryption: Encryption,
    /// Lets calls in.
    pub overload: Overload,
    /// Time.
    pub clock: SharedClock,
    /// Ids, tokens, names.
    pub random: Random,
    /// Whatever changes runs and fleets goes through it.
    pub engine: Arc<dyn EngineHandle>,
    /// Output of jobs.
    pub logs: Arc<dyn LogStore>,
    /// Uploaded code and files.
    pub blobs: Blobs,
    /// Environment.
    pub settings: Settings,
    /// config.yml.
    pub permissions: SharedPermissions,
    /// Users and projects.
    pub access: Arc<Access>,
    /// Where else users log in.
    pub logins: Logins,
    /// SSH keys of users and projects.
    pub keys: Arc<Keys>,
    /// Rendered runs.
    pub runs: Arc<RunCache>,
    /// Lists of them.
    pub run_lists: RunLists,
    /// Where jobs run: decides their commands.
    pub target: Target,
    /// Configured clouds.
    pub backends: Arc<dyn Backends>,
    /// Kinds of clouds that can be configured.
    pub registry: Registry,
    /// What images say of themselves.
    pub images: Arc<dyn Images>,
    /// What may change or refuse what is applied.
    pub plugins: Plugins,
    /// What is sent of all this to OpenTelemetry and Sentry.
    pub telemetry: Telemetry,
    /// A volume waits for its cloud.
    pub volumes_changed: Arc<Notify>,
    /// A gateway waits for its cloud.
    pub gateways_changed: Arc<Notify>,
}

/// Forgets, and wakes, what a verb has changed.
#[derive(Debug)]
struct Remembered {
    access: Arc<Access>,
    runs: Arc<RunCache>,
    volumes: Arc<Notify>,
    gateways: Arc<Notify>,
}

impl Watcher for Remembered {
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

impl AppState {
    /// What verbs of runs and fleets work with.
    fn core(&self) -> Core {
        Core {
            store: Arc::new(self.store.clone()),
            engine: Arc::clone(&self.engine),
            clock: Arc::clone(&self.clock),
            random: self.random.clone(),
            keep_events: self.settings.events_ttl > 0,
        }
    }

    /// What all other verbs work with.
    pub(crate) fn directory(&self) -> Directory {
        Directory {
            database: self.database.clone(),
            encryption: self.encryption.clone(),
            keys: Arc::clone(&self.keys),
            clock: Arc::clone(&self.clock),
            random: self.random.clone(),
            keep_events: self.settings.events_ttl > 0,
            watcher: Arc::new(Remembered {
                access: Arc::clone(&self.access),
                runs: Arc::clone(&self.runs),
                volumes: Arc::clone(&self.volumes_changed),
                gateways: Arc::clone(&self.gateways_changed),
            }),
        }
    }

    /// What may be asked about users and their public keys.
    pub(crate) fn user_verbs(&self) -> Users {
        Users::new(self.directory(), self.settings.user_project_quota)
    }

    /// What may be asked about API tokens.
    pub(crate) fn token_verbs(&self) -> Tokens {
        Tokens::new(self.directory())
    }

    /// What may be asked about logins with providers outside.
    pub(crate) fn login_verbs(&self) -> LoginVerbs {
        LoginVerbs::new(self.directory(), self.user_verbs())
    }

    /// What may be asked about projects and members.
    pub(crate) fn project_verbs(&self) -> Projects {
        Projects::new(self.directory())
    }

    /// What may be asked about secrets.
    pub(crate) fn secret_verbs(&self) -> Secrets {
        Secrets::new(self.directory())
    }

    /// What may be asked about repos.
    pub(crate) fn repo_verbs(&self) -> Repos {
        Repos::new(self.directory())
    }

    /// What may be asked about exports and imports.
    pub(crate) fn export_verbs(&self) -> Exports {
        Exports::new(self.directory())
    }

    /// What may be asked about backends.
    pub(crate) fn backend_verbs(&self) -> ProjectBackends {
        let disabled = self.settings.default_creds_disabled;
        ProjectBackends::new(self.directory(), self.registry.clone(), disabled)
    }

    /// What may be asked about volumes.
    pub(crate) fn volume_verbs(&self) -> Volumes {
        Volumes::new(self.directory(), self.registry.clone())
    }

    /// What may be asked about gateways.
    pub(crate) fn gateway_verbs(&self) -> Gateways {
        let replicas = self.settings.gateway_max_replicas;
        Gateways::new(self.directory(), self.registry.clone(), replicas)
    }

    /// What may be asked about runs.
    pub fn run_verbs(&self) -> Runs {
        Runs::new(self.core(), SqlRunResources::of(self))
    }

    /// What may be asked about fleets.
    pub fn fleet_verbs(&self) -> Fleets {
        Fleets::new(self.core(), self.encryption.clone())
    }

    /// Makes the jobs of runs.
    pub fn jobs(&self) -> JobMaker {
        JobMaker {
            database: self.database.clone(),
            encryption: self.encryption.clone(),
            keys: Arc::clone(&self.keys),
            images: Arc::clone(&self.images),
            registry: self.settings.default_registry(),
            defaults: self.settings.defaults(),
            target: self.target,
        }
    }
}
