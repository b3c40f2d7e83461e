//! A log store that did not answer when the server started, and is opened as soon as it does.
//!
//! Files in its place would split the logs: what was written meanwhile would be gone with the next start.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use dstack_logs::{LogEntry, LogError, LogPage, LogStore, LogStream, PollQuery};
use dstack_system::{chain, task};
use dstack_units::Time;

/// Pause after the first try; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Refuses everything until the store is open. Output waits at its runners meanwhile, as while a store is away.
pub(super) struct LateLogStore {
    name: &'static str,
    opened: OnceLock<Arc<dyn LogStore>>,
}

/// Nothing can be read or written yet.
#[derive(Debug, thiserror::Error)]
#[error("it has not answered since the server was started")]
struct NotOpened;

impl LateLogStore {
    /// Tries `open` in the background until it succeeds, and tells the log of each failure.
    pub(super) fn start<F, Opening>(name: &'static str, open: F) -> Arc<Self>
    where
        F: Fn() -> Opening + Send + 'static,
        Opening: Future<Output = Result<Arc<dyn LogStore>, LogError>> + Send,
    {
        let store = Arc::new(Self {
            name,
            opened: OnceLock::new(),
        });
        let waiting = Arc::downgrade(&store);
        task::spawn("open the log store", async move {
            let mut pause = FIRST_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                if !still_wanted(&waiting) {
                    return;
                }
                match open().await {
                    Ok(opened) => return finish(&waiting, opened),
                    Err(error) => tracing::error!(
                        store = name,
                        error = %chain(&error),
                        "the log store still cannot be opened: output of running jobs waits at their runners, and that of jobs that \
                         end may be lost"
                    ),
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        store
    }

    fn store(&self) -> Result<&dyn LogStore, LogError> {
        match self.opened.get() {
            Some(store) => Ok(store.as_ref()),
            None => Err(LogError::Away {
                store: self.name,
                source: NotOpened.into(),
            }),
        }
    }
}

fn still_wanted(store: &Weak<LateLogStore>) -> bool {
    store.strong_count() > 0
}

fn finish(store: &Weak<LateLogStore>, opened: Arc<dyn LogStore>) {
    let Some(store) = store.upgrade() else { return };
    tracing::info!(
        store = store.name,
        "the log store answers: the output of jobs goes there now"
    );
    // Set once, here.
    store.opened.set(opened).ok();
}

impl fmt::Debug for LateLogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LateLogStore");
        shown
            .field("name", &self.name)
            .field("opened", &self.opened)
            .finish()
    }
}

#[async_trait]
impl LogStore for LateLogStore {
    async fn append(&self, stream: &LogStream, entries: Vec<LogEntry>) -> Result<(), LogError> {
        self.store()?.append(stream, entries).await
    }

    async fn last_timestamp(&self, stream: &LogStream) -> Result<Option<Time>, LogError> {
        self.store()?.last_timestamp(stream).await
    }

    async fn poll(&self, stream: &LogStream, query: &PollQuery) -> Result<LogPage, LogError> {
        self.store()?.poll(stream, query).await
    }

    async fn check(&self) -> Result<&'static str, LogError> {
        self.store()?.check().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dstack_logs::{Durability, FileLogStore, Producer, Source};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_opened_when_it_answers_and_has_everything_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tries);
        let store = LateLogStore::start("S", move || {
            let (path, number) = (path.clone(), counted.fetch_add(1, Ordering::SeqCst));
            async move {
                match number {
                    0..3 => Err(LogError::Away {
                        store: "S",
                        source: "nobody is there".into(),
                    }),
                    _ => Ok(Arc::new(FileLogStore::new(&path, Durability::Synced)) as Arc<dyn LogStore>),
                }
            }
        });
        let stream = LogStream {
            project: "main".to_owned(),
            run: "r".to_owned(),
            job: dstack_system::Random::seeded(1).uuid().into(),
            producer: Producer::Job,
        };
        let entry = LogEntry {
            timestamp: Time::from_millis(1),
            source: Source::Stdout,
            message: "line\n".into(),
        };
        let refused = store.append(&stream, vec![entry.clone()]).await;
        assert!(matches!(refused, Err(LogError::Away { .. })), "{refused:?}");
        assert!(store.check().await.is_err());
        // Pauses of 2, 4, 8 and 16 s.
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert_eq!(tries.load(Ordering::SeqCst), 3);
        assert!(store.last_timestamp(&stream).await.is_err());
        tokio::time::sleep(Duration::from_secs(2)).await;
        store.append(&stream, vec![entry.clone()]).await.unwrap();
        let query = PollQuery {
            limit: 10,
            ..PollQuery::default()
        };
        assert_eq!(store.poll(&stream, &query).await.unwrap().entries, [entry]);
        assert_eq!(
            store.check().await.unwrap(),
            "a file was written, read and deleted"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_opens_it_for_a_server_that_is_gone() {
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tries);
        let store = LateLogStore::start("S", move || {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err(LogError::Away {
                store: "S",
                source: NotOpened.into(),
            }))
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(store);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(tries.load(Ordering::SeqCst), 1);
    }
}
