//! What handlers work with.

use std::sync::{Arc, PoisonError, RwLock};

use dstack_compute::{Backends, Registry};
use dstack_images::Images;
use dstack_logs::LogStore;
use dstack_plan::jobs::Target;
use dstack_store::encryption::Encryption;
use dstack_store::{Database, SqlStore};
use dstack_system::Random;
use dstack_system::clock::SharedClock;
use dstack_telemetry::Telemetry;
use tokio::sync::Notify;

use crate::access::Access;
use crate::blobs::Blobs;
use crate::job_maker::JobMaker;
use crate::keys::Keys;
use crate::login::Logins;
use crate::overload::Overload;
use crate::plugins::Plugins;
use crate::render::run_lists::RunLists;
use crate::render::runs::RunCache;
use crate::run_resources::SqlRunResources;
use crate::settings::Settings;
use dstack_control::{Core, EngineHandle, Fleets, Runs};

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
    pub access: Access,
    /// Where else users log in.
    pub logins: Logins,
    /// SSH keys of users and projects.
    pub keys: Arc<Keys>,
    /// Rendered runs.
    pub runs: RunCache,
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

impl AppState {
    /// What verbs work with.
    fn core(&self) -> Core {
        Core {
            store: Arc::new(self.store.clone()),
            engine: Arc::clone(&self.engine),
            clock: Arc::clone(&self.clock),
            random: self.random.clone(),
            keep_events: self.settings.events_ttl > 0,
        }
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
