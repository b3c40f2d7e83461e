//! What is kept for a while only is deleted in parts.

use dstack_server::retention;
use dstack_store::{Dialect, NewEvent, raw};
use dstack_units::Time;

use super::metrics::{measured, running};
use super::{HandClock, Server, TestServer};

const NOW: Time = Time::from_millis(1_790_000_000_000);

/// More than two transactions of them.
const EVENTS: usize = 10_500;

async fn count(server: &Server) -> i64 {
    let count = "SELECT COUNT(*) FROM events WHERE message LIKE 'test %'";
    let rows = raw::fetch(&server.state.data.database, count).await.unwrap();
    rows[0][0].as_ref().unwrap().parse().unwrap()
}

async fn add_events(server: &Server) {
    let event = |n: usize| NewEvent {
        id: server.state.data.random.uuid().into(),
        message: format!("test {n}"),
        recorded_at: Time::from_micros(i64::try_from(n).unwrap()),
        actor: None,
        for_managers: false,
        targets: Vec::new(),
    };
    let events = (0..EVENTS).map(event).collect();
    let commit = dstack_store::Commit::unchecked(Vec::new(), events);
    server.state.data.database.commit(commit).await.unwrap();
}

/// Rows of a table for which the condition holds cannot be deleted.
async fn refuse(server: &Server, table: &str, condition: &str) {
    let statements = match server.state.data.database.dialect() {
        Dialect::Sqlite => vec![format!(
            "CREATE TRIGGER keep BEFORE DELETE ON {table} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'kept'); END"
        )],
        Dialect::Postgres => vec![
            "CREATE FUNCTION keep() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$ LANGUAGE plpgsql"
                .to_owned(),
            format!(
                "CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW WHEN ({condition}) \
                 EXECUTE FUNCTION keep()"
            ),
        ],
    };
    for statement in statements {
        raw::execute(&server.state.data.database, &statement)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_was_deleted_before_a_failure_stays_deleted() {
    let server = TestServer::new().clock(&HandClock::at(NOW)).start().await;
    add_events(&server).await;
    // The newest of the old events.
    let last = format!("OLD.message = 'test {}'", EVENTS - 1);
    refuse(&server, "events", &last).await;
    assert_eq!(count(&server).await, 10_500);
    retention::forget(&server.state.data, &server.state.edge.settings)
        .await
        .unwrap_err();
    assert_eq!(count(&server).await, 500, "two whole batches are gone");
}

#[tokio::test]
async fn points_that_cannot_be_deleted_keep_no_others() {
    let server = TestServer::new().clock(&HandClock::at(NOW)).start().await;
    let jobs = running(&server, &["first", "second"]).await;
    for job in &jobs {
        measured(&server, job, 1_000, 1).await;
    }
    let kept = jobs[1].id;
    refuse(&server, "job_metrics_points", &format!("OLD.job_id = '{kept}'")).await;
    retention::forget(&server.state.data, &server.state.edge.settings)
        .await
        .unwrap_err();
    let all = "SELECT job_id FROM job_metrics_points";
    let left = raw::fetch(&server.state.data.database, all).await.unwrap();
    let left: Vec<_> = left.iter().map(|row| row[0].clone().unwrap()).collect();
    assert_eq!(left, [kept.to_string()]);
}
