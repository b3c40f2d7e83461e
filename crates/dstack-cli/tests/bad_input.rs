//! Bad input: one clear message with its cause and a remedy, on standard error, and a non-zero exit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use dstack_cli::settings::Environment;
use serde_json::json;
use support::{Cli, Ended, Exchange, FakeServer};

/// A command line whose server must not be asked for anything.
async fn refused(cli: &Cli, arguments: &[&str]) -> Ended {
    let ended = cli.run(arguments).await;
    ended.assert_code(1);
    assert_eq!(ended.out, "", "{ended:?}");
    ended
}

async fn offline() -> (FakeServer, Cli) {
    let server = FakeServer::start(Vec::new()).await;
    let cli = Cli::with_project(&server);
    (server, cli)
}

#[tokio::test]
async fn malformed_yaml_is_shown_with_its_place() {
    let (server, cli) = offline().await;
    cli.write("task.yml", "type: task\ncommands:\n  - echo\n bad: [\n");
    let ended = refused(&cli, &["apply", "-f", "task.yml", "-y"]).await;
    assert!(ended.err.contains("task.yml:4"), "{}", ended.err);
    server.assert_done();
}

#[tokio::test]
async fn an_unknown_key_is_shown_with_a_suggestion() {
    let (server, cli) = offline().await;
    cli.write("task.yml", "type: task\ncomands:\n  - echo\n");
    let ended = refused(&cli, &["apply", "-f", "task.yml", "-y"]).await;
    assert!(
        ended.err.contains("task.yml:2") && ended.err.contains("`commands`"),
        "{}",
        ended.err
    );
    server.assert_done();
}

#[tokio::test]
async fn a_wrong_text_is_shown_once() {
    let (server, cli) = offline().await;
    cli.write(
        "task.yml",
        "type: task\ncommands: [ls]\nresources:\n  memory: lots\n",
    );
    let ended = refused(&cli, &["apply", "-f", "task.yml", "-y"]).await;
    assert!(
        ended.err.starts_with("task.yml:4:11: `resources.memory`: "),
        "{}",
        ended.err
    );
    assert_eq!(ended.err.matches("lots").count(), 1, "{}", ended.err);
    server.assert_done();
}

#[tokio::test]
async fn a_wrong_name_is_shown_with_its_place() {
    let (server, cli) = offline().await;
    cli.write("task.yml", "type: task\nname: Bad_Name\ncommands: [ls]\n");
    let ended = refused(&cli, &["apply", "-f", "task.yml", "-y"]).await;
    assert!(
        ended
            .err
            .starts_with("task.yml:2:7: `name`: found \"Bad_Name\", expected"),
        "{}",
        ended.err
    );
    server.assert_done();
}

#[tokio::test]
async fn missing_files_are_named() {
    let (server, cli) = offline().await;
    let ended = refused(&cli, &["apply", "-y"]).await;
    assert!(
        ended.err.starts_with("No configuration file specified via `-f`"),
        "{}",
        ended.err
    );
    let ended = refused(&cli, &["apply", "-f", "none.yml", "-y"]).await;
    assert!(
        ended
            .err
            .starts_with("Configuration file none.yml does not exist [D0102]\nhint:"),
        "{}",
        ended.err
    );
    cli.write("task.yml", "type: task\ncommands: [ls]\nfiles: [data]\n");
    let ended = refused(&cli, &["apply", "-f", "task.yml", "-y"]).await;
    assert!(
        ended.err.contains("specified in `files` does not exist"),
        "{}",
        ended.err
    );
    let ended = refused(
        &cli,
        &["apply", "-f", "task.yml", "-y", "--ssh-identity", "nokey"],
    )
    .await;
    assert!(
        ended.err.starts_with("Unable to read the SSH key at nokey"),
        "{}",
        ended.err
    );
    server.assert_done();
}

#[tokio::test]
async fn flags_of_other_types_are_refused() {
    let (server, cli) = offline().await;
    cli.write("fleet.yml", "type: fleet\nname: my-fleet\nnodes: 1\n");
    let ended = refused(
        &cli,
        &["apply", "-f", "fleet.yml", "-y", "--gpu", "A100", "-p", "80"],
    )
    .await;
    assert!(ended.err.starts_with("Unrecognized arguments:"), "{}", ended.err);
    assert!(
        ended.err.contains("--gpu") && ended.err.contains("--port"),
        "{}",
        ended.err
    );
    server.assert_done();
}

