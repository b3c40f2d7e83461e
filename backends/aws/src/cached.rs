use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dstack_backend::Cached;
use dstack_compute::ComputeError;
use dstack_system::clock::SharedClock;

/// Answers by key, each of which holds for a while: regions with what else makes them different. Keys are few.
#[derive(Debug)]
pub(crate) struct CachedByKey<T> {
    clock: SharedClock,
    lifetime: Duration,
    entries: Mutex<HashMap<String, Arc<Cached<T>>>>,
}

impl<T: Send + Sync> CachedByKey<T> {
    pub(crate) fn new(clock: SharedClock, lifetime: Duration) -> Self {
        Self {
            clock,
            lifetime,
            entries: Mutex::default(),
        }
    }

    /// The answer for a key, fetched if it is too old.
    pub(crate) async fn get<F>(
        &self,
        key: String,
        fetch: impl FnOnce() -> F + Send,
    ) -> Result<Arc<T>, ComputeError>
    where
        F: Future<Output = Result<T, ComputeError>> + Send,
    {
        let entry = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Cached::new(self.clock.clone(), self.lifetime, Duration::ZERO));
            Arc::clone(entries.entry(key).or_insert_with(new))
        };
        entry.get(fetch).await
    }

    /// All is fetched again by who asks next.
    pub(crate) fn forget(&self) {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
