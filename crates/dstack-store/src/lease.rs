//! Leases of servers that share a database: who counts as living, and whose commits are taken.

use std::time::Duration;

use dstack_units::InstanceId;
use uuid::Uuid;

/// A server's lease, as it is stored and as commits name it (a fencing token).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// Name of the server: the same after a restart in the same directory.
    pub owner: String,
    /// Random id of the process that holds the lease.
    pub process: Uuid,
    /// Grows each time the process takes the lease anew. What was decided under an earlier generation is not committed any
    /// more, since others may have driven the rows in between.
    pub generation: i64,
}

/// Asks for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The lease wanted.
    pub lease: Lease,
    /// The process that had the name before and is known to be dead: its lease need not run out first.
    pub predecessor: Option<Uuid>,
    /// How long the lease is good for, from now on by the store's clock.
    pub duration: Duration,
}

/// The store's answer to a [`LeaseRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// The lease is held, and has to be renewed.
    Held,
    /// There can be no other server: nothing needs to be renewed.
    Alone,
    /// A living process has the name.
    Refused {
        /// How long until its lease runs out, unless it is renewed.
        remaining: Duration,
    },
}

/// Who takes over what nobody drives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Name of the server that takes over.
    pub owner: String,
    /// The machine that only this server can reach: it and the jobs on it are taken from whoever drives them.
    pub home: Option<InstanceId>,
}