#[tokio::test]
async fn wrong_values_in_the_configuration() {
    let (server, cli) = offline().await;
    for (text, part) in [
        (
            "type: task\ncommands: [ls]\nenv: [NOT_SET_ANYWHERE]\n",
            "NOT_SET_ANYWHERE",
        ),
        (
            "type: task\ncommands: [ls]\nworking_dir: relative\n",
            "working_dir must be absolute",
        ),
        (
            "type: task\ncommands: ['echo ${{ nothing.here }}']\n",
            "missing vars: nothing.here",
        ),
        ("type: preset\nmodel: x\n", ""),
    ] {
        cli.write("c.yml", text);
        let ended = refused(&cli, &["apply", "-f", "c.yml", "-y"]).await;
        assert!(ended.err.contains(part) && !ended.err.is_empty(), "{}", ended.err);
    }
    let ended = refused(&cli, &["apply", "-f", "-"]).await;
    assert!(
        ended.err.starts_with("Cannot read configuration from stdin"),
        "{}",
        ended.err
    );
    server.assert_done();
}

#[tokio::test]
async fn a_wrong_token_and_an_unknown_project() {
    let server = FakeServer::start(vec![
        Exchange::refused(
            "/api/runs/list",
            403,
            json!({"detail": {"msg": "Invalid token", "code": null}}),
        ),
        Exchange::refused(
            "/api/project/main/secrets/list",
            404,
            json!({"detail": {"msg": "Not found", "code": null}}),
        ),
    ])
    .await;
    let cli = Cli::with_project(&server);
    let ended = refused(&cli, &["ps"]).await;
    let expected = format!(
        "Access to {}/api/runs/list is denied. Please check your access token [D0203]\nhint:",
        server.url
    );
    assert!(ended.err.starts_with(&expected), "{}", ended.err);
    let ended = refused(&cli, &["secret"]).await;
    assert!(
        ended.err.contains("404") && ended.err.contains("hint: check the project's name"),
        "{}",
        ended.err
    );
    let ended = refused(&cli, &["ps", "--project", "other"]).await;
    assert!(
        ended
            .err
            .starts_with("Project other is not configured [D0301]\nhint:"),
        "{}",
        ended.err
    );
    server.assert_done();
}

#[tokio::test]
async fn unknown_things() {
    let runs = "/api/project/main/runs/get";
    let server = FakeServer::start(vec![
        Exchange::missing(runs),
        Exchange::missing(runs),
        Exchange::missing(runs),
        Exchange::missing("/api/project/main/fleets/get"),
        Exchange::missing("/api/project/main/volumes/get"),
    ])
    .await;
    let cli = Cli::with_project(&server);
    for (arguments, message) in [
        (&["stop", "x", "-y"][..], "Run x not found"),
        (&["logs", "x"], "Run x not found"),
        (&["attach", "x"], "Run x not found"),
        (&["fleet", "delete", "x", "-y"], "Fleet x does not exist"),
        (&["volume", "delete", "x", "-y"], "Volume x does not exist"),
    ] {
        let ended = refused(&cli, arguments).await;
        assert!(ended.err.starts_with(message), "{}", ended.err);
    }
    server.assert_done();
}

#[tokio::test]
async fn no_project_at_all() {
    let cli = Cli::new();
    let ended = refused(&cli, &["ps"]).await;
    assert!(
        ended.err.contains("No default project") && ended.err.contains("hint:"),
        "{}",
        ended.err
    );
    let env = Environment::fixed([("DSTACK_SERVER_URL", "http://127.0.0.1:1"), ("DSTACK_TOKEN", "t")]);
    let ended = refused(&Cli { env, ..Cli::new() }, &["ps"]).await;
    assert!(
        ended.err.starts_with("The project name is not specified"),
        "{}",
        ended.err
    );
    let env = Environment::fixed([("DSTACK_SERVER_URL", "http://127.0.0.1:1")]);
    let ended = refused(&Cli { env, ..Cli::new() }, &["ps"]).await;
    assert!(ended.err.contains("DSTACK_TOKEN"), "{}", ended.err);
    let ended = refused(
        &cli,
        &[
            "project",
            "add",
            "--name",
            "x",
            "--url",
            "not a url",
            "--token",
            "t",
        ],
    )
    .await;
    assert!(ended.err.contains("`not a url`"), "{}", ended.err);
}

