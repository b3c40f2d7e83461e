//! What concerns the same thing comes one after the other.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use dstack_system::Locked;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of what concerns the same thing only so much is done at a time, of others any number.
#[derive(Debug)]
pub(crate) struct Turns {
    at_a_time: usize,
    by_name: Locked<HashMap<String, Weak<Semaphore>>>,
}

/// Nobody else has it until it is dropped; never `None`, as semaphores here are never closed.
pub(crate) type Turn = Option<OwnedSemaphorePermit>;

impl Default for Turns {
    /// One after the other.
    fn default() -> Self {
        Self::at_a_time(1)
    }
}

impl Turns {
    /// So many at a time.
    pub(crate) fn at_a_time(count: usize) -> Self {
        Self {
            at_a_time: count,
            by_name: Locked::default(),
        }
    }

    /// Waits until few enough others work on this.
    pub(crate) async fn take(&self, name: &str) -> Turn {
        self.places(name).acquire_owned().await.ok()
    }

    fn places(&self, name: &str) -> Arc<Semaphore> {
        let mut by_name = self.by_name.lock();
        if let Some(places) = by_name.get(name).and_then(Weak::upgrade) {
            return places;
        }
        by_name.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.at_a_time));
        by_name.insert(name.to_owned(), Arc::downgrade(&places));
        places
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

    #[tokio::test]
    async fn so_many_are_under_way_at_a_time() {
        let turns = Turns::at_a_time(2);
        let both = [turns.take("a").now_or_never(), turns.take("a").now_or_never()];
        assert!(both.iter().all(Option::is_some));
        assert!(turns.take("a").now_or_never().is_none());
        drop(both);
        assert!(turns.take("a").now_or_never().is_some());
    }
}
