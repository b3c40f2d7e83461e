//! Far more calls than can be served.

use std::collections::BTreeSet;
use std::sync::Arc;

use dstack_server::overload::Limits;
use dstack_store::{Dialect, raw};
use dstack_system::task;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::oneshot;

use super::{ADMIN, Server, TestServer};

const WRITES: usize = 8;

#[tokio::test]
async fn writes_beyond_the_limit_are_refused_reads_answered_and_nothing_accepted_is_lost() {
    let limits = Limits {
        writes: WRITES,
        ..Limits::default()
    };
    let server = Arc::new(TestServer::new().limits(limits).start().await);
    // What the first run makes for all: the virtual repo.
    submit(&server, "first").await.ok();

    // No run is written until the holder lets go: SQLite has one writer, PostgreSQL locks the table.
    let (release, released) = oneshot::channel::<()>();
    let (held, holding) = oneshot::channel::<()>();
    let database = server.state.data.database.clone();
    let dialect = database.dialect();
    let holder = task::spawn("hold the writer", async move {
        database
            .write(move |tx| {
                Box::pin(async move {
                    if dialect == Dialect::Postgres {
                        raw::execute_in(tx, "LOCK TABLE runs IN EXCLUSIVE MODE").await?;
                    }
                    held.send(()).ok();
                    released.await.ok();
                    Ok(())
                })
            })
            .await
    });
    holding.await.unwrap();

    // Each a task of its own, as on a server: one that nobody polls would keep its connection to the database.
    let mut calls: FuturesUnordered<_> = (0..10 * WRITES)
        .map(|number| {
            let server = Arc::clone(&server);
            task::spawn("submit", async move {
                let name = format!("run-{number}");
                let answer = submit(&server, &name).await;
                (name, answer)
            })
        })
        .collect();
    for _ in 0..9 * WRITES {
        let (_, answer) = calls.next().await.unwrap().unwrap().unwrap();
        assert_eq!(answer.status, 429, "{}", answer.body);
        assert_eq!(answer.headers["retry-after"], "1");
    }
    for path in ["/api/runs/list", "/api/fleets/list", "/api/users/get_my_user"] {
        server.post(ADMIN, path, json!({})).await.ok();
    }
    release.send(()).unwrap();
    holder.await.unwrap().unwrap().unwrap();
    let mut accepted = BTreeSet::from(["first".to_owned()]);
    while let Some(ended) = calls.next().await {
        let (name, answer) = ended.unwrap().unwrap();
        answer.ok();
        accepted.insert(name);
    }
    assert_eq!(accepted.len(), WRITES + 1);
    let runs = server.post(ADMIN, "/api/runs/list", json!({})).await.ok();
    let stored: BTreeSet<String> = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["run_spec"]["run_name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(stored, accepted);
    submit(&server, "afterwards").await.ok();
}

async fn submit(server: &Server, name: &str) -> super::Answer {
    let spec = json!({"run_name": name, "configuration": {"type": "task", "commands": ["echo hello"]}});
    let plan = json!({"plan": {"run_spec": spec}, "force": false});
    server.main("runs/apply", plan).await
}
