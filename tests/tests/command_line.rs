//! The command line against our server: the unmodified Python one of 0.22.5, and ours. Each test runs with both.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use dstack_tests::cli::{Cli, Ended};
use dstack_tests::http::Client;
use dstack_tests::need;
use dstack_tests::runs::{SMALL_YAML, TEST_TIMEOUT, attach, without_notice};
use dstack_tests::server::{Server, Setup, eventually, free_port};
use dstack_tests::terminal::Terminal;

/// Makes a test of each function, once per command line.
macro_rules! with_both {
    ($($name:ident)*) => {
        mod python {
            use dstack_tests::{cli::Cli, need};
            $(#[test] fn $name() { super::$name(&need!(Cli::python())); })*
        }
        mod ours {
            use dstack_tests::{cli::Cli, need};
            $(#[test] fn $name() { super::$name(&need!(Cli::ours())); })*
        }
    };
}

with_both! {
    project_add_checks_the_token
    apply_attached_shows_the_lines_and_the_end
    apply_attached_fails_when_the_job_does
    apply_detached_then_ps_logs_and_events
    stop_ends_a_running_task
    a_second_apply_of_a_running_task_asks_for_force
    ctrl_c_on_a_terminal_offers_to_stop_the_run
    this_machine_is_a_fleet_with_offers
    secrets_reach_the_job
    files_are_copied_into_the_job
    attached_apply_forwards_ports
    attach_makes_ssh_work
}

/// A server, and a CLI that knows it.
fn start(setup: Setup, cli: &Cli) -> Server {
    let server = setup.start().unwrap();
    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    server
}

fn succeeds(cli: &Cli, args: &[&str]) -> Result<String> {
    let Ended { code, text } = cli.run(args)?;
    assert_eq!(code, Some(0), "dstack {}:\n{text}", args.join(" "));
    Ok(text)
}

fn task(cli: &Cli, name: &str, commands: &[&str]) -> Result<()> {
    let commands: String = commands
        .iter()
        .map(|command| format!("  - {command}\n"))
        .collect();
    cli.write(
        "task.yml",
        &format!("type: task\nname: {name}\ncommands:\n{commands}{SMALL_YAML}"),
    )
}

fn project_add_checks_the_token(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    let url = server.url();
    let args = [
        "project", "add", "--name", "main", "--url", &url, "--token", "wrong", "-y",
    ];
    let refused = cli.run(&args).unwrap();
    assert_eq!(refused.code, Some(1), "{}", refused.text);
    assert!(refused.text.contains("Access to"), "{}", refused.text);
    let listed = succeeds(cli, &["project", "list", "-v"]).unwrap();
    assert!(listed.contains("main") && listed.contains("admin"), "{listed}");
}

fn apply_attached_shows_the_lines_and_the_end(cli: &Cli) {
    let setup = need!(Setup::local());
    let _server = start(setup, cli);
    task(cli, "hello", &["echo one", "sleep 3", "echo two"]).unwrap();
    let shown = succeeds(cli, &["apply", "-f", "task.yml", "-y"]).unwrap();
    let (one, two) = (shown.find("\none"), shown.find("\ntwo"));
    assert!(one.is_some() && two.is_some() && one < two, "{shown}");
    assert!(shown.contains("Exited (0)"), "{shown}");
}

fn apply_attached_fails_when_the_job_does(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    task(cli, "broken", &["echo before", "sleep 3", "exit 7"]).unwrap();
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(ended.text.contains("before"), "{}", ended.text);
    let submission = attach(&server, "broken").submission().unwrap();
    assert_eq!(submission["exit_status"], 7, "{submission:#}");
}

fn apply_detached_then_ps_logs_and_events(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    task(cli, "quiet", &["echo from the job"]).unwrap();
    let applied = succeeds(cli, &["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    assert!(applied.contains("Run quiet submitted, detaching..."), "{applied}");

    assert_eq!(attach(&server, "quiet").wait_until_finished().unwrap(), "done");
    let listed = succeeds(cli, &["ps", "-a"]).unwrap();
    assert!(
        listed.contains("quiet") && listed.contains("exited (0)"),
        "{listed}"
    );
    let logs = succeeds(cli, &["logs", "quiet"]).unwrap();
    assert_eq!(without_notice(&logs.replace("\r\n", "\n")), "from the job\n");
    let events = succeeds(cli, &["event", "list"]).unwrap();
    for event in [
        "Run submitted. Status: SUBMITTED",
        "[run quiet] Run status changed",
        "[job quiet-0-0]",
    ] {
        assert!(events.contains(event), "{event} not in {events}");
    }
    let json = succeeds(cli, &["run", "get", "quiet", "--json"]).unwrap();
    assert!(json.contains("\"status\": \"done\""), "{json}");
}

fn stop_ends_a_running_task(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    task(cli, "endless", &["echo started", "sleep 1000"]).unwrap();
    succeeds(cli, &["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    let run = attach(&server, "endless");
    run.wait_for_log("started").unwrap();
    succeeds(cli, &["stop", "endless", "-y"]).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "terminated");
    let submission = run.submission().unwrap();
    assert_eq!(
        submission["termination_reason"], "terminated_by_user",
        "{submission:#}"
    );
}

fn a_second_apply_of_a_running_task_asks_for_force(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    task(cli, "twice", &["sleep 1000"]).unwrap();
    succeeds(cli, &["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    attach(&server, "twice").wait_for(&["running"]).unwrap();
    let again = cli.run(&["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    assert!(again.text.contains("--force"), "{}", again.text);
}

fn ctrl_c_on_a_terminal_offers_to_stop_the_run(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    task(cli, "watched", &["echo visible", "sleep 1000"]).unwrap();
    let args = ["apply", "-f", "task.yml"];
    let mut terminal = Terminal::start(cli.program(), &args, cli.folder(), &cli.variables()).unwrap();
    let patience = Duration::from_secs(90);
    terminal.wait_for("[y/n]", patience).unwrap();
    terminal.type_text("y\r").unwrap();
    terminal.wait_for("visible", patience).unwrap();
    terminal.type_text("\x03").unwrap();
    terminal.wait_for("before detaching?", patience).unwrap();
    terminal.type_text("y\r").unwrap();
    assert_eq!(terminal.wait().unwrap(), 0, "{}", terminal.text());
    assert_eq!(attach(&server, "watched").status().unwrap(), "terminated");
}

fn this_machine_is_a_fleet_with_offers(cli: &Cli) {
    let setup = need!(Setup::local());
    let _server = start(setup, cli);
    let fleets = succeeds(cli, &["fleet", "list", "-v"]).unwrap();
    assert!(fleets.contains("ssh") || fleets.contains("local"), "{fleets}");
    let offers = succeeds(
        cli,
        &["offer", "--cpu", "1..", "--memory", "0.1GB..", "--disk", "1GB.."],
    )
    .unwrap();
    assert!(offers.contains("ssh"), "{offers}");
    assert!(offers.contains("$0"), "{offers}");
}

fn secrets_reach_the_job(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    succeeds(cli, &["secret", "set", "TOKEN", "canary-5f1d"]).unwrap();
    let listed = succeeds(cli, &["secret", "list"]).unwrap();
    assert!(
        listed.contains("TOKEN") && !listed.contains("canary-5f1d"),
        "{listed}"
    );
    let shown = succeeds(cli, &["secret", "get", "TOKEN"]).unwrap();
    assert!(shown.contains("canary-5f1d"), "{shown}");

    let yaml = format!(
        "type: task\nname: secretive\nenv:\n  - VALUE=${{{{ secrets.TOKEN }}}}\ncommands:\n  - echo got $VALUE\n{SMALL_YAML}"
    );
    cli.write("task.yml", &yaml).unwrap();
    succeeds(cli, &["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    let run = attach(&server, "secretive");
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    assert_eq!(run.logs().unwrap(), "got canary-5f1d\n");
    succeeds(cli, &["secret", "delete", "TOKEN", "-y"]).unwrap();
    let listed = succeeds(cli, &["secret", "list"]).unwrap();
    assert!(!listed.contains("TOKEN"), "{listed}");
}

fn files_are_copied_into_the_job(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    cli.write("data.txt", "forty-two\n").unwrap();
    let yaml =
        format!("type: task\nname: reader\nfiles:\n  - data.txt\ncommands:\n  - cat data.txt\n{SMALL_YAML}");
    cli.write("task.yml", &yaml).unwrap();
    succeeds(cli, &["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    let run = attach(&server, "reader");
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    assert_eq!(run.logs().unwrap(), "forty-two\n");
}

fn attached_apply_forwards_ports(cli: &Cli) {
    let setup = need!(Setup::local());
    let _server = start(setup, cli);
    let (local, remote) = (free_port().unwrap(), free_port().unwrap());
    let yaml = format!(
        "type: task\nname: web\nports: [\"{local}:{remote}\"]\ncommands:\n  \
         - python3 -m http.server --bind 127.0.0.1 {remote}\n{SMALL_YAML}"
    );
    cli.write("task.yml", &yaml).unwrap();
    let _apply = cli.start(&["apply", "-f", "task.yml", "-y"]).unwrap();
    let client = Client::default();
    eventually("the forwarded port answers", TEST_TIMEOUT, || {
        let answer = client.send("GET", &format!("http://127.0.0.1:{local}/"), &[], None);
        Ok(answer.ok().filter(|answer| answer.status == 200))
    })
    .unwrap();
}

fn attach_makes_ssh_work(cli: &Cli) {
    let setup = need!(Setup::local());
    let server = start(setup, cli);
    task(cli, "shell", &["echo up", "sleep 1000"]).unwrap();
    succeeds(cli, &["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    attach(&server, "shell").wait_for_log("up").unwrap();
    let _attach = cli.start(&["attach", "shell"]).unwrap();
    let config = cli.folder().join(".dstack/ssh/config");
    let text = eventually("ssh shell answers", TEST_TIMEOUT, || {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F")
            .arg(&config)
            .args(["-o", "BatchMode=yes", "shell", "echo $((6 * 7)); exit 5"]);
        let output = ssh.env("HOME", cli.folder()).stdin(Stdio::null()).output()?;
        Ok((output.status.code() == Some(5)).then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    })
    .unwrap();
    assert_eq!(text, "42\n");
}

/// Ours only: the Python command line does not notice that the run has ended.
#[test]
fn attach_in_a_second_terminal_ends_with_the_run() {
    let (cli, setup) = (&need!(Cli::ours()), need!(Setup::local()));
    let server = start(setup, cli);
    let end = cli.folder().join("end");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", end.display());
    task(cli, "short", &["echo up", &wait, "exit 3"]).unwrap();
    succeeds(cli, &["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    attach(&server, "short").wait_for_log("up").unwrap();

    let mut command = cli.command(&["attach", "short"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let attached = command.spawn().unwrap();
    let config = cli.folder().join(".dstack/ssh/config");
    eventually("it is attached", TEST_TIMEOUT, || {
        let text = fs_err::read_to_string(&config).unwrap_or_default();
        Ok(text.contains("Host short").then_some(()))
    })
    .unwrap();
    cli.write("end", "").unwrap();
    let output = attached.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("Exited (3)"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}
