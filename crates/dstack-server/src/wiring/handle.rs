//! The API's way to the engine.

use async_trait::async_trait;
use dstack_engine::{Engine, EngineError};
use dstack_plan::lifecycle::job::ToldClient;
use dstack_store::{Commit, StoreError};
use dstack_units::{JobId, RunId};

use dstack_control::EngineHandle;

/// An engine in this process.
#[derive(Debug, Clone)]
pub struct Connected(pub Engine);

#[async_trait]
impl EngineHandle for Connected {
    async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
        self.0.commit(commit).await.map_err(|error| match error {
            EngineError::Store(error) => error,
            EngineError::Logs(_)
            | EngineError::Inputs(_)
            | EngineError::LeaseLost
            | EngineError::NameTaken(_)
            | EngineError::Killed(_) => StoreError::Closed,
        })
    }

    fn client_told(&self, run: RunId, jobs: &[JobId], what: ToldClient) {
        self.0.client_told(run, jobs, what);
    }
}
