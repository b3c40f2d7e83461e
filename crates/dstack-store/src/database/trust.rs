//! How long is waited, and which connections are believed to live.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Result, StoreError};

/// A connection may be cut without a word: nothing waits for ever, unless that is wanted.
pub(crate) async fn in_time<T>(
    patience: Option<Duration>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match patience {
        Some(patience) => tokio::time::timeout(patience, work)
            .await
            .unwrap_or(Err(StoreError::Slow(patience))),
        None => work.await,
    }
}

/// Since when connections are believed to live. After a failure every older one is asked before it is used, so that the
/// first request to find a dead connection is the only one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust(Arc<Mutex<Option<Instant>>>);

impl Trust {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at how something ended; whether that was a failure of the connection or the database.
    pub(crate) fn note<T>(&self, outcome: &Result<T>) -> bool {
        let failed = outcome.as_ref().is_err_and(|error| error.unavailable().is_some());
        if failed {
            *self.lock() = Some(Instant::now());
        }
        failed
    }

    /// Whether a connection of this age was made before the last failure.
    pub(crate) fn doubts(&self, age: Duration) -> bool {
        self.lock().is_some_and(|failed| age >= failed.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_takes_longer_than_it_may() {
        let patience = Duration::from_secs(3);
        let given_up = in_time(Some(patience), std::future::pending::<Result<()>>()).await;
        assert!(matches!(given_up, Err(StoreError::Slow(after)) if after == patience));

        let (answer, answered) = oneshot::channel();
        let mut patient = std::pin::pin!(in_time(None, async { Ok(answered.await.ok()) }));
        assert!(futures_util::poll!(&mut patient).is_pending());
        tokio::time::advance(Duration::from_secs(100_000)).await;
        assert!(futures_util::poll!(&mut patient).is_pending());
        answer.send("late").unwrap();
        assert_eq!(patient.await.unwrap(), Some("late"));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failure_older_connections_are_doubted() {
        let trust = Trust::default();
        assert!(!trust.doubts(Duration::from_secs(1)));
        trust.note(&Err::<(), _>(StoreError::Sql(sqlx::Error::RowNotFound)));
        assert!(
            !trust.doubts(Duration::from_secs(1)),
            "no failure of the connection"
        );
        trust.note(&Err::<(), _>(StoreError::Sql(sqlx::Error::PoolTimedOut)));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(trust.doubts(Duration::from_secs(11)));
        assert!(!trust.doubts(Duration::from_secs(9)), "made since then");
    }
}
