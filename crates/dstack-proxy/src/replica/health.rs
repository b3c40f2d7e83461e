//! Whether a replica gets requests. Pure: the time is handed in.

use std::time::Duration;

use tokio::time::Instant;

/// How long a replica is left out after its first failure. Each one more doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest that it is left out.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What may be sent to a replica now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Any request.
    Up,
    /// One request: it was left out for long enough, and nobody tries it.
    Due,
    /// No request, unless there is no other replica.
    Out {
        /// When it may be tried.
        until: Instant,
    },
}

/// What is known of a replica from its last requests.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Failures since an answer was complete.
    failures: u32,
    out_until: Option<Instant>,
    /// A request finds out whether it works again.
    tried: bool,
}

impl Health {
    /// What may be sent to it at this time.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        match self.out_until {
            None => Standing::Up,
            Some(until) if now >= until && !self.tried => Standing::Due,
            Some(until) => Standing::Out { until },
        }
    }

    /// A request is about to be sent to it; returns whether it is one that finds out whether it works again.
    pub(crate) fn sent(&mut self) -> bool {
        self.tried |= self.out_until.is_some();
        self.tried
    }

    /// It could not be reached, or its answer broke.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.tried = false;
        if self.out_until.is_some_and(|until| now < until) {
            return; // requests that were under way when it failed: one failure
        }
        self.failures = self.failures.saturating_add(1);
        self.out_until = Some(now + pause_after(self.failures));
    }

    /// It has begun an answer.
    pub(crate) fn answered(&mut self) {
        self.tried = false;
        self.out_until = None;
    }

    /// One of its answers has come to its end.
    pub(crate) fn completed(&mut self) {
        if self.out_until.is_none() {
            self.failures = 0;
        }
    }

    /// The request that was to find out whether it works has ended without telling.
    pub(crate) fn given_up(&mut self) {
        self.tried = false;
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
        assert!(!health.sent(), "an ordinary request");
        health.failed(start);
        let until = after(start, 500);
        assert_eq!(health.standing(after(start, 499)), Standing::Out { until });
        assert_eq!(health.standing(until), Standing::Due);
        assert!(health.sent());
        assert_eq!(
            health.standing(until),
            Standing::Out { until },
            "another one tries it"
        );
        health.given_up();
        assert_eq!(health.standing(until), Standing::Due);
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
