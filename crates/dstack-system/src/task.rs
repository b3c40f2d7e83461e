//! Supervised tasks: every task has a name, and a panic in one is logged and counted, never silent.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// How many tasks of this process have panicked so far.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// The task panicked; the panic itself is in the log.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("internal error: a task panicked (see the log)")]
pub struct Panicked;

/// Starts a task. The handle yields `None` when it panicked.
#[allow(clippy::disallowed_methods)] // the one place
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<Option<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(supervised(name, future))
}

/// Starts a task on other threads than those of the caller.
pub fn spawn_on<F>(threads: &Handle, name: &'static str, future: F) -> JoinHandle<Option<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    threads.spawn(supervised(name, future))
}

async fn supervised<F: Future>(name: &'static str, future: F) -> Option<F::Output> {
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(output) => Some(output),
        Err(_) => {
            record_panic(name);
            None
        }
    }
}

/// Runs blocking work (keys, archives, large files) off the async threads.
#[allow(clippy::disallowed_methods)] // the one place
pub async fn blocking<T, F>(name: &'static str, work: F) -> Result<T, Panicked>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        record_panic(name);
        Panicked
    })
}

fn record_panic(name: &'static str) {
    PANICS.fetch_add(1, Ordering::Relaxed);
    tracing::error!(task.name = name, "task panicked");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_counted_and_stays_inside() {
        let before = panics();
        assert_eq!(
            spawn("boom", async move {
                if panics() == before {
                    panic!("on purpose")
                }
            })
            .await
            .unwrap(),
            None
        );
        assert!(panics() > before);
    }
}
