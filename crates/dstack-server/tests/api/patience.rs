//! `DSTACK_DB_COMMAND_TIMEOUT`: how long the database may take. On PostgreSQL only.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use dstack_store::{Database, DatabaseOptions, StoreError, raw};
use dstack_system::task;
use tokio::sync::oneshot;

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
    let (release, released) = oneshot::channel::<()>();
    let (held, holding) = oneshot::channel::<()>();
    let other = open(None).await;
    let holder = task::spawn("hold the lock", async move {
        other
            .write(move |tx| {
                Box::pin(async move {
                    raw::fetch_in(tx, LOCK).await?;
                    held.send(()).ok();
                    released.await.ok();
                    Ok(())
                })
            })
            .await
    });
    holding.await.unwrap();
    let patience = Duration::from_millis(300);
    let impatient = open(Some(patience)).await;
    let work = impatient.write(|tx| {
        Box::pin(async move {
            raw::fetch_in(tx, LOCK).await?;
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
            let limits = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')";
            raw::fetch_in(tx, limits).await
        })
    });
    let limits = limits.await.unwrap();
    assert_eq!(
        limits,
        [[Some("0".to_owned()), Some("0".to_owned())]],
        "no limits"
    );
    release.send(()).unwrap();
    holder.await.unwrap().unwrap().unwrap();
}

/// A lock that a transaction keeps until it ends; the column is a text, as what is read must be.
const LOCK: &str = "SELECT CAST(pg_advisory_xact_lock(1) AS TEXT)";

/// The database server gave up first.
fn is_cancelled(outcome: &Result<(), StoreError>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|error| format!("{error:?}").contains("canceling statement due to"))
}
