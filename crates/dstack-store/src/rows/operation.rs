//! Calls to the outside.

use dstack_units::{OperationId, Time};
use serde::{Deserialize, Serialize};

use crate::entity::entity;
use crate::{Column, EntityRef, Sealed};

/// What an operation does. Every kind may be repeated: agents recognise the id of the job, clouds that of what they made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// Hand the task to the shim.
    SubmitTask,
    /// Hand job, code and files to the runner and start the commands.
    StartJob,
    /// Ask the runner to end the commands.
    StopJob,
    /// End the container and remove everything of the task.
    RemoveTask,
    /// Have a cloud make the subject.
    Create,
    /// Have the cloud end it.
    Remove,
    /// Set up the agent of a host of a fleet, over SSH.
    Prepare,
    /// Take the agent and the keys off the host again.
    Release,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// Written down; the call may or may not have been made: it is made (again).
    Intended,
    /// The other side confirmed.
    Done,
    /// Refused for good.
    Failed,
}

entity! {
    /// A call to the outside, written down before it is made.
    OperationRow in "operations" {
        /// Id.
        key id: OperationId,
        /// Idempotency key: `<id of the subject>:<kind>`.
        pub key: String,
        /// What it does.
        pub kind: OperationKind,
        /// For whom it is made.
        pub subject: EntityRef,
        /// How far it is.
        pub state: OperationState,
        /// Calls that failed so far.
        pub attempt: i64,
        /// When it was intended.
        pub created_at: Time,
        /// When the next call may be made; unset: at once.
        pub next_attempt_at: Option<Time>,
        /// What the last failed call said.
        pub error: Option<String>,
        /// What the call brought back; of one that is made of several, how far they are.
        pub notes: Option<Sealed<serde_json::Value>>,
    }
}

impl OperationRow {
    /// About to be written down.
    pub fn intended(id: OperationId, subject: EntityRef, kind: OperationKind, now: Time) -> Self {
        Self {
            id,
            key: format!("{}:{}", subject.uuid(), kind.to_raw()),
            kind,
            subject,
            state: OperationState::Intended,
            attempt: 0,
            created_at: now,
            next_attempt_at: None,
            error: None,
            notes: None,
            version: 0,
        }
    }
}
