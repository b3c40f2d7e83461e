use std::sync::Mutex as StdMutex;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_compute::ComputeError;
use dstack_system::clock::SharedClock;
use dstack_units::Time;
use tokio::sync::Mutex;

use crate::Env;

/// How long what a vendor has to sell is taken for true (as in dstack 0.22.5), and how long after that where there is no newer answer.
const OFFERS_LIFETIME: Duration = Duration::from_secs(180);
const STALE_OFFERS_LIFETIME: Duration = Duration::from_secs(600);

/// An answer of a cloud that holds for a while: of those who ask at the same time, one fetches it.
#[derive(Debug)]
pub struct Cached<T> {
    clock: SharedClock,
    lifetime: Duration,
    stale_lifetime: Duration,
    /// The last answer, and until when it holds.
    known: StdMutex<Option<(Time, Arc<T>)>>,
    fetching: Mutex<()>,
}

impl<T: Send + Sync> Cached<T> {
    /// Nothing yet. An answer holds for `lifetime`; where the next one cannot be had, the old one is used for as long as
    /// `stale_lifetime` after that.
    pub const fn new(clock: SharedClock, lifetime: Duration, stale_lifetime: Duration) -> Self {
        Self {
            clock,
            lifetime,
            stale_lifetime,
            known: StdMutex::new(None),
            fetching: Mutex::const_new(()),
        }
    }

    /// For what a vendor has to sell: three minutes, and ten more where it does not answer.
    pub fn of_offers(env: &Env) -> Self {
        Self::new(Arc::clone(&env.clock), OFFERS_LIFETIME, STALE_OFFERS_LIFETIME)
    }

    /// The answer, fetched if it is too old.
    ///
    /// # Errors
    /// It cannot be fetched, and there is no old one that would do.
    pub async fn get<F>(&self, fetch: impl FnOnce() -> F + Send) -> Result<Arc<T>, ComputeError>
    where
        F: Future<Output = Result<T, ComputeError>> + Send,
    {
        if let Some(known) = self.known(Duration::ZERO) {
            return Ok(known);
        }
        let _fetching = self.fetching.lock().await;
        if let Some(known) = self.known(Duration::ZERO) {
            return Ok(known);
        }
        match fetch().await {
            Ok(fetched) => {
                let fetched = Arc::new(fetched);
                *self.lock() = Some((self.clock.now() + self.lifetime, Arc::clone(&fetched)));
                Ok(fetched)
            }
            Err(error) => self.known(self.stale_lifetime).ok_or(error),
        }
    }

    /// The answer holds for no longer than this from now on.
    pub fn hold_for(&self, lifetime: Duration) {
        if let Some((until, _)) = self.lock().as_mut() {
            *until = (*until).min(self.clock.now() + lifetime);
        }
    }

    /// The next one who asks has it fetched.
    pub fn forget(&self) {
        *self.lock() = None;
    }

    /// The answer, unless it has been too old for longer than this.
    fn known(&self, too_old_for: Duration) -> Option<Arc<T>> {
        let known = self.lock();
        let (until, answer) = known.as_ref()?;
        (self.clock.now() < *until + too_old_for).then(|| Arc::clone(answer))
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Time, Arc<T>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use dstack_system::clock::VirtualClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_fetched_once_and_again_when_it_is_old() {
        let clock = Arc::new(VirtualClock::starting_at(Time::from_millis(0)));
        let cached = Cached::new(clock, Duration::from_secs(10), Duration::from_secs(20));
        let fetches = AtomicU32::new(0);
        let fetch = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(fetches.fetch_add(1, Ordering::Relaxed))
        };
        let (one, other) = tokio::join!(cached.get(&fetch), cached.get(&fetch));
        assert_eq!((*one.unwrap(), *other.unwrap()), (0, 0));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(*cached.get(&fetch).await.unwrap(), 1);

        let away = async || Err(ComputeError::Unclear("503".to_owned()));
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert_eq!(*cached.get(away).await.unwrap(), 1, "the old one does");
        tokio::time::sleep(Duration::from_secs(20)).await;
        cached.get(away).await.unwrap_err();
        assert_eq!(*cached.get(&fetch).await.unwrap(), 2);
        cached.forget();
        assert_eq!(*cached.get(&fetch).await.unwrap(), 3);
        cached.hold_for(Duration::from_secs(5));
        cached.hold_for(Duration::from_secs(8));
        assert_eq!(*cached.get(&fetch).await.unwrap(), 3);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(
            *cached.get(&fetch).await.unwrap(),
            4,
            "never longer than was said"
        );
    }
}
