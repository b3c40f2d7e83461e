//! Supervised tasks: every task has a name, and a panic in one is logged and counted, never silent.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

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

// Combinators, here and below: an `async fn` has room for what it is given and once more for what it awaits, so that each layer of
// them would double the memory that a task takes as long as it lives.
fn supervised<F: Future>(name: &'static str, future: F) -> impl Future<Output = Option<F::Output>> {
    contained(name, future).map(Result::ok)
}

/// Runs work whose panic ends nothing but the work itself: it is logged under the name, and counted.
///
/// # Errors
/// The work panicked.
pub fn contained<F: Future>(
    name: &'static str,
    work: F,
) -> impl Future<Output = Result<F::Output, Panicked>> {
    AssertUnwindSafe(work).catch_unwind().map(move |ended| {
        ended.map_err(|_| {
            record_panic(name);
            Panicked
        })
    })
}

/// Does work to its end, also when whoever waits for it goes away in the middle: a client that disconnects takes the future
/// of its call with it.
///
/// # Errors
/// The work panicked.
pub async fn uncancelled<F>(name: &'static str, work: F) -> Result<F::Output, Panicked>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn(name, work).await.ok().flatten().ok_or(Panicked)
}

/// Pause before a task that panicked is started again; it doubles up to [`LONGEST_PAUSE`] while it panics again and again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Starts a task that others cannot do without: when it panics, it is started again after a pause. It ends when the work
/// does.
pub fn spawn_restarted<F>(
    name: &'static str,
    mut work: impl FnMut() -> F + Send + 'static,
) -> JoinHandle<Option<()>>
where
    F: Future<Output = ()> + Send + 'static,
{
    spawn(name, async move {
        let mut pause = FIRST_PAUSE;
        loop {
            let started = Instant::now();
            if contained(name, work()).await.is_ok() {
                return;
            }
            if started.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    })
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

    #[test]
    fn supervision_takes_hardly_any_room() {
        let work = async {
            let room = [1_u8; 4096];
            tokio::task::yield_now().await;
            room.len()
        };
        let own = size_of_val(&work);
        assert!(own >= 4096);
        let supervised = size_of_val(&supervised("large", work));
        assert!(supervised < own + 64, "{supervised} bytes around {own}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_until_it_ends() {
        let starts = std::sync::Arc::new(AtomicU64::new(0));
        let count = std::sync::Arc::clone(&starts);
        let task = spawn_restarted("unsteady", move || {
            let start = count.fetch_add(1, Ordering::Relaxed);
            async move { assert!(start >= 3, "on purpose") }
        });
        assert_eq!(task.await.unwrap(), Some(()));
        assert_eq!(starts.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_without_whoever_waits_for_it() {
        let (done, is_done) = tokio::sync::oneshot::channel();
        let work = uncancelled("work", async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            done.send(()).ok();
        });
        let left = tokio::time::timeout(Duration::from_secs(1), work).await;
        assert!(left.is_err(), "nobody waits for it any more");
        is_done.await.unwrap();
    }

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
