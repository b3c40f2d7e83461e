//! The engine where this process has none.

use async_trait::async_trait;
use dstack_control::EngineHandle;
use dstack_store::{Commit, EngineStore, SqlStore, StoreError};

/// No engine in this process: changes are written, another server acts upon them.
#[derive(Debug, Clone)]
pub struct NoEngine(pub SqlStore);

#[async_trait]
impl EngineHandle for NoEngine {
    async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
        self.0.commit(commit).await
    }
}
