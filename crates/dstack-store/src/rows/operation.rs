//! Calls to the outside.

use dstack_units::{InstanceId, JobId, OperationId, Time};
use serde::{Deserialize, Serialize};

use crate::Sealed;
use crate::entity::entity;

/// What an operation does. Every kind may be repeated: agents recognise the id of the job, clouds that of the instance.
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
    /// Have a cloud make the instance.
    CreateInstance,
    /// Have the cloud end it.
    TerminateInstance,
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
        /// Idempotency key: `<job or instance id>:<kind>`.
        pub key: String,
        /// What it does.
        pub kind: OperationKind,
        /// For which job; unset: for the instance itself.
        pub job_id: Option<JobId>,
        /// On which instance.
        pub instance_id: Option<InstanceId>,
        /// How far it is.
        pub state: OperationState,
        /// Calls that failed so far.
        pub attempt: i64,
        /// When it was intended.
        pub created_at: Time,
        /// When the next call may be made.
        pub next_attempt_at: Option<Time>,
        /// What the last failed call said.
        pub error: Option<String>,
        /// What the call brought back; of one that is made of several, how far they are.
        pub result: Option<Sealed<serde_json::Value>>,
    }
}

impl OperationRow {
    /// About to be written down; `subject` is the id of the job or instance that it is for.
    pub fn intended(id: OperationId, subject: &str, kind: OperationKind, now: Time) -> Self {
        Self {
            id,
            key: format!("{subject}:{}", crate::Column::to_raw(&kind)),
            kind,
            job_id: None,
            instance_id: None,
            state: OperationState::Intended,
            attempt: 0,
            created_at: now,
            next_attempt_at: None,
            error: None,
            result: None,
            version: 0,
        }
    }
}
