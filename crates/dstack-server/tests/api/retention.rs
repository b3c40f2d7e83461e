//! What is kept for a while only is deleted in parts.

use dstack_server::retention;
use dstack_store::{Dialect, NewEvent, raw};
use dstack_units::Time;

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

/// The newest of the old events cannot be deleted.
async fn refuse_the_last(server: &Server) {
    let last = format!("test {}", EVENTS - 1);
    let statements = match server.state.data.database.dialect() {
        Dialect::Sqlite => vec![format!(
            "CREATE TRIGGER keep BEFORE DELETE ON events WHEN OLD.message = '{last}' \
             BEGIN SELECT RAISE(ABORT, 'kept'); END"
        )],
        Dialect::Postgres => vec![
            "CREATE FUNCTION keep() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$ LANGUAGE plpgsql"
                .to_owned(),
            format!(
                "CREATE TRIGGER keep BEFORE DELETE ON events FOR EACH ROW WHEN (OLD.message = '{last}') \
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
    refuse_the_last(&server).await;
    assert_eq!(count(&server).await, 10_500);
    retention::forget(&server.state.data, &server.state.edge.settings)
        .await
        .unwrap_err();
    assert_eq!(count(&server).await, 500, "two whole batches are gone");
}
