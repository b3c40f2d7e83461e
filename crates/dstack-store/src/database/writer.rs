//! SQLite has one writer: a task that joins what comes at the same time into one commit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dstack_system::task;
use sqlx::{AnyPool, Executor};
use tokio::sync::{mpsc, oneshot};

use super::pools::pool_options;
use super::trust::Trust;
use super::{DatabaseOptions, Dialect, Tx, TxFuture, contained};
use crate::{Result, StoreError};

/// Transactions that are joined into one commit on SQLite: one flush to disk serves them all.
const GROUP_COMMIT: usize = 256;

/// The way to the task that writes.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<WriteJob>,
    /// Groups of transactions that were written or given up so far.
    ended: Arc<AtomicU64>,
}

/// The statements of one transaction.
type Work = Box<dyn for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, ()> + Send>;

struct WriteJob {
    run: Work,
    done: oneshot::Sender<Result<()>>,
}

impl Writer {
    pub(super) async fn start(url: &str) -> Result<Self> {
        let one = DatabaseOptions {
            connections: 1,
            ..DatabaseOptions::default()
        };
        let pool = pool_options(Dialect::Sqlite, one, &Trust::default())
            .connect(url)
            .await?;
        let (sender, jobs) = mpsc::channel(1024);
        let (jobs, ended) = (
            Arc::new(tokio::sync::Mutex::new(jobs)),
            Arc::new(AtomicU64::new(0)),
        );
        let writer = Self {
            jobs: sender,
            ended: Arc::clone(&ended),
        };
        task::spawn_restarted("database writer", move || {
            write_all(pool.clone(), Arc::clone(&jobs), Arc::clone(&ended))
        });
        Ok(writer)
    }

    /// Whether the task that writes is there.
    pub(super) fn is_alive(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Groups that were written or given up so far.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Runs `work` in a transaction of its own, within a group.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, T> + Send + 'static,
    {
        let slot = Arc::new(Mutex::new(None));
        let result = Arc::clone(&slot);
        let run: Work = Box::new(move |tx: &mut Tx| {
            Box::pin(async move {
                let value = work(tx).await?;
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
                Ok(())
            })
        });
        let (done, committed) = oneshot::channel();
        self.jobs
            .send(WriteJob { run, done })
            .await
            .map_err(|_| StoreError::Closed)?;
        committed.await.map_err(|_| StoreError::Closed)??;
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or(StoreError::Closed)
    }
}

async fn write_all(
    pool: AnyPool,
    jobs: Arc<tokio::sync::Mutex<mpsc::Receiver<WriteJob>>>,
    ended: Arc<AtomicU64>,
) {
    let mut jobs = jobs.lock().await;
    while let Some(first) = jobs.recv().await {
        let mut group = vec![first];
        while group.len() < GROUP_COMMIT {
            match jobs.try_recv() {
                Ok(job) => group.push(job),
                Err(_) => break,
            }
        }
        commit_group(&pool, group, &ended).await;
    }
    pool.close().await;
}

async fn commit_group(pool: &AnyPool, group: Vec<WriteJob>, ended: &AtomicU64) {
    let mut waiting = Vec::with_capacity(group.len());
    let outcome = async {
        let mut connection = pool.acquire().await?;
        connection.execute("BEGIN IMMEDIATE").await?;
        let single = group.len() == 1;
        for job in group {
            let result = run_one(&mut connection, job.run, single).await;
            waiting.push((job.done, result));
        }
        let commit = if single && waiting.iter().any(|(_, result)| result.is_err()) {
            "ROLLBACK"
        } else {
            "COMMIT"
        };
        if let Err(error) = connection.execute(commit).await {
            // A failed COMMIT (disk full) leaves the transaction open: end it, so that the next one can begin.
            connection.execute("ROLLBACK").await.ok();
            return Err(error);
        }
        Ok::<_, sqlx::Error>(())
    }
    .await;
    ended.fetch_add(1, Ordering::SeqCst);
    let failure = outcome.err().map(Arc::new);
    for (done, result) in waiting {
        let result = match &failure {
            None => result,
            Some(cause) => result.and_then(|()| Err(StoreError::Commit(Arc::clone(cause)))),
        };
        done.send(result).ok(); // the caller may have gone away; its work is committed all the same
    }
}

/// A savepoint per transaction, so that a refused one takes back only itself; alone, it needs none.
async fn run_one(connection: &mut Tx, run: Work, single: bool) -> Result<()> {
    if single {
        return contained(run(connection)).await;
    }
    connection.execute("SAVEPOINT one").await?;
    let result = contained(run(connection)).await;
    if result.is_err() {
        connection.execute("ROLLBACK TO one").await?;
    }
    connection.execute("RELEASE one").await?;
    result
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // databases without keys
mod tests {
    use super::*;
    use crate::Database;

    /// Writes a key; what comes of the transaction is up to `end`.
    async fn write(db: &Database, key: &'static str, end: fn() -> Result<()>) -> Result<()> {
        db.write(move |tx| {
            Box::pin(async move {
                sqlx::query("INSERT INTO meta (key, value) VALUES ($1, 'x')")
                    .bind(key)
                    .execute(&mut *tx)
                    .await?;
                end()
            })
        })
        .await
    }

    async fn keys(db: &Database) -> Vec<String> {
        let keys: Vec<(String,)> = sqlx::query_as("SELECT key FROM meta WHERE value = 'x' ORDER BY key")
            .fetch_all(db.pool())
            .await
            .unwrap();
        keys.into_iter().map(|(key,)| key).collect()
    }

    fn panics() -> Result<()> {
        panic!("on purpose")
    }

    #[tokio::test]
    async fn a_refused_write_takes_back_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open_file(&dir.path().join("t.db")).await.unwrap();
        let (a, b, c) = tokio::join!(
            write(&db, "a", || Ok(())),
            write(&db, "b", || Err(StoreError::Closed)),
            write(&db, "c", || Ok(()))
        );
        assert!(a.is_ok() && b.is_err() && c.is_ok());
        assert_eq!(keys(&db).await, ["a", "c"]);
    }

    #[tokio::test]
    async fn a_write_that_panics_takes_back_only_itself_and_others_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open_file(&dir.path().join("t.db")).await.unwrap();
        let alone = write(&db, "alone", panics).await;
        assert!(matches!(alone, Err(StoreError::Panicked(_))), "{alone:?}");
        let (a, b, c) = tokio::join!(
            write(&db, "a", || Ok(())),
            write(&db, "b", panics),
            write(&db, "c", || Ok(()))
        );
        assert!(a.is_ok() && matches!(b, Err(StoreError::Panicked(_))) && c.is_ok());
        assert_eq!(keys(&db).await, ["a", "c"]);
        db.check_writers().unwrap();
    }
}
