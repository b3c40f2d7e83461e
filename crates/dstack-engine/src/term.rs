//! A stretch of time through which this server has its lease without a gap.

use std::sync::{Mutex, PoisonError};

use dstack_store::Lease;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A lease as long as it is renewed in time, and the work that is done under it.
///
/// Time is that of the machine's monotonic clock, from before each renewal was asked for: it is over here before it is over
/// for the database, whatever the wall clocks say.
#[derive(Debug)]
pub struct Term {
    lease: Lease,
    until: Mutex<Option<Instant>>,
    ended: CancellationToken,
    work: TaskTracker,
}

impl Term {
    /// A term that begins now; `until` is when it ends unless it is extended (`None`: nobody else may take over).
    pub fn new(lease: Lease, until: Option<Instant>) -> Self {
        Self {
            lease,
            until: Mutex::new(until),
            ended: CancellationToken::new(),
            work: TaskTracker::new(),
        }
    }

    /// What commits name.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// When it ends unless it is extended.
    pub fn until(&self) -> Option<Instant> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease was renewed.
    pub fn extend(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// Whether the lease is still held.
    pub fn is_current(&self) -> bool {
        !self.ended.is_cancelled() && self.until().is_none_or(|until| Instant::now() < until)
    }

    /// Ends it: work under way is given up.
    pub fn end(&self) {
        self.ended.cancel();
    }

    /// Returns when it has been ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Returns when it has been ended and nothing is done under it any more.
    pub async fn stopped(&self) {
        self.ended().await;
        self.work.close();
        self.work.wait().await;
    }

    /// Does some work under the lease; `None` when the lease was lost before the work was done: it is given up half-way, as
    /// if the server had been killed.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let work = async {
            tokio::select! {
                biased;
                () = self.ended() => None,
                done = work => Some(done),
            }
        };
        self.work.track_future(work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_given_up_with_the_lease_and_not_begun_after_it() {
        let lease = Lease {
            owner: "a".to_owned(),
            process: uuid::Uuid::nil(),
            generation: 1,
        };
        let term = Term::new(lease, None);
        assert_eq!(term.run(async { 1 }).await, Some(1));
        {
            let mut endless = std::pin::pin!(term.run(std::future::pending::<()>()));
            let mut stopped = std::pin::pin!(term.stopped());
            assert!(futures_util::poll!(&mut endless).is_pending());
            assert!(futures_util::poll!(&mut stopped).is_pending());
            term.end();
            assert!(
                futures_util::poll!(&mut stopped).is_pending(),
                "the work is still there"
            );
            assert_eq!(endless.await, None);
            stopped.await;
        }
        assert_eq!(term.run(async { 1 }).await, None);
    }
}
