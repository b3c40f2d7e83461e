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

impl RetryFacts<'_> {
    /// The same of a job that is wanted since that time: what was before takes nothing of its limit.
    #[must_use]
    pub fn wanted_since(self, at: Option<Time>) -> Self {
        let later = |time: Time| at.map_or(time, |at| at.max(time));
        Self {
            run_started_at: later(self.run_started_at),
            last_provisioned_at: self.last_provisioned_at.map(later),
            ..self
        }
    }
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

#[cfg(test)]
mod tests {
    use dstack_model::runs::JobTerminationReason;

    use super::*;

    #[test]
    fn the_limit_counts_from_when_the_replica_was_wanted() {
        let start = Time::from_millis(1_790_000_000_000);
        let at = |seconds| start + Duration::from_secs(seconds);
        let retry = Retry {
            on_events: vec![RetryEvent::NoCapacity],
            duration: 3600,
        };
        for last_provisioned_at in [None, Some(at(60))] {
            let facts = RetryFacts {
                retry: Some(&retry),
                reason: Some(JobTerminationReason::FailedToStartDueToNoCapacity),
                run_started_at: start,
                last_provisioned_at,
            };
            assert_eq!(judge(&facts, at(10_000)), Verdict::Exhausted);
            let wanted = facts.wanted_since(Some(at(9000)));
            assert_eq!(judge(&wanted, at(10_000)), Verdict::Retry);
            assert_eq!(judge(&wanted, at(13_000)), Verdict::Exhausted);
        }
    }
}