#[tokio::test]
async fn the_environment_stands_in_for_the_configuration_file() {
    let server = FakeServer::start(vec![
        Exchange::new("/api/runs/list", json!([])),
        Exchange::new("/api/runs/list", json!([])),
    ])
    .await;
    let env = Environment::fixed([
        ("DSTACK_SERVER_URL", &server.url),
        ("DSTACK_TOKEN", "from-env"),
        ("DSTACK_PROJECT", "p"),
    ]);
    Cli { env, ..Cli::new() }.run(&["ps"]).await.assert_code(0);
    let asked = server.asked();
    assert_eq!(asked[0].token.as_deref(), Some("Bearer from-env"));
    assert_eq!(asked[0].body["project_name"], "p");
    server.assert_done();
}

#[tokio::test]
async fn a_home_that_cannot_be_written() {
    let server = FakeServer::start(vec![Exchange::new("/api/projects/main/get", project())]).await;
    let cli = Cli::new();
    // A file where the folder should be: nobody, not even root, can write below it.
    cli.write(".dstack", "");
    let ended = refused(
        &cli,
        &[
            "project",
            "add",
            "--name",
            "main",
            "--url",
            &server.url,
            "--token",
            "t",
            "-y",
        ],
    )
    .await;
    assert!(
        ended.err.contains("config.yml") || ended.err.contains(".dstack"),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn a_broken_configuration_file_is_reported_and_repaired_by_adding_a_project() {
    let server = FakeServer::start(vec![Exchange::new("/api/projects/main/get", project())]).await;
    let cli = Cli::new();
    cli.write(".dstack/config.yml", "projects: 5\n");
    let ended = cli
        .run(&[
            "project",
            "add",
            "--name",
            "main",
            "--url",
            &server.url,
            "--token",
            "t",
            "-y",
        ])
        .await;
    ended.assert_code(0);
    assert!(ended.err.contains("is ignored"), "{}", ended.err);
    let folder = cli.home.path().join(".dstack");
    let kept = folder.join("config.yml.bad");
    assert!(ended.err.contains(&kept.display().to_string()), "{}", ended.err);
    assert_eq!(fs_err::read_to_string(kept).unwrap(), "projects: 5\n");
    let text = fs_err::read_to_string(folder.join("config.yml")).unwrap();
    assert!(
        text.contains("default: true") && text.contains(&server.url),
        "{text}"
    );
}

#[tokio::test]
async fn a_refused_question_ends_quietly() {
    let server = FakeServer::start(vec![Exchange::new("/api/project/main/fleets/get", fleet())]).await;
    let cli = Cli {
        input: "n\n".to_owned(),
        ..Cli::with_project(&server)
    };
    let ended = cli.run(&["fleet", "delete", "x"]).await;
    ended.assert_code(0);
    assert_eq!(ended.out, "Delete the fleet x? [y/n]: \nExiting...\n");
    server.assert_done();
}

fn project() -> serde_json::Value {
    json!({
        "project_id": "0df2c062-1818-4087-974b-c2122b309d8d", "project_name": "main", "backends": [], "members": [],
        "owner": {"id": "0df2c062-1818-4087-974b-c2122b309d8d", "username": "admin", "global_role": "admin", "active": true,
                  "permissions": {"can_create_projects": true}},
    })
}

fn fleet() -> serde_json::Value {
    json!({
        "id": "0df2c062-1818-4087-974b-c2122b309d8d", "name": "x", "project_name": "main", "status": "active", "instances": [],
        "created_at": "2026-01-01T00:00:00Z", "spec": {"configuration": {"type": "fleet"}, "profile": {"name": "default"}},
    })
}
