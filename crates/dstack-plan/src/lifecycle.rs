//! What happens next to a run, a job, an instance, a fleet: functions of facts and the time.
//!
//! Every decision names the next status, the operations to intend, and, where something is waited for, until
//! when and for what. The tables of allowed transitions are in [`transitions`].

pub mod fleet;
pub mod instance;
pub mod job;
pub mod policies;
pub mod retry;
pub mod run;
pub mod transitions;

use dstack_units::Time;

/// A wait: no state is waited in without a deadline and a reason that a user can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// When the wait ends badly; `None` where the reference waits for ever on purpose (a running job without
    /// `max_duration`).
    pub deadline: Option<Time>,
    /// When to look again although nothing woke us.
    pub wake_at: Option<Time>,
    /// What is waited for.
    pub reason: String,
}

impl Wait {
    /// Until `deadline`, for `reason`.
    pub fn until(deadline: Time, reason: impl Into<String>) -> Self {
        Self {
            deadline: Some(deadline),
            wake_at: Some(deadline),
            reason: reason.into(),
        }
    }

    /// Nothing is waited for.
    pub const fn for_nothing() -> Self {
        Self {
            deadline: None,
            wake_at: None,
            reason: String::new(),
        }
    }

    /// The same, looked at again at `at` if that is earlier.
    #[must_use]
    pub fn or_at(mut self, at: Time) -> Self {
        self.wake_at = Some(self.wake_at.map_or(at, |wake| wake.min(at)));
        self
    }
}
