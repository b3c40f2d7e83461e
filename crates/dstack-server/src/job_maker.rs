//! Makes the jobs of runs: at once when a run is applied, and when the engine finds that a schedule's time has come.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use dstack_control::ControlError;
use dstack_control::keys::Keys;
use dstack_images::{DefaultRegistry, ImageError, Images, RegistryCredentials};
use dstack_model::common::RegistryAuth;
use dstack_model::runs::{JobSpec, JobSshKey, RunSpec};
use dstack_plan::jobs::{JobContext, Target, images, job_specs, registry_auth};
use dstack_plan::services::replicas::Slot;
use dstack_plan::{ImageConfig, PlanError, ServerDefaults};
use dstack_store::encryption::Encryption;
use dstack_store::rows::InstanceRow;
use dstack_store::{Database, EngineStore, SqlStore, StoreError};
use dstack_system::Secret;
use dstack_units::ProjectId;

use crate::error::ApiError;
use crate::settings::Settings;
use crate::state::Data;

/// Why jobs cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// The run asks for what cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What the image says of itself is not known.
    #[error("Error pulling configuration for image '{image}' from the docker registry: {source}")]
    Image {
        /// As the run names it.
        image: String,
        /// What the registry or the engine answered.
        source: ImageError,
    },
    /// Secrets cannot be read.
    #[error("the secrets of the project cannot be read")]
    Secrets(#[source] StoreError),
    /// What the project's jobs can run on cannot be read.
    #[error("the fleets and backends of the project cannot be read")]
    Places(#[source] StoreError),
    /// No key pair was made.
    #[error("no key pair could be made for the nodes of the run")]
    Keys(#[source] Box<ControlError>),
}

impl JobsError {
    /// Whether the same may succeed later, without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Plan(_) => false,
            Self::Image { source, .. } => matches!(source, ImageError::Transient(_)),
            Self::Secrets(error) | Self::Places(error) => error.unavailable().is_some(),
            Self::Keys(_) => true,
        }
    }
}

impl From<JobsError> for ApiError {
    fn from(error: JobsError) -> Self {
        ControlError::from(error).into()
    }
}

impl From<JobsError> for ControlError {
    fn from(error: JobsError) -> Self {
        match error {
            JobsError::Plan(error) => error.into(),
            JobsError::Secrets(error) | JobsError::Places(error) => error.into(),
            JobsError::Keys(error) => *error,
            image @ JobsError::Image { .. } => Self::refused(image.to_string()),
        }
    }
}

type Result<T, E = JobsError> = std::result::Result<T, E>;

/// What jobs are made from besides the run.
#[derive(Debug, Clone)]
pub struct JobMaker {
    /// For the project's secrets.
    pub database: Database,
    /// Decrypts the values of those secrets.
    pub encryption: Encryption,
    /// Makes the key pairs with which the nodes of a task reach each other.
    pub keys: Arc<Keys>,
    /// Asked what images say of themselves.
    pub images: Arc<dyn Images>,
    /// Where images without a registry come from.
    pub registry: DefaultRegistry,
    /// Defaults of this server.
    pub defaults: ServerDefaults,
    /// Whether jobs on this server's own machine are its processes, without images.
    pub processes_here: bool,
}

impl JobMaker {
    /// For jobs that run in containers.
    pub fn new(data: &Data, images: Arc<dyn Images>, settings: &Settings) -> Self {
        Self {
            database: data.database.clone(),
            encryption: data.encryption.clone(),
            keys: Arc::clone(&data.keys),
            images,
            registry: settings.default_registry(),
            defaults: settings.defaults(),
            processes_here: false,
        }
    }

    /// For a server on whose own machine jobs are processes.
    #[must_use]
    pub fn with_processes_here(self, processes_here: bool) -> Self {
        Self {
            processes_here,
            ..self
        }
    }

