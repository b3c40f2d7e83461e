//! Connections that calls have left open, for calls that follow soon.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use dstack_system::task;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tokio::time::{Instant, sleep};

/// The calls of an operation follow each other at once. What is older may be gone without anybody knowing, and costs memory on both
/// ends.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// Calls of one client that are under way at a time are few.
const MOST: usize = 2;

/// A connection on which no call is under way.
pub(super) struct Spare {
    pub(super) sender: SendRequest<Full<Bytes>>,
    /// That the next call answers; the other end has shown that it has the token. `None`: it has none.
    pub(super) challenge: Option<String>,
    since: Instant,
}

impl Spare {
    pub(super) fn new(sender: SendRequest<Full<Bytes>>, challenge: Option<String>) -> Self {
        Self {
            sender,
            challenge,
            since: Instant::now(),
        }
    }

    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.since.elapsed() < KEPT_FOR
    }
}

/// Those of one client, the youngest last.
#[derive(Clone, Default)]
pub(super) struct Spares(Arc<Mutex<Vec<Spare>>>);

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spares")
    }
}

impl Spares {
    /// The one that was used last.
    pub(super) fn take(&self) -> Option<Spare> {
        let mut all = lock(&self.0);
        all.retain(Spare::is_usable);
        all.pop()
    }

    pub(super) fn put(&self, spare: Spare) {
        let mut all = lock(&self.0);
        all.retain(Spare::is_usable);
        if all.len() >= MOST {
            return;
        }
        all.push(Spare {
            since: Instant::now(),
            ..spare
        });
        let list = Arc::downgrade(&self.0);
        drop(all);
        task::spawn("forget spare connections", forget_old(list));
    }
}

/// Closes what nobody has used, once it is too old.
async fn forget_old(list: Weak<Mutex<Vec<Spare>>>) {
    sleep(KEPT_FOR).await;
    if let Some(list) = list.upgrade() {
        lock(&list).retain(Spare::is_usable);
    }
}

fn lock(list: &Mutex<Vec<Spare>>) -> MutexGuard<'_, Vec<Spare>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
