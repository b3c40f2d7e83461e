//! Whether a replica gets requests. Pure: the time is handed in.

use std::time::Duration;

use tokio::time::Instant;

/// How long a replica is left out after its first failure. Each one more doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest that it is left out.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A request that finds out whether a replica works again may take as long as it likes. The next one does not wait for it.
const BETWEEN_TRIALS: Duration = Duration::from_secs(2);
/// A failure that is longer ago tells nothing of the next one.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What may be sent to a replica now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Any request.
    Up,
    /// One request: it was left out for long enough, and nobody has begun to try it in the last 2 s.
    Due,
    /// No request, unless there is no other replica.
    Out {
        /// When it may be tried.
        until: Instant,
    },
}

/// A request that finds out whether a replica works again; when it began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial(Instant);

/// What is known of a replica from its last requests.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Failures since an answer was complete, those left out that came a minute or more before the next one.
    failures: u32,
    last_failure: Option<Instant>,
    out_until: Option<Instant>,
    /// When the last request began that finds out whether it works again.
    tried: Option<Instant>,
}

impl Health {
    /// What may be sent to it at this time.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        match self.out_until {
            None => Standing::Up,
            Some(until) if now >= until && !self.is_tried(now) => Standing::Due,
            Some(until) => Standing::Out { until },
        }
    }

    fn is_tried(&self, now: Instant) -> bool {
        self.tried.is_some_and(|began| now < began + BETWEEN_TRIALS)
    }

    /// A request is about to be sent to it; returns the trial if it is one that finds out whether it works again.
    pub(crate) fn sent(&mut self, now: Instant) -> Option<Trial> {
        self.out_until?;
        self.tried = Some(now);
        Some(Trial(now))
    }

    /// It could not be reached, or its answer broke.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.tried = None;
        if self.out_until.is_some_and(|until| now < until) {
            return; // requests that were under way when it failed: one failure
        }
        if self.last_failure.is_some_and(|last| now >= last + REMEMBERED) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.last_failure = Some(now);
        self.out_until = Some(now + pause_after(self.failures));
    }

    /// It has begun an answer.
    pub(crate) fn answered(&mut self) {
        self.tried = None;
        self.out_until = None;
    }

    /// One of its answers has come to its end.
    pub(crate) fn completed(&mut self) {
        if self.out_until.is_none() {
            self.failures = 0;
        }
    }

    /// The request that was to find out whether it works has ended without telling.
    pub(crate) fn given_up(&mut self, trial: Trial) {
        self.tried = self.tried.filter(|began| *began != trial.0);
    }

    /// Nothing is known against it.
    pub(crate) fn is_well(&self) -> bool {
        self.failures == 0 && self.out_until.is_none()
    }
}

fn pause_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    LONGEST_PAUSE.min(FIRST_PAUSE * (1 << doublings))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_up_to_ten_seconds() {
        let seconds: Vec<f32> = (1..=8).map(|n| pause_after(n).as_secs_f32()).collect();
        assert_eq!(seconds, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]);
        assert_eq!(pause_after(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn after_its_pause_it_is_tried_by_one_request_at_a_time() {
        let start = Instant::now();
        let mut health = Health::default();
        assert!(health.sent(start).is_none(), "an ordinary request");
        health.failed(start);
        let until = after(start, 500);
        assert_eq!(health.standing(after(start, 499)), Standing::Out { until });
        assert_eq!(health.standing(until), Standing::Due);
        let trial = health.sent(until).unwrap();
        assert_eq!(
            health.standing(until),
            Standing::Out { until },
            "another one tries it"
        );
        health.given_up(trial);
        assert_eq!(health.standing(until), Standing::Due);
    }

    #[test]
    fn a_slow_trial_keeps_it_out_for_two_seconds_only() {
        let start = Instant::now();
        let mut health = Health::default();
        health.failed(start);
        let until = after(start, 500);
        let slow = health.sent(until).unwrap();
        assert_eq!(health.standing(after(until, 1999)), Standing::Out { until });
        assert_eq!(health.standing(after(until, 2000)), Standing::Due);
        health.sent(after(until, 2000)).unwrap();
        health.given_up(slow);
        let next = after(until, 3999);
        assert_eq!(
            health.standing(next),
            Standing::Out { until },
            "the second one tries it"
        );
    }

    #[test]
    fn failures_of_more_than_a_minute_ago_are_forgotten() {
        let start = Instant::now();
        let mut health = Health::default();
        health.failed(start);
        health.failed(after(start, 59_999));
        let until = after(start, 59_999 + 1000);
        assert_eq!(health.standing(after(start, 60_000)), Standing::Out { until });
        health.failed(after(start, 59_999 + 60_000));
        assert_eq!(health.failures, 1);
    }

    #[test]
    fn failures_at_the_same_time_count_once_and_an_answer_ends_the_pause() {
        let start = Instant::now();
        let mut health = Health::default();
        (0..100).for_each(|_| health.failed(start));
        assert_eq!(health.standing(after(start, 500)), Standing::Due);
        health.answered();
        assert_eq!(health.standing(start), Standing::Up);
        assert!(!health.is_well(), "it has yet to complete an answer");
        health.failed(start);
        let until = after(start, 1000);
        assert_eq!(
            health.standing(start),
            Standing::Out { until },
            "the pause has grown"
        );
        health.answered();
        health.completed();
        assert!(health.is_well());
    }
}
