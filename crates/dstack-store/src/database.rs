//! Opening the database; reads from a pool, writes through one writer on SQLite.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dstack_system::{Secret, task};
use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Connection, Executor};
use tokio::runtime::{self, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::committer::Committer;
use crate::connection::OwnConnection;
use crate::reads::Reads;
use crate::{Commit, Result, StoreError, migrations};

/// An open transaction.
pub type Tx = AnyConnection;

/// A future that borrows the transaction.
pub type TxFuture<'c, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

/// Which database it is: for the few words in which they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// One server process.
    Sqlite,
    /// Any number of servers.
    Postgres,
}

/// Connections of SQLite that read, each a thread.
const SQLITE_READERS: u32 = 8;

/// Transactions that are joined into one commit on SQLite: one flush to disk serves them all.
const GROUP_COMMIT: usize = 256;

/// An open, migrated database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    dialect: Dialect,
    transactions: Transactions,
    committer: Committer,
    reads: Reads,
}

/// How transactions are run.
#[derive(Clone, Debug)]
pub(crate) struct Transactions {
    pool: AnyPool,
    /// For statements that find rows by their keys. On SQLite, for the second set of threads.
    keyed: AnyPool,
    /// The second set of threads, if there is one and the database is SQLite.
    workers: Option<runtime::Id>,
    /// With the password.
    url: Secret,
    trust: Trust,
    /// How long a transaction may take.
    patience: Option<Duration>,
    /// SQLite has one writer.
    writer: Option<Writer>,
}

/// The way to the task that writes.
#[derive(Clone, Debug)]
struct Writer {
    jobs: mpsc::Sender<WriteJob>,
    /// Groups of transactions that were written or given up so far.
    ended: Arc<AtomicU64>,
}

/// How a database server is used; SQLite has neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatabaseOptions {
    /// Connections at most.
    pub connections: u32,
    /// How long it may take for a transaction, waiting for a connection included; `None`: as long as it likes.
    pub patience: Option<Duration>,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        Self {
            // As many as dstack 0.22.5 has at most.
            connections: 40,
            // Then the caller is told while it still listens.
            patience: Some(Duration::from_secs(20)),
        }
    }
}

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

/// The statements of one transaction.
type Work = Box<dyn for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, ()> + Send>;

struct WriteJob {
    run: Work,
    done: oneshot::Sender<Result<()>>,
}

