//! Calls that concern the same thing come one after the other.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use dstack_system::Locked;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Calls that concern the same thing come one after the other, others side by side.
#[derive(Debug, Default)]
pub(crate) struct Turns(Locked<HashMap<String, Weak<Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else works on this.
    pub(crate) async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = self.lock_of(name);
        lock.lock_owned().await
    }

    fn lock_of(&self, name: &str) -> Arc<Mutex<()>> {
        let mut locks = self.0.lock();
        if let Some(lock) = locks.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Mutex::new(()));
        locks.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn only_calls_that_concern_the_same_wait() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        assert!(turns.take("a").now_or_never().is_none());
        assert!(turns.take("b").now_or_never().is_some());
        drop(first);
        assert!(turns.take("a").now_or_never().is_some());
    }
}
