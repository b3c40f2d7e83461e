//! `export`, `import`, `login` and `metrics`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use dstack_system::{Clock, SystemClock};
use serde_json::{Value, json};
use support::{Cli, Exchange, FakeServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ID: &str = "0df2c062-1818-4087-974b-c2122b309d8d";

fn export(name: &str, global: bool) -> Value {
    json!({
        "id": ID, "name": name, "is_global": global, "imports": [{"project_name": "team"}],
        "exported_fleets": [{"id": ID, "name": "gpus"}, {"id": ID, "name": "cpus"}], "exported_gateways": [],
    })
}

#[tokio::test]
async fn exports_are_listed_with_warnings() {
    let answer = json!({"exports": [export("a", false), export("b", true)], "warnings": ["Take care"]});
    let server = FakeServer::start(vec![Exchange::new("/api/project/main/exports/list", answer)]).await;
    let ended = Cli::with_project(&server).run(&["export"]).await;
    ended.assert_code(0);
    let lines: Vec<String> = ended
        .out
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        [
            "NAME FLEETS GATEWAYS IMPORTERS",
            "a gpus, cpus - team",
            "b gpus, cpus - *",
            ""
        ]
    );
    assert_eq!(ended.err, "Take care\n\n");
    server.assert_done();
}

#[tokio::test]
async fn exports_are_created_updated_and_deleted() {
    let asked = |path: &str, request: Value, answer: Value| Exchange {
        request: Some(request),
        ..Exchange::new(path, answer)
    };
    let server = FakeServer::start(vec![
        asked(
            "/api/project/main/exports/create",
            json!({"name": "a", "importer_projects": ["x", "y"], "exported_fleets": ["f"], "exported_gateways": ["g"]}),
            export("a", false),
        ),
        asked(
            "/api/project/main/exports/update",
            json!({
                "name": "a", "set_global": true, "add_importer_projects": ["z"], "remove_importer_projects": ["x"],
                "add_exported_fleets": [], "remove_exported_fleets": ["f"], "add_exported_gateways": [],
                "remove_exported_gateways": [],
            }),
            export("a", true),
        ),
        asked("/api/project/main/exports/delete", json!({"name": "a"}), Value::Null),
    ])
    .await;
    let cli = Cli::with_project(&server);
    let create = [
        "export",
        "create",
        "a",
        "--importer",
        "x",
        "--importer",
        "y",
        "--fleet",
        "f",
        "--gateway",
        "g",
    ];
    cli.run(&create).await.assert_code(0);
    let update = [
        "export",
        "update",
        "a",
        "--set-global",
        "--add-importer",
        "z",
        "--remove-importer",
        "x",
        "--remove-fleet",
        "f",
    ];
    cli.run(&update).await.assert_code(0);
    let deleted = cli.run(&["export", "delete", "a", "-y"]).await;
    deleted.assert_code(0);
    assert_eq!(deleted.out, "Export a deleted\n");
    server.assert_done();
}

#[tokio::test]
async fn imports_are_named_by_project_and_export() {
    let server = FakeServer::start(vec![
        Exchange::new(
            "/api/project/main/imports/list",
            json!({"imports": [{"id": ID, "export": {
                "id": ID, "name": "a", "project_name": "team", "exported_fleets": [], "exported_gateways": [],
            }}], "warnings": []}),
        ),
        Exchange {
            request: Some(json!({"export_name": "a", "export_project_name": "team"})),
            ..Exchange::new("/api/project/main/imports/delete", Value::Null)
        },
    ])
    .await;
    let cli = Cli::with_project(&server);
    let listed = cli.run(&["import", "list"]).await;
    assert!(listed.out.contains(" team/a "), "{}", listed.out);
    cli.run(&["import", "delete", "a", "-y"]).await.assert_code(2);
    cli.run(&["import", "delete", "team/a", "-y"])
        .await
        .assert_code(0);
    server.assert_done();
}

