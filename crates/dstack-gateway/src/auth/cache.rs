//! What servers answered. Bounded: whoever tries many tokens pushes out only what was denied.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_system::Locked;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::{FRESH, PAUSE, STALE, Verdict};

/// Most answers that are kept.
const MOST: usize = 16_384;

type Key = (String, [u8; 32]);

/// Answers by project and digest of the token.
#[derive(Debug, Default)]
pub(super) struct Cache(HashMap<Key, Arc<Slot>>);

/// What is known of one token and project.
#[derive(Debug, Default)]
pub(super) struct Slot {
    known: Locked<Known>,
    asking: Arc<Mutex<()>>,
}

/// Of one who asks for what others need as well.
pub(super) type Turn = OwnedMutexGuard<()>;

/// The last answer, and the last failure to get one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    answer: Option<(bool, Instant)>,
    failed: Option<Instant>,
}

impl Known {
    pub(super) const fn answered(allowed: bool, now: Instant) -> Self {
        Self {
            answer: Some((allowed, now)),
            failed: None,
        }
    }

    /// The answer, as long as it holds.
    pub(super) fn fresh(&self, now: Instant) -> Option<Verdict> {
        let (allowed, since) = self.answer.filter(|(_, since)| now < *since + FRESH)?;
        debug_assert!(since <= now);
        Some(match allowed {
            true => Verdict::Allowed,
            false => Verdict::Denied,
        })
    }

    /// What holds while no server can be asked, or none has answered yet.
    pub(super) fn stale(&self, now: Instant) -> Verdict {
        match self.answer {
            Some((true, since)) if now < since + STALE => Verdict::Allowed,
            _ => Verdict::Unknown,
        }
    }

    pub(super) fn has_just_failed(&self, now: Instant) -> bool {
        self.failed.is_some_and(|failed| now < failed + PAUSE)
    }

    /// Of no use any more.
    fn is_over(&self, now: Instant) -> bool {
        match self.answer {
            Some((true, since)) => now >= since + STALE,
            Some((false, since)) => now >= since + FRESH,
            None => true,
        }
    }
}

impl Slot {
    pub(super) fn known(&self) -> Known {
        *self.known.lock()
    }

    /// Waits until nobody asks.
    pub(super) async fn asking(&self) -> Turn {
        Arc::clone(&self.asking).lock_owned().await
    }

    /// A turn if nobody asks.
    pub(super) fn asking_alone(&self) -> Option<Turn> {
        Arc::clone(&self.asking).try_lock_owned().ok()
    }

    /// Keeps an answer, and returns it.
    pub(super) fn note(&self, known: Known) -> Verdict {
        *self.known.lock() = known;
        match known.answer {
            Some((true, _)) => Verdict::Allowed,
            _ => Verdict::Denied,
        }
    }

    /// No server could be asked.
    pub(super) fn failed(&self, known: Known, problem: &str, now: Instant) -> Verdict {
        let verdict = known.stale(now);
        tracing::warn!(problem, ?verdict, "no server tells who may use a project");
        let failed = Some(now);
        *self.known.lock() = Known { failed, ..known };
        verdict
    }
}

impl Cache {
    /// What is known of a token and a project, or where that is noted.
    pub(super) fn slot(&mut self, project: &str, digest: [u8; 32], now: Instant) -> Arc<Slot> {
        let key = (project.to_owned(), digest);
        if let Some(slot) = self.0.get(&key) {
            return Arc::clone(slot);
        }
        if self.0.len() >= MOST {
            self.make_room(now);
        }
        let slot = Arc::new(Slot::default());
        self.0.insert(key, Arc::clone(&slot));
        slot
    }

    /// Forgets what is over; if that is little, what was denied, and then everything.
    fn make_room(&mut self, now: Instant) {
        let half = MOST / 2;
        self.0.retain(|_, slot| !slot.known().is_over(now));
        if self.0.len() > half {
            self.0
                .retain(|_, slot| matches!(slot.known().answer, Some((true, _))));
        }
        if self.0.len() > half {
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn answers_hold_for_a_minute_and_longer_while_nobody_can_be_asked() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let allowed = Known::answered(true, start);
        assert_eq!(allowed.fresh(after(59)), Some(Verdict::Allowed));
        assert_eq!(allowed.fresh(after(60)), None);
        assert_eq!(allowed.stale(after(599)), Verdict::Allowed);
        assert_eq!(allowed.stale(after(600)), Verdict::Unknown);
        let denied = Known::answered(false, start);
        assert_eq!(denied.fresh(after(59)), Some(Verdict::Denied));
        assert_eq!(denied.stale(after(61)), Verdict::Unknown);
    }

    #[test]
    fn many_wrong_tokens_do_not_push_out_the_right_one() {
        let now = Instant::now();
        let mut cache = Cache::default();
        let right = [1; 32];
        cache.slot("main", right, now).note(Known::answered(true, now));
        for number in 0..3 * MOST as u64 {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            cache.slot("main", digest, now).note(Known::answered(false, now));
        }
        assert!(cache.0.len() <= MOST);
        assert_eq!(
            cache.slot("main", right, now).known().fresh(now),
            Some(Verdict::Allowed)
        );
    }
}
