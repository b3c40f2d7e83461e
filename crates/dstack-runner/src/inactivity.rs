//! How long nobody has been connected to the job.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A shorter connection is not a person's: the server looks in now and then.
const COUNTS_AFTER: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2500);

/// Who is connected to the job's SSH server.
pub trait Connections: Send + Sync + std::fmt::Debug {
    /// Ages of the connections that are open now.
    fn ages(&self) -> Vec<Duration>;
}

/// Seconds without a connection, for pulls. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Inactivity {
    seen: Arc<Mutex<Option<Seen>>>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    last_check: Instant,
    last_active: Instant,
}

impl Inactivity {
    /// Time from the last connection that counts (or the first look) to the last look; 0 before that.
    pub fn seconds(&self) -> i64 {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = seen.map_or(Duration::ZERO, |seen| seen.last_check - seen.last_active);
        i64::try_from(quiet.as_secs()).unwrap_or(i64::MAX)
    }

    /// Looks every 2.5 s, until dropped.
    pub async fn track(self, connections: Arc<dyn Connections>) {
        loop {
            self.look(&connections.ages(), Instant::now());
            sleep(LOOK_EVERY).await;
        }
    }

    fn look(&self, ages: &[Duration], now: Instant) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.get_or_insert(Seen {
            last_check: now,
            last_active: now,
        });
        seen.last_check = now;
        if ages.iter().any(|age| *age >= COUNTS_AFTER) {
            seen.last_active = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_connections_count() {
        let inactivity = Inactivity::default();
        assert_eq!(inactivity.seconds(), 0);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        inactivity.look(&[], at(0));
        inactivity.look(&[Duration::from_secs(9)], at(30));
        assert_eq!(inactivity.seconds(), 30);
        inactivity.look(&[Duration::from_secs(1), Duration::from_secs(10)], at(40));
        assert_eq!(inactivity.seconds(), 0);
        inactivity.look(&[], at(47));
        assert_eq!(inactivity.seconds(), 7);
    }
}
