//! Persistence on SQLite and PostgreSQL.
//!
//! One schema and one SQL text serve both: ids, enums and JSON are `TEXT`, times are microseconds in `BIGINT`,
//! parameters are `$1, $2, …` (which both understand), and `sqlx::Any` carries them. See `docs/adr/001-sqlx-any.md`.
//!
//! * [`Database`] opens the database, migrates it, and runs reads and writes.
//! * [`queries`] are reads beyond the engine's, by subject; [`writes`] are the changes that verbs put together.
//! * [`rows`] are the entities of the engine, one struct per table.
//! * [`EngineStore`] is what the engine needs: snapshots to decide upon, and [`Commit`]s that change several
//!   rows, write their events and add operations in one transaction, or not at all.
//! * [`SqlStore`] and [`MemoryStore`] implement it: the latter for simulation.

#![warn(missing_docs)]

mod batch_loader;
pub mod changes;
pub mod commit;
mod committer;
mod connection;
pub mod database;
pub mod encryption;
mod entities;
mod entity;
pub mod events;
mod float8;
mod installation;
pub mod lease;
pub mod legacy;
pub mod memory;
mod migrations;
pub mod notices;
mod observer;
mod outage;
pub mod queries;
pub mod raw;
mod reads;
pub mod rows;
pub mod snapshot;
mod sql;
mod value;
pub mod writes;

use std::sync::Arc;

pub use changes::Changes;
pub use commit::{Commit, EventTarget, NewEvent, Put, Removal};
pub use database::{Database, DatabaseOptions, Dialect, Tx};
pub use encryption::{RowKeys, Sealed};
pub use entities::{EntityRef, UnknownEntity};
pub use entity::{Column, Entity, Json, Statement};
pub use events::EventMaker;
pub use float8::Float8;
pub use lease::{Acquired, Claim, Lease, LeaseRequest};
pub use memory::MemoryStore;
pub use observer::ChangeObserver;
pub use snapshot::{
    AttachmentSnapshot, AttachmentsOf, ChangeFeed, ComputeGroupSnapshot, EngineStore, FleetSnapshot,
    GatewayReplicaSnapshot, GatewaySnapshot, GroupOfInstance, InstanceSnapshot, JobSnapshot,
    PlacementGroupSnapshot, PlacementSnapshot, RunSnapshot, VolumeJob, VolumeSnapshot, VolumeUse,
};
pub use sql::SqlStore;
pub use value::Value;

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A row was changed by someone else since it was read: read again and decide again.
    #[error("{entity} {id} was changed meanwhile")]
    Conflict {
        /// Table of the row.
        entity: &'static str,
        /// The row's id.
        id: String,
    },
    /// The server that decided on the commit no longer has the lease under which it did: others may drive the rows.
    #[error("the lease of server {owner} has run out")]
    LeaseLost {
        /// Name of the server.
        owner: String,
    },
    /// The row does not exist.
    #[error("{entity} {id} does not exist")]
    Missing {
        /// Table of the row.
        entity: &'static str,
        /// The row's id.
        id: String,
    },
    /// A status was to follow one that it must not follow.
    #[error(transparent)]
    Transition(#[from] rows::TransitionError),
    /// A stored value cannot be read.
    #[error("the stored value of {entity}.{column} cannot be read")]
    Corrupt {
        /// Table of the row.
        entity: &'static str,
        /// Column of the value.
        column: &'static str,
        /// What the decoder said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A value cannot be decrypted: the key is missing from `encryption.keys`.
    #[error(
        "a stored secret cannot be decrypted: the key it was encrypted with is not among the configured encryption keys"
    )]
    Undecryptable,
    /// The database URL cannot be used.
    #[error("the database URL is not usable: {reason}")]
    Url {
        /// What is wrong with it.
        reason: String,
    },
    /// The schema could not be brought up to date.
    #[error("migration {version} of the database failed")]
    Migration {
        /// Number of the migration.
        version: i64,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// The database was written by a newer version.
    #[error(
        "the database has schema version {found}, as a newer server has made it, and this server knows those up to {known}: start the \
         newer server, or restore the database from a backup that was made before it"
    )]
    TooNew {
        /// Version found in the database.
        found: i64,
        /// Latest version known here.
        known: i64,
    },
    /// What was to be deleted is in use.
    #[error("in use by {by}: {}", names.join(", "))]
    InUse {
        /// `runs`, `fleets`, `volumes` or `instances`.
        by: &'static str,
        /// Names of those, or of what they need.
        names: Vec<String>,
    },
    /// A backend that was to be deleted has placement groups, which only it can end.
    #[error("the backend {kind} has placement groups of fleets: {}", fleets.join(", "))]
    HasPlacementGroups {
        /// Type of the backend, such as `aws`.
        kind: String,
        /// Names of the fleets, each once: of those that are there, unless there are none.
        fleets: Vec<String>,
        /// They are there, and keep their groups; otherwise their groups are being deleted.
        are_there: bool,
    },
    /// There are as many already as there may be.
    #[error("there are as many already as there may be")]
    TooMany,
    /// The store in memory has no table for this.
    #[error("the store in memory keeps no users, projects or what they have")]
    NotKept,
    /// The writer has stopped (the server is shutting down).
    #[error("the database is closed")]
    Closed,
    /// The transaction, or the statement, that this was part of failed; the cause is shared by all of them.
    #[error("database error")]
    Commit(#[source] Arc<sqlx::Error>),
    /// The database did not answer in time: what was asked may still be done.
    #[error("the database did not answer within {0:?}")]
    Slow(std::time::Duration),
    /// The work in a transaction panicked: nothing of it is written.
    #[error("a write to the database panicked: nothing of it was written")]
    Panicked(#[from] dstack_system::task::Panicked),
    /// The database refused.
    #[error("database error")]
    Sql(#[from] sqlx::Error),
}

/// Why a database that is there cannot do anything now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// It cannot be reached, or is starting, stopping or too slow.
    Unreachable,
    /// Its disk is full.
    DiskFull,
}

impl StoreError {
    /// Of a row that is not as it was read.
    pub(crate) fn conflict(entity: &'static str, id: &impl ToString) -> Self {
        Self::Conflict {
            entity,
            id: id.to_string(),
        }
    }

    /// Whether reading again and deciding again may succeed.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Sql(error) => outage::is_race(error),
            Self::Commit(error) => outage::is_race(error),
            _ => false,
        }
    }

    /// Whether a uniqueness rule was violated.
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(e)) if e.is_unique_violation())
    }

    /// Whether the same may succeed later, without anything being changed but the database's own state.
    pub fn unavailable(&self) -> Option<Unavailable> {
        match self {
            Self::Closed | Self::Slow(_) => Some(Unavailable::Unreachable),
            Self::Commit(error) => outage::of(error),
            Self::Sql(error) | Self::Migration { source: error, .. } => outage::of(error),
            _ => None,
        }
    }
}

/// Result of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;
