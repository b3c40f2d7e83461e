//! What the API asks of the engine.

use std::fmt::Debug;

use async_trait::async_trait;
use dstack_store::{Commit, EngineStore, SqlStore, StoreError};

/// The engine, as far as handlers see it.
#[async_trait]
pub trait EngineHandle: Send + Sync + Debug {
    /// Writes rows and events in one transaction and wakes whom they concern.
    async fn commit(&self, commit: Commit) -> Result<(), StoreError>;

    /// Whether hosts of SSH fleets are connected to.
    fn connects_hosts(&self) -> bool;
}

/// No engine in this process: changes are written, another server acts upon them.
#[derive(Debug, Clone)]
pub struct NoEngine(pub SqlStore);

#[async_trait]
impl EngineHandle for NoEngine {
    async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
        self.0.commit(commit).await
    }

    fn connects_hosts(&self) -> bool {
        true
    }
}