impl Database {
    /// Opens (and creates, for SQLite) the database and brings its schema up to date.
    ///
    /// URLs: `sqlite:///path`, `postgresql://…`; the driver suffixes of dstack 0.22.5 (`sqlite+aiosqlite`,
    /// `postgresql+asyncpg`) are accepted.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, DatabaseOptions::default()).await
    }

    /// As [`Database::open`], using a database server so.
    pub async fn open_with(url: &str, options: DatabaseOptions) -> Result<Self> {
        Self::open_on(url, options, None).await
    }

    /// As [`Database::open_with`]. What gathers writes, and writes them, runs on these threads, and not on the caller's.
    pub async fn open_on(url: &str, options: DatabaseOptions, workers: Option<&Handle>) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let (dialect, url) = normalize_url(url)?;
        let trust = Trust::default();
        let pool = pool_options(
            dialect,
            DatabaseOptions {
                connections: match dialect {
                    Dialect::Sqlite if workers.is_some() => SQLITE_READERS / 2,
                    Dialect::Sqlite => SQLITE_READERS,
                    Dialect::Postgres => options.connections,
                },
                ..options
            },
            &trust,
        )
        .connect(&url)
        .await?;
        let keyed = match dialect {
            Dialect::Sqlite if workers.is_some() => {
                let half = DatabaseOptions {
                    connections: SQLITE_READERS / 2,
                    ..options
                };
                pool_options(dialect, half, &trust).connect_lazy(&url)?
            }
            Dialect::Sqlite => pool.clone(),
            Dialect::Postgres => {
                let few = DatabaseOptions {
                    connections: 8,
                    ..options
                };
                pool_options(dialect, few, &trust)
                    .after_connect(move |connection, _| {
                        Box::pin(prepare_keyed_session(connection, options.patience))
                    })
                    .connect_lazy(&url)?
            }
        };
        migrations::run(&pool, dialect).await?;
        let second_set = workers.filter(|_| dialect == Dialect::Sqlite).map(Handle::id);
        let start = async move {
            let writer = match dialect {
                Dialect::Sqlite => Some(start_writer(&url).await?),
                Dialect::Postgres => None,
            };
            let transactions = Transactions {
                pool,
                keyed,
                workers: second_set,
                url: Secret::new(url),
                trust,
                patience: options.patience,
                writer,
            };
            Ok(Self {
                dialect,
                committer: Committer::start(&transactions),
                reads: Reads::start(&transactions),
                transactions,
            })
        };
        match workers {
            None => start.await,
            Some(workers) => {
                let started = task::spawn_on(workers, "start writing", start).await;
                started.ok().flatten().unwrap_or(Err(StoreError::Closed))
            }
        }
    }

    /// Opens the SQLite database in this file.
    pub async fn open_file(path: &Path) -> Result<Self> {
        Self::open(&format!("sqlite://{}", path.display())).await
    }

    /// Which database it is.
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// For reads. A connection to SQLite is a thread with the priority of the one that made it: each set of threads has its
    /// own.
    pub fn pool(&self) -> &AnyPool {
        let Transactions {
            pool, keyed, workers, ..
        } = &self.transactions;
        let is_of_workers = |workers| Handle::try_current().is_ok_and(|current| current.id() == workers);
        match workers.is_some_and(is_of_workers) {
            true => keyed,
            false => pool,
        }
    }

    /// A number that grows with every write, before its caller is told of it: between two equal answers nothing was
    /// changed. `None` where other servers write as well.
    pub fn writes(&self) -> Option<u64> {
        let writer = self.transactions.writer.as_ref()?;
        Some(writer.ended.load(Ordering::SeqCst))
    }

    /// Where the database is, with the password.
    pub(crate) fn url(&self) -> &str {
        self.transactions.url.expose()
    }

    /// Runs `work` in one transaction: all of it is durable when this returns `Ok`, nothing of it otherwise.
    pub async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, T> + Send + 'static,
    {
        self.transactions.write(work).await
    }

    /// Reads that end in time.
    pub(crate) async fn asked<T>(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        self.transactions.asked(read).await
    }

    /// For reads of rows by their keys, or by an index that finds few.
    pub(crate) const fn keyed(&self) -> &AnyPool {
        self.transactions.keyed()
    }

    /// What many ask for at the same time.
    pub(crate) const fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Writes a commit: durable when this returns `Ok`, and nothing of it is written otherwise. Commits that come at the
    /// same time share a transaction.
    pub async fn commit(&self, commit: Commit) -> Result<()> {
        self.committer.commit(commit).await
    }

    /// Closes all connections after the writes under way.
    pub async fn close(&self) {
        self.transactions.pool.close().await;
        self.transactions.keyed.close().await;
    }
}

impl Transactions {
    /// A connection of the caller's own; SQLite has one for all who write already.
    pub(crate) fn own_connection(&self) -> Option<OwnConnection> {
        match self.writer {
            Some(_) => None,
            None => Some(OwnConnection::new(&self.url, self.trust.clone(), self.patience)),
        }
    }

    /// Whether whoever writes waits for whoever writes.
    pub(crate) const fn has_one_writer(&self) -> bool {
        self.writer.is_some()
    }

    /// For reads of rows by their keys, or by an index that finds few.
    pub(crate) const fn keyed(&self) -> &AnyPool {
        &self.keyed
    }

    /// See [`Database::asked`].
    pub(crate) async fn asked<T>(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        if self.writer.is_some() {
            return read.await;
        }
        let answer = in_time(self.patience, read).await;
        self.trust.note(&answer);
        answer
    }

    /// See [`Database::write`].
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, T> + Send + 'static,
    {
        match &self.writer {
            Some(writer) => write_grouped(&writer.jobs, work).await,
            None => {
                let transaction = async {
                    let mut tx = self.pool.begin().await?;
                    let value = work(&mut tx).await?;
                    tx.commit().await?;
                    Ok(value)
                };
                let done = in_time(self.patience, transaction).await;
                self.trust.note(&done);
                done
            }
        }
    }
}

