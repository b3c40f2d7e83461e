//! Bad input: one clear message, a non-zero exit, nothing left behind.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use dstack_tests::cli::Cli;
use dstack_tests::need;
use dstack_tests::runs::{SMALL_YAML, attach};
use dstack_tests::server::{Server, Setup};
use serde_json::json;

fn start() -> Result<(Server, Cli), String> {
    let (setup, cli) = (Setup::local()?, Cli::ours()?);
    let server = setup.start().unwrap();
    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    Ok((server, cli))
}

/// Applies a configuration that must be refused: with all of these words in the message, and without a run.
fn refused(server: &Server, cli: &Cli, yaml: &str, words: &[&str]) {
    cli.write("task.yml", yaml).unwrap();
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).unwrap();
    assert!(
        ended.code.is_some_and(|code| code != 0),
        "{yaml}\nwas accepted:\n{}",
        ended.text
    );
    for word in words {
        assert!(
            ended.text.contains(word),
            "{word:?} is missing for\n{yaml}\n{}",
            ended.text
        );
    }
    assert!(!ended.text.contains("panicked"), "{}", ended.text);
    let runs = server
        .get("/api/runs/list", &json!({"project_name": "main"}))
        .unwrap();
    assert_eq!(runs, json!([]), "a run was left behind by\n{yaml}");
}

#[test]
fn configurations_that_cannot_be() {
    let (server, cli) = need!(start());
    let task = |rest: &str| format!("type: task\nname: bad\ncommands: [\"true\"]\n{rest}");
    let cases: &[(String, &[&str])] = &[
        ("type: task\ncommands: [\n".into(), &["task.yml", ":"]),
        ("just text\n".into(), &["task.yml"]),
        ("name: bad\n".into(), &["type"]),
        ("type: tsk\ncommands: [\"true\"]\n".into(), &["type", "tsk"]),
        (task("colour: red\n"), &["colour"]),
        (task("priority: high\n"), &["priority"]),
        (task("max_duration: soon\n"), &["max_duration"]),
        (task("resources: {memory: lots}\n"), &["memory"]),
        ("type: task\nname: bad\n".into(), &["commands"]),
        (
            "type: task\nname: Bad_Name\ncommands: [\"true\"]\n".into(),
            &["task.yml:2:7", "Bad_Name", "lower-case letters"],
        ),
        (task("files: [no-such-file]\n"), &["no-such-file"]),
        (task("env: [NOT_SET_ANYWHERE]\n"), &["NOT_SET_ANYWHERE"]),
    ];
    for (yaml, words) in cases {
        refused(&server, &cli, yaml, words);
    }
}

#[test]
fn files_that_are_too_large() {
    let (server, cli) = need!(start());
    cli.write("large.txt", &"x".repeat(20 * 1024 * 1024)).unwrap();
    refused(
        &server,
        &cli,
        "type: task\nname: bad\ncommands: [\"true\"]\nfiles: [large.txt]\n",
        &[
            "20.0MiB",
            ".gitignore/.dstackignore",
            "DSTACK_SERVER_CODE_UPLOAD_LIMIT",
        ],
    );
}

#[test]
fn a_configuration_that_is_not_there() {
    let (_server, cli) = need!(start());
    let ended = cli.run(&["apply", "-f", "nowhere.yml", "-y"]).unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(ended.text.contains("nowhere.yml"), "{}", ended.text);
}

#[test]
fn resources_nobody_has() {
    let (server, cli) = need!(start());
    let yaml = "type: task\nname: huge\ncommands: [\"true\"]\nresources: {memory: 900TB..}\n";
    cli.write("task.yml", yaml).unwrap();
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).unwrap();
    assert!(ended.code.is_some_and(|code| code != 0), "{}", ended.text);
    // Accepted or not: nothing waits for ever.
    let runs = server
        .get(
            "/api/runs/list",
            &json!({"project_name": "main", "only_active": true}),
        )
        .unwrap();
    assert_eq!(runs, json!([]), "{runs:#}");
}

#[test]
fn a_command_that_does_not_exist() {
    let (server, cli) = need!(start());
    let yaml = format!("type: task\nname: typo\ncommands: [no-such-command-here]\n{SMALL_YAML}");
    cli.write("task.yml", &yaml).unwrap();
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(ended.text.contains("Exited (127)"), "{}", ended.text);
    let run = attach(&server, "typo");
    assert!(
        run.logs().unwrap().contains("no-such-command-here"),
        "the shell's message is kept"
    );
    let submission = run.submission().unwrap();
    assert_eq!(submission["exit_status"], 127, "{submission:#}");
}

#[test]
fn unknown_runs_projects_and_tokens() {
    let (server, cli) = need!(start());
    for args in [
        &["logs", "nothing"][..],
        &["stop", "nothing", "-y"],
        &["attach", "nothing"],
        &["delete", "nothing", "-y"],
    ] {
        let ended = cli.run(args).unwrap();
        assert!(
            ended.code.is_some_and(|code| code != 0),
            "{args:?}: {}",
            ended.text
        );
        assert!(!ended.text.trim().is_empty(), "{args:?} says nothing");
    }
    let ended = cli.run(&["ps", "--project", "nowhere"]).unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(ended.text.contains("nowhere"), "{}", ended.text);
    let url = server.url();
    let ended = cli
        .run(&[
            "project", "add", "--name", "main", "--url", &url, "--token", "wrong", "-y",
        ])
        .unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
}

#[test]
fn a_port_that_is_taken_stops_the_server() {
    let (server, cli) = need!(start());
    let ended = cli
        .run(&["server", "-y", "--no-local", "--port", &server.port().to_string()])
        .unwrap();
    assert!(ended.code.is_some_and(|code| code != 0), "{}", ended.text);
    assert!(
        ended.text.contains(&server.port().to_string()),
        "the port is named: {}",
        ended.text
    );
}

#[test]
fn a_home_that_cannot_be_written_stops_the_server() {
    let cli = need!(Cli::ours());
    // Not a folder: also root cannot write into it.
    cli.write("file", "").unwrap();
    let home = cli.folder().join("file");
    let output = cli
        .command(&["server", "-y", "--no-local", "--port", "1"])
        .env("HOME", &home)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains(&home.display().to_string()),
        "the path is named: {text}"
    );
}

#[test]
fn a_broken_server_configuration_stops_the_server() {
    let setup = need!(Setup::local()).config("projects:\n- name: main\n  backends: 7\n");
    let error = setup.start().err().unwrap().to_string();
    assert!(error.contains("config.yml"), "{error}");
}

#[test]
fn a_secret_nobody_set() {
    let (_server, cli) = need!(start());
    let yaml = format!(
        "type: task\nname: open\ncommands: [\"true\"]\nenv: {{A: \"${{{{ secrets.nope }}}}\"}}\n{SMALL_YAML}"
    );
    cli.write("task.yml", &yaml).unwrap();
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(ended.text.contains("nope"), "the secret is named: {}", ended.text);
}
