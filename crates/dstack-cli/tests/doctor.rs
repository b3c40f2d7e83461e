//! What `dstack doctor` prints, and with which code it exits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use std::time::Duration;

use dstack_system::{Clock, SystemClock};
use dstack_units::Time;
use serde_json::{Value, json};
use support::{Cli, Exchange, FakeServer};

const DIAGNOSIS: &str = "/api/server/get_diagnosis";
const ACCOUNT: &str = "/api/server/list_account";

fn hours_ago(hours: u64) -> Time {
    SystemClock.now() - Duration::from_secs(hours * 3600 + 60)
}

fn diagnosis(findings: &Value) -> Value {
    let now = SystemClock.now();
    let check = |check: &str, looked_at: &str| json!({"check": check, "looked_at": looked_at});
    json!({
        "asked_at": now, "answered_at": now, "findings": findings,
        "checks": [
            check("database", "answered within 1 ms"),
            check("backends", "2 accounts"),
            check("orphans", "2 accounts"),
            check("terminations", "1 row being ended"),
        ],
    })
}

fn findings() -> Value {
    json!([
        {"check": "backends", "subject": "backend lambda", "projects": ["team"], "since": null,
         "problem": "the cloud refuses the credentials: 401", "remedy": "Replace the credentials.", "price_per_hour": null},
        {"check": "orphans", "subject": "backend aws", "projects": ["main", "team"], "since": hours_ago(2),
         "problem": "machine i-1 (dstack-lost-1) in us-east-1 for $1.50 an hour: nothing is known of it here",
         "remedy": "End it.", "price_per_hour": 1.5},
        {"check": "orphans", "subject": "backend aws", "projects": ["main", "team"], "since": hours_ago(3),
         "problem": "machine i-2", "remedy": "End it.", "price_per_hour": 2.25},
    ])
}

#[tokio::test]
async fn what_is_wrong_is_told_with_what_to_do_and_the_command_fails() {
    let answer = || Exchange::new(DIAGNOSIS, diagnosis(&findings()));
    let server = FakeServer::start(vec![answer(), answer()]).await;
    let mut cli = Cli::with_project(&server);
    cli.columns = 100;
    let ended = cli.run(&["doctor"]).await;
    ended.assert_code(1);
    insta::assert_snapshot!("findings", ended.out);
    let ended = cli.run(&["doctor", "--json"]).await;
    ended.assert_code(1);
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(printed["findings"].as_array().unwrap().len(), 3);
    assert_eq!(printed["findings"][1]["price_per_hour"], 1.5);
    server.assert_done();
}

#[tokio::test]
async fn a_healthy_installation_is_a_success() {
    let server = FakeServer::start(vec![Exchange::new(DIAGNOSIS, diagnosis(&json!([])))]).await;
    let ended = Cli::with_project(&server).run(&["doctor"]).await;
    ended.assert_code(0);
    insta::assert_snapshot!("nothing", ended.out);
    server.assert_done();
}

#[tokio::test]
async fn a_server_whose_clock_is_wrong_is_told_of() {
    let mut answer = diagnosis(&json!([]));
    answer["asked_at"] = json!(hours_ago(0));
    answer["answered_at"] = json!(hours_ago(0));
    let server = FakeServer::start(vec![Exchange::new(DIAGNOSIS, answer)]).await;
    let ended = Cli::with_project(&server).run(&["doctor"]).await;
    ended.assert_code(1);
    assert!(ended.out.contains("clocks: clock of the server"), "{}", ended.out);
    assert!(
        ended.out.contains(" s behind that of this machine"),
        "{}",
        ended.out
    );
}

fn inventory() -> Value {
    let thing = |kind: &str, id: &str, price: Value, state: &str, made_for: Value| {
        json!({"kind": kind, "id": id, "name": format!("dstack-{id}"), "region": "us-east-1", "made_at": hours_ago(2),
               "price_per_hour": price, "state": state, "made_for": made_for})
    };
    json!({"accounts": [
        {"backend": "aws", "projects": ["main", "team"], "error": null, "price_per_hour": 4.5, "things": [
            thing("machine", "i-1", json!(3.0), "known", json!("instance train-0")),
            thing("machine", "i-2", json!(1.5), "over", json!("instance train-1")),
            thing("machine", "i-3", json!(1.5), "duplicate", json!("instance train-0")),
            thing("volume", "vol-1", Value::Null, "unknown", Value::Null),
            thing("volume", "vol-2", Value::Null, "known", Value::Null),
        ]},
        {"backend": "aws", "projects": ["other"], "error": null, "price_per_hour": 0.0, "things": []},
    ]})
}

#[tokio::test]
async fn an_account_is_listed_with_who_needs_what_and_what_it_costs() {
    let request = json!({"backend": "aws", "project_name": null});
    let answer = || Exchange {
        request: Some(request.clone()),
        ..Exchange::new(ACCOUNT, inventory())
    };
    let server = FakeServer::start(vec![answer(), answer()]).await;
    let mut cli = Cli::with_project(&server);
    cli.columns = 120;
    let ended = cli.run(&["doctor", "--account", "aws"]).await;
    ended.assert_code(0);
    insta::assert_snapshot!("account", ended.out);
    let ended = cli.run(&["doctor", "--account", "aws", "--json"]).await;
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(printed["accounts"][0]["things"][1]["state"], "over");
    server.assert_done();
}

#[tokio::test]
async fn accounts_that_are_not_there_or_do_not_tell_are_failures() {
    let of_project = json!({"backend": "aws", "project_name": "elsewhere"});
    let silent = json!({"accounts": [
        {"backend": "aws", "projects": ["main"], "error": "503", "price_per_hour": 0.0, "things": []},
    ]});
    let mut partly = inventory();
    partly["accounts"][0]["error"] = json!("the region us-east-2 does not tell what it has: 503");
    let denied = json!({"detail": {"msg": "Access denied"}});
    let server = FakeServer::start(vec![
        // A project that this machine does not know is one of the default project's server.
        Exchange {
            request: Some(of_project),
            ..Exchange::new(ACCOUNT, json!({"accounts": []}))
        },
        Exchange::new(ACCOUNT, silent),
        Exchange::new(ACCOUNT, partly),
        Exchange::refused(DIAGNOSIS, 403, denied),
    ])
    .await;
    let cli = Cli::with_project(&server);
    let ended = cli
        .run(&["doctor", "--account", "aws", "--project", "elsewhere"])
        .await;
    ended.assert_code(1);
    let told = "Project elsewhere does not have the backend aws [D0401]";
    assert!(ended.err.starts_with(told), "{}", ended.err);
    let ended = cli.run(&["doctor", "--account", "aws"]).await;
    ended.assert_code(1);
    assert!(
        ended.err.contains("It is not known what is there: 503"),
        "{}",
        ended.err
    );
    let ended = cli.run(&["doctor", "--account", "aws"]).await;
    ended.assert_code(1);
    assert!(
        ended
            .err
            .contains("There may be more: the region us-east-2 does not tell")
            && ended.out.contains("i-1"),
        "{}",
        ended.err
    );
    let ended = cli.run(&["doctor"]).await;
    ended.assert_code(1);
    assert!(
        ended.err.contains("hint: only admins of the server"),
        "{}",
        ended.err
    );
    server.assert_done();
}
