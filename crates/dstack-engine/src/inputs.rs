//! What a job needs besides its rows: secrets, credentials, code, files.

use std::fmt::Debug;

use async_trait::async_trait;
use dstack_agent_api::runner::SubmitBody;
use dstack_compute::Owner;
use dstack_model::runs::JobSpec;
use dstack_plan::services::replicas::Slot;
use dstack_store::rows::{FleetRow, GatewayRow, InstanceRow, RunRow};
use dstack_store::{JobSnapshot, StoreError};
use dstack_system::Secret;
use dstack_units::{InstanceId, ProjectId};

use crate::peers::RunJobs;

/// All that is handed to the runner.
#[derive(Debug, Clone, Default)]
pub struct StartInputs {
    /// Job, run and cluster.
    pub body: SubmitBody,
    /// Archives of files: id, tar.
    pub archives: Vec<(String, Vec<u8>)>,
    /// Code: a tar or a diff.
    pub code: Option<Vec<u8>>,
}

/// Where a job's image comes from.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// Its name, with the registry.
    pub name: String,
    /// User and password of the registry.
    pub credentials: Option<(String, Secret)>,
    /// The job has none, and those are the server's own.
    pub are_credentials_servers: bool,
}

/// Public keys, each a line `type base64 [comment]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SshKeys {
    /// Those that may log in to the container: the project's first.
    pub container: Vec<String>,
    /// Those that may pass through the host on their way to the container, as long as the job is there.
    pub host: Vec<String>,
}

/// What a machine is made with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineInputs {
    /// For whom it is.
    pub owner: Owner,
    /// Public keys that may log in, each a line `type base64 [comment]`: the project's first.
    pub authorized_keys: Vec<String>,
}

/// Why what a job needs is not there.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// A database, a bucket or a registry does not answer now: to be asked again, whatever waits for it.
    #[error("what the job needs cannot be fetched now")]
    Transient(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It will never be there as things are: no secret, archive, image of that name. The text is for users.
    #[error("{0}")]
    Refused(String),
}

impl InputsError {
    /// Does not answer now.
    pub fn transient(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Transient(error.into())
    }
}

impl From<StoreError> for InputsError {
    fn from(error: StoreError) -> Self {
        Self::transient(error)
    }
}

/// Fetches what a job needs. Secrets are put in here, immediately before the call, and kept nowhere.
#[async_trait]
pub trait Inputs: Send + Sync + Debug {
    /// The jobs of these replicas, as the run asks for them now.
    async fn jobs(&self, run: &RunRow, replicas: &[Slot]) -> Result<Vec<JobSpec>, InputsError>;
    /// What the machine of an instance is made with. `fleet` is its fleet.
    async fn machine(
        &self,
        instance: &InstanceRow,
        fleet: Option<&FleetRow>,
    ) -> Result<MachineInputs, InputsError>;
    /// What machines of a gateway are made with.
    async fn gateway(&self, gateway: &GatewayRow) -> Result<MachineInputs, InputsError>;
    /// For the runner. `jobs` are those of the job's run if it must know of them, or else the job alone.
    async fn start(&self, job: &JobSnapshot, jobs: &RunJobs) -> Result<StartInputs, InputsError>;
    /// The image as it is pulled, with secrets put into the credentials. `has_efa`: for a machine with
    /// [EFA](dstack_compute::JobNeeds::has_efa).
    async fn image(&self, job: &JobSnapshot, has_efa: bool) -> Result<Image, InputsError>;
    /// Public keys that may log in.
    async fn ssh_keys(&self, job: &JobSnapshot) -> Result<SshKeys, InputsError>;
    /// What calls to the job's runner are authorized with: the same at every server and after every restart, another one
    /// for each job.
    async fn runner_token(&self, job: &JobSnapshot) -> Result<Secret, InputsError>;
    /// What calls to the shim of an instance that is reached over a network are authorized with: the same at every server and
    /// after every restart, another one for each instance. `project` is that of the instance.
    async fn shim_token(&self, project: ProjectId, instance: InstanceId) -> Result<Secret, InputsError>;
}
