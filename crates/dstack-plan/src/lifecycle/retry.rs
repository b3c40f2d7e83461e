//! Whether a failed job is tried again (dstack 0.22.5: pipelines §4.3).

use std::time::Duration;

use dstack_model::profiles::RetryEvent;
use dstack_model::runs::{JobTerminationReason, Retry};
use dstack_units::Time;

/// Back-off before a pending run is submitted again, by attempt (from 1); the last one repeats.
const BACKOFF: [u64; 6] = [15, 30, 60, 120, 300, 600];

/// How long a pending run waits before attempt `attempt`.
pub fn backoff(attempt: i64) -> Duration {
    let index = usize::try_from(attempt.max(1) - 1)
        .unwrap_or(usize::MAX)
        .min(BACKOFF.len() - 1);
    Duration::from_secs(BACKOFF.get(index).copied().unwrap_or(600))
}

/// What retrying depends on.
#[derive(Debug, Clone)]
pub struct RetryFacts<'a> {
    /// The job's retry policy.
    pub retry: Option<&'a Retry>,
    /// Why the last submission ended.
    pub reason: Option<JobTerminationReason>,
    /// When the run was submitted, or its schedule last triggered.
    pub run_started_at: Time,
    /// Last change of the last submission that got an instance.
    pub last_provisioned_at: Option<Time>,
}

/// Verdict on a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The policy does not cover this failure.
    NotRetryable,
    /// It did, for its whole duration.
    Exhausted,
    /// The retry policy covers the failure, and its duration has not run out.
    Retry,
}

/// Judges a failed job.
pub fn judge(facts: &RetryFacts<'_>, now: Time) -> Verdict {
    let (Some(retry), Some(event)) = (
        facts.retry,
        facts.reason.and_then(JobTerminationReason::retry_event),
    ) else {
        return Verdict::NotRetryable;
    };
    if !retry.on_events.contains(&event) {
        return Verdict::NotRetryable;
    }
    let since = match (event, facts.last_provisioned_at) {
        (_, Some(provisioned)) => provisioned,
        (RetryEvent::NoCapacity, None) => facts.run_started_at,
        (_, None) => return Verdict::NotRetryable,
    };
    let limit = Duration::from_secs(u64::try_from(retry.duration).unwrap_or(0));
    if now.since(since) > limit {
        Verdict::Exhausted
    } else {
        Verdict::Retry
    }
}