pub(crate) fn normalize_url(url: &str) -> Result<(Dialect, String)> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(StoreError::Url {
            reason: "expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME".into(),
        });
    };
    match scheme.split('+').next() {
        Some("sqlite") => {
            let path = rest.split('?').next().unwrap_or(rest);
            Ok((Dialect::Sqlite, format!("sqlite://{path}?mode=rwc")))
        }
        Some("postgresql" | "postgres") => Ok((Dialect::Postgres, format!("postgres://{rest}"))),
        _ => Err(StoreError::Url {
            reason: format!("`{scheme}` is not supported: use sqlite or postgresql"),
        }),
    }
}

/// How long after its last use a connection to a database server is taken without asking whether it lives.
pub(crate) const TRUSTED_FOR: Duration = Duration::from_secs(5);

/// A connection that does not answer so long is given up.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(2);

fn pool_options(dialect: Dialect, how: DatabaseOptions, trust: &Trust) -> AnyPoolOptions {
    let options = AnyPoolOptions::new()
        .max_connections(how.connections)
        .acquire_timeout(match dialect {
            Dialect::Sqlite => Duration::from_secs(30),
            // A server that is away is said to be so while the caller still listens.
            Dialect::Postgres => Duration::from_secs(5),
        })
        .idle_timeout(None)
        .max_lifetime(None)
        // A question before every statement would double what each costs.
        .test_before_acquire(false);
    match dialect {
        // A connection that was not used for a while may be dead.
        Dialect::Postgres => {
            let trust = trust.clone();
            options
                .before_acquire(move |connection, seen| {
                    let doubted = seen.idle_for > TRUSTED_FOR || trust.doubts(seen.age);
                    Box::pin(async move {
                        if doubted {
                            let answer = tokio::time::timeout(PING_TIMEOUT, connection.ping()).await;
                            return Ok(answer.is_ok_and(|answer| answer.is_ok()));
                        }
                        Ok(true)
                    })
                })
                .after_connect(move |connection, _| Box::pin(prepare_session(connection, how.patience)))
        }
        // FULL: a commit is on disk when it is reported. The writer joins commits, so it costs one flush per group.
        Dialect::Sqlite => options.after_connect(|connection, _| {
            Box::pin(async move {
                connection
                    .execute(
                        "PRAGMA busy_timeout=30000; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; \
                         PRAGMA foreign_keys=ON; PRAGMA cache_size=-4000; PRAGMA wal_autocheckpoint=4000;",
                    )
                    .await?;
                Ok(())
            })
        }),
    }
}

/// As [`prepare_session`], for statements that find their rows by keys. Plans are kept, and the tables that they were made
/// for grow: without these settings one made for a nearly empty table reads all of it for every row when it is large. Kept
/// from the first time on: to plan a statement for a hundred rows anew takes longer than to run it.
pub(crate) async fn prepare_keyed_session(
    connection: &mut AnyConnection,
    patience: Option<Duration>,
) -> Result<(), sqlx::Error> {
    prepare_session(connection, patience).await?;
    connection
        .execute(
            "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
             SET plan_cache_mode = force_generic_plan;",
        )
        .await?;
    Ok(())
}

/// The server gives up what its client has given up.
pub(crate) async fn prepare_session(
    connection: &mut AnyConnection,
    patience: Option<Duration>,
) -> Result<(), sqlx::Error> {
    connection.execute(AssertSqlSafe(time_limits(patience))).await?;
    Ok(())
}

/// Milliseconds; 0 is none. Whoever waits for a lock gives up in half the time.
fn time_limits(patience: Option<Duration>) -> String {
    // What is not nothing must not become 0.
    let millis = patience.map_or(0, |patience| patience.as_millis().clamp(1, i32::MAX as u128));
    let lock = if millis == 0 { 0 } else { millis.div_ceil(2) };
    format!(
        "SET statement_timeout = {millis}; SET lock_timeout = {lock}; \
         SET idle_in_transaction_session_timeout = {millis};"
    )
}

