use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_system::clock::SharedClock;
use dstack_units::Time;

/// What could not be had a moment ago: the same is not asked for again at once for the next job or node.
#[derive(Debug)]
pub struct RecentFailures {
    clock: SharedClock,
    lifetime: Duration,
    known: Mutex<HashMap<String, (Time, String)>>,
}

impl RecentFailures {
    /// None yet. Each counts for `lifetime`.
    pub fn new(clock: SharedClock, lifetime: Duration) -> Self {
        Self {
            clock,
            lifetime,
            known: Mutex::default(),
        }
    }

    /// What was asked for in these words could not be had just now, and why.
    pub fn note(&self, what: &str, why: String) {
        let now = self.clock.now();
        let mut known = self.lock();
        known.retain(|_, (at, _)| now < *at + self.lifetime);
        known.insert(what.to_owned(), (now, why));
    }

    /// Why the same could not be had of late, if it was asked for.
    pub fn why(&self, what: &str) -> Option<String> {
        let known = self.lock();
        let (at, why) = known.get(what)?;
        (self.clock.now() < *at + self.lifetime).then(|| why.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Time, String)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dstack_system::clock::VirtualClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_counts_for_a_while() {
        let clock = Arc::new(VirtualClock::starting_at(Time::from_millis(0)));
        let failures = RecentFailures::new(clock, Duration::from_secs(60));
        failures.note("2 x H100", "none left".to_owned());
        assert_eq!(failures.why("2 x H100").as_deref(), Some("none left"));
        assert_eq!(failures.why("1 x H100"), None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(failures.why("2 x H100"), None);
    }
}
