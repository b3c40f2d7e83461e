//! Help and shell completion.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use serde_json::json;
use support::{Cli, Exchange, FakeServer};

#[tokio::test]
async fn apply_shows_the_flags_of_a_type_on_demand() {
    let cli = Cli::new();
    let general = cli.run(&["apply", "-h"]).await;
    general.assert_code(0);
    assert!(
        general.out.contains("--detach") && !general.out.contains("--gpu"),
        "{}",
        general.out
    );
    assert!(general.out.contains("dstack apply -h TYPE"), "{}", general.out);
    let task = cli.run(&["apply", "--help", "task"]).await;
    assert!(
        task.out.contains("--gpu") && task.out.contains("--port"),
        "{}",
        task.out
    );
    let service = cli.run(&["apply", "-h", "service"]).await;
    assert!(
        service.out.contains("--gpu") && !service.out.contains("--port"),
        "{}",
        service.out
    );
    let unknown = cli.run(&["apply", "-h", "pod"]).await;
    unknown.assert_code(1);
    assert!(unknown.err.contains("hint: one of: task"), "{}", unknown.err);
}

#[tokio::test]
async fn usage_errors_are_on_standard_error() {
    let cli = Cli::new();
    let ended = cli.run(&["stop"]).await;
    ended.assert_code(2);
    assert_eq!(ended.out, "");
    assert!(ended.err.contains("RUN_NAME"), "{}", ended.err);
}

#[tokio::test]
async fn completion_scripts_are_valid_bash() {
    let script = Cli::new().run(&["completion", "bash"]).await.out;
    assert!(
        script.contains("_dstack_names")
            && !script.contains("\n        dstack__complete)\n            opts=\"\"")
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dstack.bash");
    fs_err::write(&path, script).unwrap();
    let checked = std::process::Command::new("bash")
        .arg("-n")
        .arg(&path)
        .status()
        .unwrap();
    assert!(checked.success());
    assert!(
        Cli::new()
            .run(&["completion", "zsh"])
            .await
            .out
            .contains("compdef _dstack_names dstack")
    );
}

/// What the script asks for is what a user would, whatever stands between the commands.
#[tokio::test]
async fn completion_in_bash_sees_the_project_and_the_commands() {
    let script = Cli::new().run(&["completion", "bash"]).await.out;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dstack.bash");
    fs_err::write(&path, script).unwrap();
    let calls = folder.path().join("calls");
    let asked = |words: &[&str]| {
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let program = format!(
            "source {}; dstack() {{ echo \"$@\" > {}; echo name; }}; COMP_WORDS=({}); COMP_CWORD={}; _dstack_names",
            path.display(),
            calls.display(),
            quoted.join(" "),
            words.len() - 1
        );
        // What an earlier case has asked for is no answer.
        fs_err::remove_file(&calls).ok();
        let bash = std::process::Command::new("bash").arg("-c").arg(program).output();
        let call = fs_err::read_to_string(&calls);
        call.unwrap_or_else(|error| panic!("{error}: {bash:?}"))
            .trim()
            .to_owned()
    };
    for (words, expected) in [
        (&["dstack", "fleet", "get", ""][..], "_complete fleets"),
        (
            &["dstack", "fleet", "--project", "p", "get", ""],
            "_complete fleets --project p",
        ),
        (
            &["dstack", "fleet", "--project", "=", "p", "get", ""],
            "_complete fleets --project p",
        ),
        (
            &["dstack", "stop", "--project=p", ""],
            "_complete runs --project p",
        ),
        (&["dstack", "--debug", "logs", "-d", ""], "_complete all-runs"),
        (&["dstack", "ps", "--project", "=", "n"], "_complete projects"),
    ] {
        assert_eq!(asked(words), expected, "{words:?}");
    }
}

#[tokio::test]
async fn completion_script_for_fish() {
    let script = Cli::new().run(&["completion", "fish"]).await;
    script.assert_code(0);
    assert!(
        script.out.contains("__fish_dstack_using_subcommand"),
        "{}",
        script.out
    );
    assert!(
        script.out.contains("'(__dstack_names all-runs)'"),
        "{}",
        script.out
    );
}

#[tokio::test]
async fn usage_errors_are_in_plain_words() {
    let cli = Cli::new();
    for (arguments, told) in [
        (&["completion", "bas"][..], "tip: did you mean 'bash'?"),
        (&["applly"], "tip: did you mean 'apply'?"),
        (&["offer", "--max-price", "lots"], "not a number"),
        (&["attach", "x", "--replica", "lots"], "not a whole number"),
        (
            &["apply", "--max-duration", "3weeks"],
            "Cannot parse the duration 3weeks (durations are written 30s, 5m, 2h, 3d or 1w)\n",
        ),
    ] {
        let ended = cli.run(arguments).await;
        ended.assert_code(2);
        assert!(ended.err.contains(told), "{}", ended.err);
    }
}

#[tokio::test]
async fn names_for_completion() {
    let server = FakeServer::start(vec![
        Exchange::new(
            "/api/project/main/secrets/list",
            json!([{"id": "0df2c062-1818-4087-974b-c2122b309d8d", "name": "TOKEN", "value": null}]),
        ),
        Exchange::refused("/api/runs/list", 500, json!("broken")),
    ])
    .await;
    let cli = Cli::with_project(&server);
    assert_eq!(cli.run(&["_complete", "projects"]).await.out, "main\n");
    assert_eq!(cli.run(&["_complete", "secrets"]).await.out, "TOKEN\n");
    let failed = cli.run(&["_complete", "runs"]).await;
    failed.assert_code(0);
    assert_eq!((failed.out.as_str(), failed.err.as_str()), ("", ""));
    server.assert_done();
}
