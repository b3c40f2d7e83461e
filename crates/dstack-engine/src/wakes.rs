//! Who wants to be looked at, and when.
//!
//! Each key is handed to one worker at a time; a wake that comes meanwhile hands it out once more afterwards, so
//! that no change is missed and no two workers decide about the same entity.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dstack_store::EntityRef;
use dstack_system::Clock;
use dstack_system::clock::sleep_until;
use dstack_units::{ProjectId, Time};
use tokio::sync::Notify;

/// What a worker looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The row of one entity, such as a run or a job.
    Entity(EntityRef),
    /// The jobs of a project that wait for a place.
    Schedule(ProjectId),
}

impl From<EntityRef> for Key {
    fn from(entity: EntityRef) -> Self {
        Self::Entity(entity)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entity(entity) => entity.fmt(f),
            Self::Schedule(id) => write!(f, "waiting jobs of project {id}"),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    working: HashSet<Key>,
    again: HashSet<Key>,
    timers: BTreeSet<(Time, Key)>,
    timer_of: HashMap<Key, Time>,
}

/// The queue of wakes and timers.
#[derive(Debug, Default)]
pub struct Wakes {
    state: Mutex<State>,
    ready: Notify,
    timers_changed: Notify,
}

impl Wakes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants `key` looked at now.
    pub fn wake(&self, key: impl Into<Key>) {
        let key = key.into();
        let mut state = self.lock();
        if state.working.contains(&key) {
            state.again.insert(key);
        } else if state.queued.insert(key) {
            state.ready.push_back(key);
            drop(state);
            self.ready.notify_one();
        }
    }

    /// Wants `key` looked at at `at` (replacing its timer), or not by time at all.
    pub fn wake_at(&self, key: impl Into<Key>, at: Option<Time>) {
        let key = key.into();
        let mut state = self.lock();
        if let Some(old) = state.timer_of.remove(&key) {
            state.timers.remove(&(old, key));
        }
        if let Some(at) = at {
            state.timer_of.insert(key, at);
            state.timers.insert((at, key));
            let earliest = state.timers.first() == Some(&(at, key));
            drop(state);
            if earliest {
                self.timers_changed.notify_one();
            }
        }
    }

    /// The next key to look at. Nobody else gets it until the answer is dropped.
    pub async fn next(&self) -> Working<'_> {
        loop {
            if let Some(key) = self.take() {
                return Working { wakes: self, key };
            }
            self.ready.notified().await;
        }
    }

    fn take(&self) -> Option<Key> {
        let mut state = self.lock();
        let key = state.ready.pop_front()?;
        state.queued.remove(&key);
        state.working.insert(key);
        if !state.ready.is_empty() {
            // One permit may stand for several keys: pass it on.
            self.ready.notify_one();
        }
        Some(key)
    }

    /// The worker is finished with `key`.
    fn done(&self, key: Key) {
        let again = {
            let mut state = self.lock();
            state.working.remove(&key);
            state.again.remove(&key)
        };
        if again {
            self.wake(key);
        }
    }

    /// Whether nothing is queued or being worked on (timers may be pending).
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.ready.is_empty() && state.working.is_empty()
    }

    /// Turns timers into wakes, for ever.
    pub async fn run_timers(&self, clock: &dyn Clock) {
        loop {
            let (due, next) = self.take_due(clock.now());
            for key in due {
                self.wake(key);
            }
            match next {
                Some(at) => {
                    tokio::select! {
                        () = sleep_until(clock, at) => {}
                        () = self.timers_changed.notified() => {}
                    }
                }
                None => self.timers_changed.notified().await,
            }
        }
    }

    fn take_due(&self, now: Time) -> (Vec<Key>, Option<Time>) {
        let mut state = self.lock();
        let mut due = Vec::new();
        while let Some(&(at, key)) = state.timers.first() {
            if at > now {
                return (due, Some(at));
            }
            state.timers.pop_first();
            state.timer_of.remove(&key);
            due.push(key);
        }
        (due, None)
    }
}

/// A key that is being looked at. Dropping it makes room for the next look, also when the worker panics.
#[derive(Debug)]
pub struct Working<'a> {
    wakes: &'a Wakes,
    key: Key,
}

impl Working<'_> {
    /// What is looked at.
    pub const fn key(&self) -> Key {
        self.key
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.wakes.done(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dstack_system::VirtualClock;

    use super::*;

    fn key(n: u128) -> Key {
        Key::Schedule(uuid::Uuid::from_u128(n).into())
    }

    #[tokio::test]
    async fn a_wake_during_work_hands_the_key_out_again() {
        let wakes = Wakes::default();
        wakes.wake(key(1));
        wakes.wake(key(1));
        {
            let working = wakes.next().await;
            assert_eq!(working.key(), key(1));
            wakes.wake(key(1));
            assert!(wakes.take().is_none(), "still being worked on");
        }
        assert_eq!(wakes.next().await.key(), key(1));
        assert!(wakes.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn timers_fire_in_order_and_can_be_replaced() {
        let clock = VirtualClock::starting_at(Time::EPOCH);
        let wakes = std::sync::Arc::new(Wakes::default());
        wakes.wake_at(key(1), Some(clock.now() + Duration::from_secs(10)));
        wakes.wake_at(key(2), Some(clock.now() + Duration::from_secs(5)));
        wakes.wake_at(key(1), Some(clock.now() + Duration::from_secs(1)));
        wakes.wake_at(key(3), Some(clock.now() + Duration::from_secs(2)));
        wakes.wake_at(key(3), None);
        let timers = std::sync::Arc::clone(&wakes);
        dstack_system::task::spawn("timers", async move { timers.run_timers(&clock).await });
        assert_eq!(wakes.next().await.key(), key(1));
        assert_eq!(wakes.next().await.key(), key(2));
        assert_eq!(clock.now(), Time::EPOCH + Duration::from_secs(5));
    }
}
