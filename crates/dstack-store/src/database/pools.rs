//! Connections that many share.

use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Connection, Executor};
use tokio::runtime::{self, Handle};

use super::trust::Trust;
use super::{DatabaseOptions, Dialect};
use crate::Result;

/// Connections of SQLite that read, each a thread.
const SQLITE_READERS: u32 = 8;

/// Connections of PostgreSQL for statements that find rows by their keys.
const KEYED: u32 = 8;

/// All connections of a server but those of single tasks.
#[derive(Clone, Debug)]
pub(super) struct Pools {
    any: AnyPool,
    /// For statements that find rows by their keys; PostgreSQL only.
    keyed: Option<AnyPool>,
    /// On SQLite, where a connection is a thread with the priority of the one that made it: those of the second set of
    /// threads.
    of_workers: Option<(runtime::Id, AnyPool)>,
}

impl Pools {
    /// Makes the first connection; others are made when they are needed.
    pub(super) async fn open(
        dialect: Dialect,
        url: &str,
        options: DatabaseOptions,
        trust: &Trust,
        workers: Option<&Handle>,
    ) -> Result<Self> {
        let of = |connections| {
            let options = DatabaseOptions {
                connections,
                ..options
            };
            pool_options(dialect, options, trust)
        };
        match dialect {
            Dialect::Sqlite => {
                let each = SQLITE_READERS / if workers.is_some() { 2 } else { 1 };
                let any = of(each).connect(url).await?;
                let of_workers =
                    |workers: &Handle| of(each).connect_lazy(url).map(|pool| (workers.id(), pool));
                Ok(Self {
                    any,
                    keyed: None,
                    of_workers: workers.map(of_workers).transpose()?,
                })
            }
            Dialect::Postgres => {
                let any = of(options.connections).connect(url).await?;
                let keyed = of(KEYED).after_connect(move |connection, _| {
                    Box::pin(prepare_keyed_session(connection, options.patience))
                });
                Ok(Self {
                    any,
                    keyed: Some(keyed.connect_lazy(url)?),
                    of_workers: None,
                })
            }
        }
    }

    /// For any statement.
    pub(super) fn any(&self) -> &AnyPool {
        match &self.of_workers {
            Some((workers, pool)) if is_current(*workers) => pool,
            _ => &self.any,
        }
    }

    /// For statements that find rows by their keys.
    pub(super) fn keyed(&self) -> &AnyPool {
        self.keyed.as_ref().unwrap_or_else(|| self.any())
    }

    pub(super) async fn close(&self) {
        let of_workers = self.of_workers.as_ref().map(|(_, pool)| pool);
        for pool in [Some(&self.any), self.keyed.as_ref(), of_workers]
            .into_iter()
            .flatten()
        {
            pool.close().await;
        }
    }
}

fn is_current(threads: runtime::Id) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == threads)
}

/// How long after its last use a connection to a database server is taken without asking whether it lives.
pub(crate) const TRUSTED_FOR: Duration = Duration::from_secs(5);

/// A connection that does not answer so long is given up.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn pool_options(dialect: Dialect, how: DatabaseOptions, trust: &Trust) -> AnyPoolOptions {
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
async fn prepare_session(
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

#[cfg(test)]
mod tests {
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
}
