//! Ids, times, durations, sizes, ranges and the small grammars of the configuration language.
//!
//! Everything here parses from and prints to the exact normal form of the dstack 0.22.5 API, and knows
//! nothing of the types that are built from it.

pub mod id;
pub mod time;

pub use id::{
    ArchiveId, EventId, FleetId, InstanceId, JobId, OperationId, ProjectId, RepoRowId, RunId, SecretId,
    UserId,
};
pub use time::Time;