#[tokio::test]
async fn metrics_are_drawn() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/cli/run-get");
    let mut files: Vec<_> = fs_err::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.file_name().unwrap() != "command.json");
    let recorded: Value = serde_json::from_slice(&fs_err::read(&files[0]).unwrap()).unwrap();
    let now = SystemClock.now();
    let stamps: Vec<_> = (0..3)
        .map(|i| now - std::time::Duration::from_secs(10 * i))
        .collect();
    let metric = |name: &str, values: Value| json!({"name": name, "timestamps": stamps, "values": values});
    let metrics = json!({"metrics": [
        metric("cpu_usage_percent", json!([100, 50, 0])),
        metric("memory_working_set_bytes", json!([1_610_612_736_i64, 0, 0])),
    ]});
    let run = Exchange::new("/api/project/main/runs/get", recorded["response"]["json"].clone());
    let name = recorded["response"]["json"]["run_spec"]["run_name"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut measured = Exchange::new(&format!("/api/project/main/metrics/job/{name}"), metrics);
    measured.method = "GET".to_owned();
    let server = FakeServer::start(vec![run.clone(), measured, run]).await;
    let mut cli = Cli::with_project(&server);
    cli.columns = 100;
    let ended = cli.run(&["metrics", &name]).await;
    ended.assert_code(0);
    let lines: Vec<&str> = ended.out.lines().map(str::trim_end).collect();
    assert!(
        lines[0].contains("UTILIZATION") && lines[0].contains("MEMORY"),
        "{}",
        ended.out
    );
    assert!(
        lines[1].contains("job=0") && lines[1].contains("cpu"),
        "{}",
        ended.out
    );
    assert!(
        lines[1].contains('%') && lines[1].contains("2GB"),
        "{}",
        ended.out
    );
    assert!(lines[3].ends_with("now"), "{}", ended.out);
    assert!(
        lines.iter().all(|line| line.chars().count() <= 100),
        "{}",
        ended.out
    );
    let none = cli.run(&["metrics", &name, "--replica", "7"]).await;
    none.assert_code(1);
    assert!(none.err.contains("has no job matching replica=7"), "{}", none.err);
    server.assert_done();
}

fn user() -> Value {
    json!({
        "id": ID, "username": "ada", "created_at": "2026-01-01T00:00:00+00:00", "global_role": "user", "email": null,
        "active": true, "permissions": {"can_create_projects": true}, "creds": {"token": "fresh-token"},
        "ssh_public_key": null, "ssh_private_key": null,
    })
}

fn project(name: &str) -> Value {
    json!({
        "project_id": ID, "project_name": name, "owner": {
            "id": ID, "username": "ada", "created_at": "2026-01-01T00:00:00+00:00", "global_role": "user", "email": null,
            "active": true, "permissions": {"can_create_projects": true}, "ssh_public_key": null,
        },
        "created_at": "2026-01-01T00:00:00+00:00", "backends": [], "members": [], "is_public": false,
    })
}

#[tokio::test]
async fn login_waits_for_the_browser() {
    let server = FakeServer::start(vec![
        Exchange::new(
            "/api/auth/list_providers",
            json!([{"name": "okta", "enabled": true}, {"name": "github", "enabled": false}]),
        ),
        Exchange::new(
            "/api/auth/okta/authorize",
            json!({"authorization_url": "https://idp.example/login?state=the-state&scope=email"}),
        ),
        Exchange {
            request: Some(json!({"code": "the code", "state": "the-state"})),
            ..Exchange::new("/api/auth/okta/callback", user())
        },
        Exchange::new("/api/projects/list", json!([project("main"), project("team")])),
    ])
    .await;
    let cli = Cli::new();
    let browser = async {
        // The port is known once the server was asked where the browser must go.
        let port = loop {
            let asked = server.asked();
            if let Some(request) = asked.iter().find(|asked| asked.path.ends_with("/authorize")) {
                break request.body["local_port"].as_u64().unwrap();
            }
            tokio::task::yield_now().await;
        };
        let visit = async |target: &str| {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap()))
                .await
                .unwrap();
            let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let other = visit("/favicon.ico").await;
        assert!(other.starts_with("HTTP/1.1 400"), "{other}");
        let foreign = visit("/auth/callback?code=of+another&state=of-another").await;
        assert!(foreign.starts_with("HTTP/1.1 400"), "{foreign}");
        let answer = visit("/auth/callback?code=the+code&state=the-state").await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("authenticated"),
            "{answer}"
        );
    };
    let arguments = ["login", "--url", &server.url];
    let (ended, ()) = tokio::join!(cli.run(&arguments), browser);
    ended.assert_code(0);
    assert!(ended.out.contains("https://idp.example/login"), "{}", ended.out);
    assert!(ended.out.contains("Logged in as ada"), "{}", ended.out);
    let config = fs_err::read_to_string(cli.home.path().join(".dstack/config.yml")).unwrap();
    assert_eq!(config.matches("token: fresh-token").count(), 2, "{config}");
    assert!(config.contains("default: true\n  name: main"), "{config}");
    server.assert_done();
}

#[tokio::test]
async fn login_where_there_is_no_single_sign_on() {
    let server = FakeServer::start(vec![Exchange::new("/api/auth/list_providers", json!([]))]).await;
    let ended = Cli::new().run(&["login", "--url", &server.url]).await;
    ended.assert_code(1);
    assert!(
        ended.err.contains("No SSO providers") && ended.err.contains("hint: use a token"),
        "{}",
        ended.err
    );
    let asked = Cli::new().run(&["login"]).await;
    asked.assert_code(1);
    assert!(asked.err.contains("--url"), "{}", asked.err);
}
