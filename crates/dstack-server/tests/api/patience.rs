//! `DSTACK_DB_COMMAND_TIMEOUT`: how long the database may take. On PostgreSQL only.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use dstack_store::{Database, DatabaseOptions, StoreError};
use sqlx::Executor;

use super::{new_postgres, on_postgres};

#[tokio::test]
async fn a_database_may_take_as_long_as_it_is_said() {
    if !on_postgres() {
        println!("skipped: needs PostgreSQL");
        return;
    }
    let url = new_postgres().await;
    Database::open(&url).await.unwrap().close().await;
    let sleep = async |patience: Option<Duration>, statement: &'static str| {
        let options = DatabaseOptions {
            patience,
            ..DatabaseOptions::default()
        };
        let database = Database::open_with(&url, options).await.unwrap();
        let work = database.write(move |tx| {
            Box::pin(async move {
                tx.execute(statement).await?;
                Ok(())
            })
        });
        work.await
    };
    let patience = Duration::from_millis(300);
    let given_up = sleep(Some(patience), "SELECT pg_sleep(600)").await;
    assert!(
        matches!(&given_up, Err(StoreError::Slow(after)) if *after == patience) || is_cancelled(&given_up),
        "{given_up:?}"
    );
    sleep(None, "SELECT pg_sleep(0.4)").await.unwrap();
}

/// The database server gave up first.
fn is_cancelled(outcome: &Result<(), StoreError>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|error| format!("{error:?}").contains("statement timeout"))
}
