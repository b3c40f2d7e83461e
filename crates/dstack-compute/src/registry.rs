//! The kinds of backends of a build.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_model::backends::BackendType;

use crate::config::{BackendConfig, SplitConfig};
use crate::{Backend, Capabilities, ComputeError, JobNeeds};

/// How long machines and containers may take until their agent answers, where the backend says nothing else.
pub const PROVISIONING_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Why a backend cannot be configured this way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    /// The cloud refuses the credentials.
    #[error("Invalid credentials")]
    Credentials {
        /// Paths of the fields at fault.
        fields: Vec<Vec<String>>,
        /// What the cloud says.
        details: Option<String>,
    },
    /// Another setting is wrong; the text is for users.
    #[error("{0}")]
    Invalid(String),
}

/// One kind of backend: how it is configured, and what is made from a configuration.
#[async_trait]
pub trait BackendKind: Send + Sync + Debug {
    /// Returns the type of the backends of this kind.
    fn kind(&self) -> BackendType;

    /// What all backends of this kind can do.
    fn capabilities(&self) -> Capabilities;

    /// How long a machine or container of this type may take from when it is asked for until its agent answers.
    fn provisioning_timeout(&self, _instance_type: &str) -> Duration {
        PROVISIONING_TIMEOUT
    }

    /// What jobs get on machines of this type.
    fn job_needs(&self, _instance_type: &str) -> JobNeeds {
        JobNeeds::NONE
    }

    /// Checks a configuration with the cloud, creates there what every instance needs, and gives what is to be stored:
    /// the configuration with what was found out filled in.
    ///
    /// # Errors
    /// The configuration cannot be used.
    async fn configure(
        &self,
        project_name: &str,
        config: &BackendConfig,
    ) -> Result<SplitConfig, ConfigureError>;

    /// A backend from what [`BackendKind::configure`] gave, perhaps of an older version or of dstack 0.22.5. No calls.
    ///
    /// # Errors
    /// What is stored cannot be read.
    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError>;
}

/// The kinds of backends that a build has, by type.
#[derive(Debug, Clone, Default)]
pub struct Registry(Vec<Arc<dyn BackendKind>>);

/// The order in which dstack 0.22.5 lists its types.
const ORDER: &[BackendType] = &[
    BackendType::AmdDevCloud,
    BackendType::Aws,
    BackendType::Azure,
    BackendType::CloudRift,
    BackendType::Crusoe,
    BackendType::DataCrunch,
    BackendType::Daytona,
    BackendType::DigitalOcean,
    BackendType::Gcp,
    BackendType::HotAisle,
    BackendType::JarvisLabs,
    BackendType::Kubernetes,
    BackendType::Lambda,
    BackendType::Lium,
    BackendType::Nebius,
    BackendType::Oci,
    BackendType::Runpod,
    BackendType::Slurm,
    BackendType::Seeweb,
    BackendType::VastAi,
    BackendType::Verda,
    BackendType::Vultr,
];

impl Registry {
    /// Makes a registry of these kinds; their order does not matter.
    pub fn new(kinds: impl IntoIterator<Item = Arc<dyn BackendKind>>) -> Self {
        Self(kinds.into_iter().collect())
    }

    /// The kind of that type, if the build has it.
    pub fn get(&self, kind: BackendType) -> Option<&Arc<dyn BackendKind>> {
        self.0.iter().find(|known| known.kind() == kind)
    }

    /// [`BackendKind::provisioning_timeout`] of that type; of one that the build does not have, [`PROVISIONING_TIMEOUT`].
    pub fn provisioning_timeout(&self, kind: BackendType, instance_type: &str) -> Duration {
        self.get(kind).map_or(PROVISIONING_TIMEOUT, |kind| {
            kind.provisioning_timeout(instance_type)
        })
    }

    /// [`BackendKind::job_needs`] of that type; of one that the build does not have, nothing.
    pub fn job_needs(&self, kind: BackendType, instance_type: &str) -> JobNeeds {
        self.get(kind)
            .map_or(JobNeeds::NONE, |kind| kind.job_needs(instance_type))
    }

    /// All types that can be configured, in the order in which they are listed; those that dstack 0.22.5 does not have come last.
    pub fn types(&self) -> Vec<BackendType> {
        let position = |kind: &BackendType| {
            ORDER
                .iter()
                .position(|known| known == kind)
                .unwrap_or(ORDER.len())
        };
        let mut types: Vec<BackendType> = self.0.iter().map(|kind| kind.kind()).collect();
        types.sort_by_key(|kind| (position(kind), kind.as_str()));
        types
    }

    /// Types whose backends have the capability.
    pub fn with(&self, has: impl Fn(&Capabilities) -> bool) -> Vec<BackendType> {
        let mut types = self.types();
        types.retain(|kind| self.get(*kind).is_some_and(|kind| has(&kind.capabilities())));
        types
    }
}