    /// The jobs of these replicas, ready to be stored.
    ///
    /// # Errors
    /// The run cannot be turned into jobs, a secret that `registry_auth` names is not set, or an image is not
    /// there.
    pub async fn jobs(&self, project: ProjectId, spec: &RunSpec, replicas: &[Slot]) -> Result<Vec<JobSpec>> {
        let mut jobs = self.without_keys(project, spec, replicas).await?;
        if jobs.iter().any(|job| job.jobs_per_replica > 1) {
            let pair = self.keys.generate("dstack job").await;
            let pair = pair.map_err(|error| JobsError::Keys(Box::new(error)))?;
            for job in &mut jobs {
                job.ssh_key = Some(JobSshKey {
                    private: pair.private.expose().to_owned(),
                    public: pair.public.clone(),
                });
            }
        }
        Ok(jobs)
    }

    /// The jobs that a plan shows: those of one replica, of each group for services; without keys.
    ///
    /// # Errors
    /// As of [`JobMaker::jobs`].
    pub async fn planned(&self, project: ProjectId, spec: &RunSpec) -> Result<Vec<JobSpec>> {
        let one = |group| Slot { group, num: 0 };
        let replicas = match spec.configuration.service() {
            Some(service) => service
                .replica_groups()
                .into_iter()
                .map(|group| one(group.name))
                .collect(),
            None => vec![one(None)],
        };
        self.without_keys(project, spec, &replicas).await
    }

    async fn without_keys(
        &self,
        project: ProjectId,
        spec: &RunSpec,
        replicas: &[Slot],
    ) -> Result<Vec<JobSpec>> {
        let wanted = images(spec, &self.defaults);
        // Nobody is asked about images where they do not matter: perhaps nobody could answer.
        let (images, target) = match !wanted.is_empty() && self.only_processes(project).await? {
            true => (BTreeMap::new(), Target::Host),
            false => (
                self.image_configs(project, spec, wanted).await?,
                Target::Container,
            ),
        };
        let context = JobContext {
            server: &self.defaults,
            images: &images,
            target,
        };
        let mut jobs = Vec::new();
        for replica in replicas {
            let num = u32::try_from(replica.num).unwrap_or_default();
            jobs.extend(job_specs(spec, num, replica.group.as_deref(), &context)?);
        }
        Ok(jobs)
    }

    /// Whether all places that the project has now are machines on which jobs are processes.
    async fn only_processes(&self, project: ProjectId) -> Result<bool> {
        if !self.processes_here {
            return Ok(false);
        }
        let backends = self.database.backends().list(project).await;
        if !backends.map_err(JobsError::Places)?.is_empty() {
            return Ok(false);
        }
        let places = SqlStore::new(self.database.clone()).placement(project).await;
        let places = places.map_err(JobsError::Places)?;
        let is_process = |row: &InstanceRow| row.agent.as_ref().is_some_and(|agent| agent.runs_processes());
        Ok(places.fleets.iter().all(|fleet| fleet.local) && places.instances.iter().all(is_process))
    }

    async fn image_configs(
        &self,
        project: ProjectId,
        spec: &RunSpec,
        wanted: BTreeSet<String>,
    ) -> Result<BTreeMap<String, ImageConfig>> {
        let credentials = match &spec.configuration.base().registry_auth {
            Some(auth) => Some(self.credentials(project, auth).await?),
            None => None,
        };
        let mut configs = BTreeMap::new();
        for image in wanted {
            let (name, credentials) = self.registry.apply(&image, credentials.clone());
            let config = self
                .images
                .config(&name, credentials.as_ref())
                .await
                .map_err(|source| JobsError::Image {
                    image: image.clone(),
                    source,
                })?;
            configs.insert(image, config);
        }
        Ok(configs)
    }

    async fn credentials(&self, project: ProjectId, auth: &RegistryAuth) -> Result<RegistryCredentials> {
        let mut known = HashMap::new();
        let rows = self.database.secrets().list(project).await;
        for row in rows.map_err(JobsError::Secrets)? {
            let value = self.encryption.decrypt(&row.value).map_err(JobsError::Secrets)?;
            known.insert(row.name, value.expose().to_owned());
        }
        let (username, password) = registry_auth(auth, &known)?;
        Ok(RegistryCredentials {
            username,
            password: Secret::new(password),
        })
    }
}
