//! What a job needs besides its rows: secrets, credentials, code, files.

use std::fmt::Debug;

use async_trait::async_trait;
use dstack_agent_api::runner::SubmitBody;
use dstack_model::runs::JobSpec;
use dstack_store::JobSnapshot;
use dstack_store::rows::RunRow;

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

/// Why a job cannot be started at all.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// Fetches what a job needs. Secrets are put in here, immediately before the call, and kept nowhere.
#[async_trait]
pub trait Inputs: Send + Sync + Debug {
    /// The jobs of a run that has none yet, its schedule's time having come.
    async fn jobs(&self, run: &RunRow) -> Result<Result<Vec<JobSpec>, InputError>>;
    /// For the runner.
    async fn start(&self, job: &JobSnapshot) -> Result<Result<StartInputs, InputError>>;
    /// Credentials of the image's registry (user, password), with secrets put in.
    async fn registry_auth(
        &self,
        job: &JobSnapshot,
    ) -> Result<Result<Option<(String, dstack_system::Secret)>, InputError>>;
    /// Public keys that may log in to the container: the project's first.
    async fn ssh_keys(&self, job: &JobSnapshot) -> Result<Vec<String>>;
}
