//! What a job needs besides its rows: secrets, credentials, code, files.

use std::fmt::Debug;

use async_trait::async_trait;
use dstack_agent_api::runner::SubmitBody;
use dstack_model::runs::JobSpec;
use dstack_plan::services::replicas::Slot;
use dstack_store::JobSnapshot;
use dstack_store::rows::RunRow;
use dstack_system::Secret;

use crate::Result;

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
}

/// Why a job cannot be started at all.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// Fetches what a job needs. Secrets are put in here, immediately before the call, and kept nowhere.
#[async_trait]
pub trait Inputs: Send + Sync + Debug {
    /// The jobs of these replicas, as the run asks for them now.
    async fn jobs(&self, run: &RunRow, replicas: &[Slot]) -> Result<Result<Vec<JobSpec>, InputError>>;
    /// For the runner.
    async fn start(&self, job: &JobSnapshot) -> Result<Result<StartInputs, InputError>>;
    /// The image as it is pulled, with secrets put into the credentials.
    async fn image(&self, job: &JobSnapshot) -> Result<Result<Image, InputError>>;
    /// Public keys that may log in to the container: the project's first.
    async fn ssh_keys(&self, job: &JobSnapshot) -> Result<Vec<String>>;
}
