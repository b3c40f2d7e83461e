//! Where the output of jobs goes.

use std::fmt::Debug;

use async_trait::async_trait;
use dstack_store::rows::JobRow;
use dstack_units::JobId;

use crate::Result;

/// A piece of output with the runner's time in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// When it was written.
    pub timestamp: i64,
    pub bytes: Vec<u8>,
}

/// A batch of output of one job, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Of the commands.
    pub job: Vec<Piece>,
    /// Of the runner itself.
    pub runner: Vec<Piece>,
}

/// Stores output. Appending the same pieces again must not store them twice (they are told apart by their time).
#[async_trait]
pub trait Output: Send + Sync + Debug {
    /// Durable when it returns.
    async fn append(&self, job: &JobRow, batch: Batch) -> Result<()>;

    /// This server has nothing more to append for the job, at least for now: what is kept open for it is closed.
    fn release(&self, _job: JobId) {}

    /// The job is over: nothing has to be known of it any more.
    fn forget(&self, _job: JobId) {}
}