async fn write_grouped<T, F>(writer: &mpsc::Sender<WriteJob>, work: F) -> Result<T>
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
    writer
        .send(WriteJob { run, done })
        .await
        .map_err(|_| StoreError::Closed)?;
    committed.await.map_err(|_| StoreError::Closed)??;
    let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    value.ok_or(StoreError::Closed)
}

async fn start_writer(url: &str) -> Result<Writer> {
    let one = DatabaseOptions {
        connections: 1,
        ..DatabaseOptions::default()
    };
    let pool = pool_options(Dialect::Sqlite, one, &Trust::default())
        .connect(url)
        .await?;
    let (sender, mut jobs) = mpsc::channel::<WriteJob>(1024);
    let ended = Arc::new(AtomicU64::new(0));
    let writer = Writer {
        jobs: sender,
        ended: Arc::clone(&ended),
    };
    task::spawn("database writer", async move {
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
    });
    Ok(writer)
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
        return run(connection).await;
    }
    connection.execute("SAVEPOINT one").await?;
    let result = run(connection).await;
    if result.is_err() {
        connection.execute("ROLLBACK TO one").await?;
    }
    connection.execute("RELEASE one").await?;
    result
}

/// Runs several statements separated by semicolons.
pub(crate) async fn execute_script(connection: &mut Tx, script: &str) -> Result<(), sqlx::Error> {
    for statement in script.split(";\n") {
        let statement = statement.trim();
        if !statement.is_empty() {
            connection.execute(AssertSqlSafe(statement.to_owned())).await?;
        }
    }
    Ok(())
}

/// Used by migrations, which need a transaction on a plain connection.
pub(crate) async fn begin(connection: &mut Tx) -> Result<sqlx::Transaction<'_, sqlx::Any>, sqlx::Error> {
    connection.begin().await
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn limits_of_time_are_milliseconds() {
        let limits = |patience| time_limits(patience);
        assert_eq!(
            limits(Some(Duration::from_secs(20))),
            "SET statement_timeout = 20000; SET lock_timeout = 10000; \
             SET idle_in_transaction_session_timeout = 20000;"
        );
        assert!(limits(None).starts_with("SET statement_timeout = 0; SET lock_timeout = 0;"));
        assert!(limits(Some(Duration::from_micros(1))).starts_with("SET statement_timeout = 1;"));
    }

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

    #[test]
    fn urls_of_the_reference_are_understood() {
        assert_eq!(
            normalize_url("postgresql+asyncpg://u:p@h/db").unwrap(),
            (Dialect::Postgres, "postgres://u:p@h/db".to_owned())
        );
        assert_eq!(
            normalize_url("sqlite+aiosqlite:////var/x.db").unwrap(),
            (Dialect::Sqlite, "sqlite:////var/x.db?mode=rwc".to_owned())
        );
        assert!(normalize_url("mysql://x/y").is_err());
        assert!(normalize_url("x.db").is_err());
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

    #[tokio::test]
    async fn a_refused_write_takes_back_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open_file(&dir.path().join("t.db")).await.unwrap();
        let insert = |key: &'static str, fail: bool| {
            let db = db.clone();
            async move {
                db.write(move |tx| {
                    Box::pin(async move {
                        sqlx::query("INSERT INTO meta (key, value) VALUES ($1, 'x')")
                            .bind(key)
                            .execute(&mut *tx)
                            .await?;
                        if fail { Err(StoreError::Closed) } else { Ok(()) }
                    })
                })
                .await
            }
        };
        let (a, b, c) = tokio::join!(insert("a", false), insert("b", true), insert("c", false));
        assert!(a.is_ok() && b.is_err() && c.is_ok());
        let keys: Vec<(String,)> = sqlx::query_as("SELECT key FROM meta WHERE value = 'x' ORDER BY key")
            .fetch_all(db.pool())
            .await
            .unwrap();
        assert_eq!(keys, [("a".to_owned(),), ("c".to_owned(),)]);
    }
}
