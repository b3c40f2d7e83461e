//! Calls to the outside.

use std::time::Duration;

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
        /// Calls of which something was written down so far.
        pub attempt: i64,
        /// When it was intended.
        pub created_at: Time,
        /// When the next call may be made; unset: at once. Of one that has ended: when it may be intended anew.
        pub next_attempt_at: Option<Time>,
        /// What the last failed call said.
        pub error: Option<String>,
        /// What the call brought back; of one that is made of several, how far they are.
        pub notes: Option<Sealed<serde_json::Value>>,
    }
}

/// An operation that is intended anew so long after it might have been has nothing to do with what was before.
const UNRELATED: Duration = Duration::from_secs(60 * 60);

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

    /// The same once more, from its beginning, whether it has ended or not. Calls count on, unless the last ones were long ago:
    /// pauses grow with them.
    #[must_use]
    pub fn anew(self, now: Time) -> Self {
        let is_related = self.next_attempt_at.is_some_and(|at| now < at + UNRELATED);
        Self {
            state: OperationState::Intended,
            attempt: if is_related { self.attempt } else { 0 },
            next_attempt_at: None,
            error: None,
            notes: None,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_is_intended_anew_counts_on_for_a_while() {
        let at = Time::from_millis;
        let subject = EntityRef::Instance(Uuid::from_u128(1).into());
        let first = OperationRow::intended(Uuid::from_u128(2).into(), subject, OperationKind::Prepare, at(0));
        let ended = OperationRow {
            state: OperationState::Done,
            attempt: 4,
            next_attempt_at: Some(at(60_000)),
            notes: Some(Sealed::new(serde_json::json!({}))),
            ..first.clone()
        };
        let soon = ended.clone().anew(at(70_000));
        assert_eq!(
            soon,
            OperationRow {
                attempt: 4,
                ..first.clone()
            }
        );
        assert_eq!(ended.anew(at(60_000 + 3_600_000)), first);
    }
}
