//! The loop of those who take rows to their clouds outside the engine: volumes and gateways.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dstack_system::task;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long an unanswered request waits for its repetition.
const AGAIN: Duration = Duration::from_secs(10);
/// How long what another server on this database has left behind waits at most.
const TAKE_OVER: Duration = Duration::from_secs(60);

/// What a pass has left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing waits.
    Nothing,
    /// A cloud has to be asked again.
    Unanswered,
}

/// Runs `pass` at the start, at every change, and while something is left, until the server stops.
pub(crate) fn start<P, F>(name: &'static str, changed: Arc<Notify>, stop: CancellationToken, pass: P)
where
    P: Fn() -> F + Send + 'static,
    F: Future<Output = dstack_control::Result<Left>> + Send,
{
    task::spawn(name, async move {
        loop {
            let wait = match pass().await {
                Ok(Left::Nothing) => TAKE_OVER,
                Ok(Left::Unanswered) => AGAIN,
                Err(error) => {
                    tracing::warn!(%error, "{name} are not processed now: tried again");
                    AGAIN
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = changed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Passes counted over virtual time.
    async fn passes(left: Left, during: Duration) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let stop = CancellationToken::new();
        start("things", Arc::default(), stop.clone(), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            async move { Ok(left) }
        });
        tokio::time::sleep(during).await;
        stop.cancel();
        count.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_asked_again_sooner_than_nothing() {
        let minute = Duration::from_secs(59);
        assert_eq!(passes(Left::Unanswered, minute).await, 6);
        assert_eq!(passes(Left::Nothing, minute).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_seen_at_once() {
        let changed = Arc::new(Notify::new());
        let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        start("things", Arc::clone(&changed), stop.clone(), move || {
            let sent = sender.send(()).is_ok();
            async move { Ok(if sent { Left::Nothing } else { Left::Unanswered }) }
        });
        seen.recv().await;
        let before = tokio::time::Instant::now();
        changed.notify_one();
        seen.recv().await;
        assert_eq!(before.elapsed(), Duration::ZERO);
        stop.cancel();
    }
}
