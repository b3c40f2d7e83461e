//! `token`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use serde_json::{Value, json};
use support::{Cli, Exchange, FakeServer};

const ID: &str = "0df2c062-1818-4087-974b-c2122b309d8d";

fn token(name: &str, read_only: bool, project: Option<&str>, expires: Option<&str>) -> Value {
    json!({
        "id": ID, "name": name, "created_at": "2026-01-01T00:00:00Z", "expires_at": expires,
        "read_only": read_only, "project_name": project,
    })
}

fn asked(path: &str, request: Value, answer: Value) -> Exchange {
    Exchange {
        request: Some(request),
        ..Exchange::new(path, answer)
    }
}

#[tokio::test]
async fn tokens_are_listed_with_what_they_are_good_for() {
    let answer = json!([
        token("ci", false, Some("team"), None),
        token("old", true, None, Some("2026-01-02T00:00:00Z")),
    ]);
    let list = || Exchange::new("/api/users/tokens/list", answer.clone());
    let server = FakeServer::start(vec![list(), list()]).await;
    let cli = Cli::with_project(&server);
    let ended = cli.run(&["token"]).await;
    ended.assert_code(0);
    let lines: Vec<Vec<&str>> = ended
        .out
        .lines()
        .map(|line| line.split_whitespace().take(4).collect())
        .collect();
    assert_eq!(lines[0], ["NAME", "ACCESS", "PROJECT", "EXPIRES"]);
    assert_eq!(lines[1], ["ci", "full", "team", "never"]);
    assert_eq!(lines[2], ["old", "read-only", "*", "expired"]);
    let ended = cli.run(&["token", "list", "--json"]).await;
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(printed[0]["name"], "ci");
    server.assert_done();
}

#[tokio::test]
async fn a_new_token_is_alone_on_standard_output() {
    let mut answer = token("ci", true, Some("team"), None);
    answer["token"] = json!("dstack_1234");
    let server = FakeServer::start(vec![asked(
        "/api/users/tokens/create",
        json!({"name": "ci", "read_only": true, "project_name": "team", "expires_in": 2_592_000}),
        answer,
    )])
    .await;
    let cli = Cli::with_project(&server);
    let ended = cli
        .run(&[
            "token",
            "create",
            "ci",
            "--read-only",
            "--project",
            "team",
            "--expires",
            "30d",
        ])
        .await;
    ended.assert_code(0);
    assert_eq!(ended.out, "dstack_1234\n");
    assert!(ended.err.contains("not shown again"), "{}", ended.err);
    server.assert_done();
}

#[tokio::test]
async fn a_name_that_is_taken_and_one_that_is_not() {
    let path = "/api/users/tokens/create";
    let taken = json!({"detail": [{"msg": "Resource exists", "code": "resource_exists"}]});
    let missing = json!({"detail": [{"msg": "Token x not found", "code": "resource_not_exists"}]});
    let server = FakeServer::start(vec![
        Exchange::refused(path, 400, taken),
        Exchange::refused("/api/users/tokens/delete", 400, missing),
        asked("/api/users/tokens/delete", json!({"names": ["ci"]}), Value::Null),
    ])
    .await;
    let mut cli = Cli::with_project(&server);
    let ended = cli.run(&["token", "create", "ci"]).await;
    ended.assert_code(1);
    assert!(
        ended
            .err
            .starts_with("Token ci exists [D0402]\nhint: choose another name"),
        "{}",
        ended.err
    );
    let ended = cli.run(&["token", "delete", "x", "--yes"]).await;
    ended.assert_code(1);
    assert!(
        ended.err.contains("hint: see `dstack token list`"),
        "{}",
        ended.err
    );
    cli.input = "n\n".to_owned();
    cli.run(&["token", "delete", "ci"]).await.assert_code(0);
    cli.input = "y\n".to_owned();
    cli.run(&["token", "delete", "ci"]).await.assert_code(0);
    server.assert_done();
}
