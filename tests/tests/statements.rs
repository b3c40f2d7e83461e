//! `DSTACK_SQL_ECHO_ENABLED`: what is said to the database is in the log, and what is in it is not.
#![allow(clippy::unwrap_used)]

use dstack_tests::need;
use dstack_tests::runs::TEST_TIMEOUT;
use dstack_tests::server::{Server, Setup, eventually};
use serde_json::json;

/// A server that only answers, on the database that is asked for.
fn setup() -> dstack_tests::parts::Part<Setup> {
    let setup = Setup::without_engine()?;
    match dstack_tests::parts::on_postgres() {
        true => setup.on_postgres(),
        false => Ok(setup),
    }
}

const NAME: &str = "grace-whose-name-is-a-value";

fn ask(server: &Server) {
    let user = json!({"username": NAME, "global_role": "user"});
    server.get("/api/users/create", &user).unwrap();
}

#[test]
fn statements_are_shown_without_values_when_asked_for() {
    let server = need!(setup())
        .variable("DSTACK_SQL_ECHO_ENABLED", "1")
        .start()
        .unwrap();
    ask(&server);
    eventually("the statement is in the log", TEST_TIMEOUT, || {
        Ok(server.output().contains("INSERT INTO users").then_some(()))
    })
    .unwrap();
    assert!(!server.output().contains(NAME), "{}", server.output());
    let quiet = need!(setup()).start().unwrap();
    ask(&quiet);
    assert!(!quiet.output().contains("INSERT INTO"), "{}", quiet.output());
}
