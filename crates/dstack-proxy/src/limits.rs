//! How many requests may be under way at once, over all services: each holds memory and a connection or two.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most that may be under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests: from their head until the client has the whole answer, or has gone.
    pub requests: usize,
    /// WebSockets, and requests for them.
    pub tunnels: usize,
}

impl Default for Limits {
    /// More than any machine holds.
    fn default() -> Self {
        Self {
            requests: Semaphore::MAX_PERMITS,
            tunnels: Semaphore::MAX_PERMITS,
        }
    }
}

/// One of those that may be under way, until it is dropped.
pub(crate) type Permit = OwnedSemaphorePermit;

/// What of the limits is left.
#[derive(Debug)]
pub(crate) struct Left {
    requests: Arc<Semaphore>,
    tunnels: Arc<Semaphore>,
}

impl Left {
    pub(crate) fn of(limits: Limits) -> Self {
        let semaphore = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self {
            requests: semaphore(limits.requests),
            tunnels: semaphore(limits.tunnels),
        }
    }

    /// One more; `None`: there are too many.
    pub(crate) fn take(&self, tunnel: bool) -> Option<Permit> {
        let semaphore = if tunnel { &self.tunnels } else { &self.requests };
        Arc::clone(semaphore).try_acquire_owned().ok()
    }
}
