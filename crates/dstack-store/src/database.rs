//! Opening the database; reads from a pool, writes through one writer on SQLite.

mod pools;
mod trust;
mod writer;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use dstack_system::{Secret, task};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool, AssertSqlSafe, Connection, Executor};
use tokio::runtime::Handle;

use crate::committer::Committer;
use crate::connection::{OwnConnection, in_transaction};
use crate::encryption::RowKeys;
use crate::observer::Observed;
use crate::queries::Reads;
use crate::reads::BatchedReads;
use crate::{Commit, Result, StoreError, migrations};
use pools::Pools;
use writer::Writer;

pub(crate) use pools::{PING_TIMEOUT, TRUSTED_FOR, prepare_keyed_session};
pub(crate) use trust::{Trust, in_time};

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

impl Dialect {
    /// That of the database of a transaction.
    pub(crate) fn of(tx: &Tx) -> Self {
        match tx.backend_name() == <sqlx::Sqlite as sqlx::Database>::NAME {
            true => Self::Sqlite,
            false => Self::Postgres,
        }
    }
}

/// An open, migrated database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    dialect: Dialect,
    transactions: Transactions,
    committer: Committer,
    batched: BatchedReads,
}

/// How transactions are run.
#[derive(Clone, Debug)]
pub(crate) struct Transactions {
    pools: Pools,
    /// With the password.
    url: Secret,
    trust: Trust,
    /// How long a transaction may take.
    patience: Option<Duration>,
    /// SQLite has one writer.
    writer: Option<Writer>,
    keys: RowKeys,
    observed: Observed,
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

/// Without keys: for tests, and tools that read nothing sealed. `clippy.toml` keeps everybody else away.
#[allow(clippy::disallowed_methods)]
impl Database {
    /// As [`Database::open_on`], without keys: sealed columns are written as clear text.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, DatabaseOptions::default()).await
    }

    /// As [`Database::open`], using a database server so.
    pub async fn open_with(url: &str, options: DatabaseOptions) -> Result<Self> {
        Self::open_on(url, options, RowKeys::none(), None).await
    }

    /// As [`Database::open`], of the SQLite database in this file.
    pub async fn open_file(path: &Path) -> Result<Self> {
        Self::open(&format!("sqlite://{}", path.display())).await
    }
}

impl Database {
    /// Opens (and creates, for SQLite) the database and brings its schema up to date. Sealed columns are written and read with
    /// these keys. What gathers writes, and writes them, runs on these threads, and not on the caller's.
    ///
    /// URLs: `sqlite:///path`, `postgresql://…`; the driver suffixes of dstack 0.22.5 (`sqlite+aiosqlite`,
    /// `postgresql+asyncpg`) are accepted.
    pub async fn open_on(
        url: &str,
        options: DatabaseOptions,
        keys: RowKeys,
        workers: Option<&Handle>,
    ) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let (dialect, url) = normalize_url(url)?;
        let trust = Trust::default();
        let pools = Pools::open(dialect, &url, options, &trust, workers).await?;
        migrations::run(pools.any(), dialect).await?;
        let start = async move {
            let writer = match dialect {
                Dialect::Sqlite => Some(Writer::start(&url).await?),
                Dialect::Postgres => None,
            };
            let transactions = Transactions {
                pools,
                url: Secret::new(url),
                trust,
                patience: options.patience,
                writer,
                keys,
                observed: Observed::default(),
            };
            Ok(Self {
                dialect,
                committer: Committer::start(&transactions),
                batched: BatchedReads::start(&transactions),
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

    /// Whether other servers may use it at the same time.
    pub fn is_shared(&self) -> bool {
        self.dialect != Dialect::Sqlite
    }

    /// Which database it is.
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Connections for statements of any kind, outside of transactions.
    pub(crate) fn pool(&self) -> &AnyPool {
        self.transactions.pools.any()
    }

    /// A number that grows with every write, before its caller is told of it: between two equal answers nothing was
    /// changed. `None` where other servers write as well.
    pub fn writes(&self) -> Option<u64> {
        Some(self.transactions.writer.as_ref()?.ended())
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
    pub(crate) fn keyed(&self) -> Reads<'_> {
        self.transactions.keyed()
    }

    /// Of sealed columns.
    pub(crate) const fn keys(&self) -> &RowKeys {
        self.transactions.keys()
    }

    /// Who hears of what is written.
    pub(crate) const fn observed(&self) -> &Observed {
        &self.transactions.observed
    }

    /// What many ask for at the same time.
    pub(crate) const fn batched(&self) -> &BatchedReads {
        &self.batched
    }

    /// Writes a commit: durable when this returns `Ok`, and nothing of it is written otherwise. Commits that come at the
    /// same time share a transaction.
    pub async fn commit(&self, commit: Commit) -> Result<()> {
        self.committer.commit(commit).await
    }

    /// Whether it can be written to, as far as this process is concerned.
    ///
    /// # Errors
    /// It was closed, or what writes has ended.
    pub fn check_writers(&self) -> Result<()> {
        let writer = self.transactions.writer.as_ref();
        let alive = self.committer.is_alive() && writer.is_none_or(Writer::is_alive);
        match alive && !self.pool().is_closed() {
            true => Ok(()),
            false => Err(StoreError::Closed),
        }
    }

    /// Closes all connections after the writes under way.
    pub async fn close(&self) {
        self.transactions.pools.close().await;
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
    pub(crate) fn keyed(&self) -> Reads<'_> {
        Reads::new(self.pools.keyed(), &self.keys)
    }

    /// Of sealed columns.
    pub(crate) const fn keys(&self) -> &RowKeys {
        &self.keys
    }

    /// Who hears of what is written.
    pub(crate) const fn observed(&self) -> &Observed {
        &self.observed
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
            Some(writer) => writer.write(work).await,
            None => {
                let transaction = async {
                    let mut whole = Whole(Some(self.pools.any().acquire().await?));
                    let written = match &mut whole.0 {
                        Some(connection) => in_transaction(connection, work).await?,
                        None => Err(StoreError::Closed),
                    };
                    whole.0 = None;
                    written
                };
                let done = in_time(self.patience, transaction).await;
                self.trust.note(&done);
                done
            }
        }
    }
}

/// A connection of a pool that is closed unless what was done with it came to its end: given up while a transaction begins, it
/// would go back with one that nobody knows of (sqlx 0.9), which takes in whatever the connection is used for next.
struct Whole(Option<PoolConnection<Any>>);

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// The work of a transaction. If it panics, it is refused as if it had failed.
pub(crate) async fn contained<T>(work: TxFuture<'_, T>) -> Result<T> {
    task::contained("write to the database", work).await?
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
    use super::*;

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
}
