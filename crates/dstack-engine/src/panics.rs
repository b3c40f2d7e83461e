//! Work that panicked, and when it is tried again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wakes::Key;

/// Pause after a first panic; it doubles with each further one in a row, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How often each kind of work on each entity has panicked in a row.
#[derive(Debug, Default)]
pub struct Panics(Mutex<HashMap<(&'static str, Key), u32>>);

impl Panics {
    fn lock(&self) -> MutexGuard<'_, HashMap<(&'static str, Key), u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a panic; returns the pause before the work is tried again.
    pub fn add(&self, work: &'static str, key: Key) -> Duration {
        let mut counts = self.lock();
        let count = counts.entry((work, key)).or_insert(0);
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(*count);
        *count = count.saturating_add(1);
        pause.min(LONGEST_PAUSE)
    }

    /// The work came to an end.
    pub fn clear(&self, work: &'static str, key: Key) {
        self.lock().remove(&(work, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_the_work_succeeds() {
        let (panics, key) = (Panics::default(), Key::Schedule(uuid::Uuid::nil().into()));
        let pauses: Vec<u64> = (0..8).map(|_| panics.add("x", key).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(panics.add("y", key).as_secs(), 1);
        panics.clear("x", key);
        assert_eq!(panics.add("x", key).as_secs(), 1);
    }
}
