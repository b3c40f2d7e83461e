//! `DSTACK_DB_COMMAND_TIMEOUT`: how long the database may take. On PostgreSQL only.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use dstack_store::{Database, DatabaseOptions, StoreError};
use sqlx::{Connection, Executor, PgConnection};

use super::{new_postgres, on_postgres};

#[tokio::test]
async fn a_database_may_take_as_long_as_it_is_said() {
    if !on_postgres() {
        println!("skipped: needs PostgreSQL");
        return;
    }
    let url = new_postgres().await;
    Database::open(&url).await.unwrap().close().await;
    let open = async |patience: Option<Duration>| {
        let options = DatabaseOptions {
            patience,
            ..DatabaseOptions::default()
        };
        Database::open_with(&url, options).await.unwrap()
    };
    // Held until the end of the test: who waits for the same lock waits for ever.
    let mut other = PgConnection::connect(&url).await.unwrap();
    other.execute(LOCK).await.unwrap();
    let patience = Duration::from_millis(300);
    let impatient = open(Some(patience)).await;
    let work = impatient.write(|tx| {
        Box::pin(async move {
            tx.execute(LOCK).await?;
            Ok(())
        })
    });
    let given_up = work.await;
    assert!(
        matches!(&given_up, Err(StoreError::Slow(after)) if *after == patience) || is_cancelled(&given_up),
        "{given_up:?}"
    );
    let patient = open(None).await;
    let limits = patient.write(|tx| {
        Box::pin(async move {
            let shown = sqlx::query_as(
                "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')",
            );
            Ok(shown.fetch_one(tx).await?)
        })
    });
    let limits: (String, String) = limits.await.unwrap();
    assert_eq!(limits, ("0".to_owned(), "0".to_owned()), "no limits");
    other.close().await.unwrap();
}

/// A lock that a session keeps until it ends.
const LOCK: &str = "SELECT pg_advisory_lock(1)";

/// The database server gave up first.
fn is_cancelled(outcome: &Result<(), StoreError>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|error| format!("{error:?}").contains("canceling statement due to"))
}
