//! Runs from submission to the end, against a scripted server; the job itself cannot be reached over SSH here, so its
//! output comes through the server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use base64::Engine as _;
use serde_json::{Value, json};
use support::{Cli, Exchange, FakeServer, recorded_apply, recorded_run};

const RUN: &str = "/api/project/main/runs/get";
const LOGS: &str = "/api/project/main/logs/poll";

fn lines(lines: &[(&str, &str)]) -> Value {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let logs: Vec<Value> = lines
        .iter()
        .map(|(time, text)| json!({"timestamp": format!("2026-01-01T00:00:{time}Z"), "log_source": "stdout", "message": encode(text)}))
        .collect();
    json!({"logs": logs, "external_url": null, "next_token": null})
}

fn submitted(rest: Vec<Exchange>) -> Vec<Exchange> {
    let plan = recorded_apply("02-project-runs-get_plan.json");
    let mut exchanges = vec![
        Exchange::new("/api/project/main/repos/init", Value::Null),
        Exchange::new("/api/project/main/runs/get_plan", plan),
        Exchange::new("/api/project/main/runs/apply", recorded_run("submitted", |_| {})),
    ];
    exchanges.extend(rest);
    exchanges
}

async fn apply(rest: Vec<Exchange>) -> (FakeServer, support::Ended) {
    let server = FakeServer::start(submitted(rest)).await;
    let cli = Cli::with_project(&server);
    cli.write(
        "task.yml",
        "type: task\nname: cli-task\ncommands:\n  - echo hello\n",
    );
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).await;
    (server, ended)
}

/// What was printed after the plan.
fn after_plan(out: &str) -> &str {
    out.split_once("$98.32max\n\n").unwrap().1
}

#[tokio::test]
async fn a_quick_run_prints_its_output_and_exits_with_0() {
    let (server, ended) = apply(vec![
        Exchange::new(RUN, recorded_run("provisioning", |_| {})),
        Exchange::new(RUN, recorded_run("done", |_| {})),
        Exchange::new(LOGS, lines(&[("01", "hello\n"), ("02", "world\n")])),
        Exchange::new(RUN, recorded_run("done", |_| {})),
    ])
    .await;
    server.assert_done();
    ended.assert_code(0);
    let shown = after_plan(&ended.out);
    let (table, rest) = shown.split_once("\n\n").unwrap();
    assert!(
        table.starts_with(" NAME      BACKEND  GPU  PRICE  STATUS  SUBMITTED \n cli-task"),
        "{table}"
    );
    assert_eq!(
        rest,
        "cli-task provisioning completed (done)\nhello\nworld\nDone\n"
    );
    assert_eq!(ended.err, "");
}

#[tokio::test]
async fn a_quickly_failed_run_prints_its_output_says_why_and_exits_with_1() {
    let failed = |submission: &mut Value| {
        submission["status_message"] = json!("exited (3)");
        submission["error"] = json!("container exited");
        submission["termination_reason"] = json!("container_exited_with_error");
        submission["termination_reason_message"] = json!("The [job] said no");
    };
    let (server, ended) = apply(vec![
        Exchange::new(RUN, recorded_run("failed", failed)),
        Exchange::new(LOGS, lines(&[("01", "the last words\n")])),
        Exchange::new(RUN, recorded_run("failed", failed)),
    ])
    .await;
    server.assert_done();
    ended.assert_code(1);
    let end = "provisioning completed (failed)\nthe last words\nExited (3) (Container exited)\nThe [job] said no\nCheck dstack logs -d cli-task for more details.\n";
    assert!(ended.out.ends_with(end), "{}", ended.out);
}

#[tokio::test]
async fn a_retried_run_is_followed_again() {
    let again = |submission: &mut Value| submission["submitted_at"] = json!("2030-01-01T00:00:00Z");
    let (server, ended) = apply(vec![
        Exchange::new(RUN, recorded_run("failed", |_| {})),
        Exchange::new(LOGS, lines(&[("01", "first try\n")])),
        Exchange::new(
            RUN,
            recorded_run("pending", |submission| submission["status"] = json!("submitted")),
        ),
        Exchange::new(RUN, recorded_run("done", again)),
        Exchange::new(LOGS, lines(&[("01", "second try\n")])),
        Exchange::new(RUN, recorded_run("done", again)),
    ])
    .await;
    server.assert_done();
    ended.assert_code(0);
    assert!(ended.out.ends_with("second try\nDone\n"), "{}", ended.out);
}

#[tokio::test]
async fn a_taken_port_is_refused_before_anything_is_submitted() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut plan = recorded_apply("02-project-runs-get_plan.json");
    plan["job_plans"][0]["job_spec"]["app_specs"] = json!([{"port": port, "map_to_port": port, "app_name": "app_0", "url_path": null, "url_query_params": null}]);
    let server = FakeServer::start(vec![
        Exchange::new("/api/project/main/repos/init", Value::Null),
        Exchange::new("/api/project/main/runs/get_plan", plan),
    ])
    .await;
    let cli = Cli::with_project(&server);
    cli.write("task.yml", "type: task\nname: cli-task\ncommands: [ls]\n");
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).await;
    ended.assert_code(1);
    assert!(
        ended.err.starts_with(&format!(
            "Failed to submit: port {port} is already in use. [D0605]\nhint: use `-p`"
        )),
        "{}",
        ended.err
    );
    server.assert_done();
}

#[tokio::test]
async fn a_job_that_cannot_be_reached_is_followed_through_the_server() {
    // Nothing listens on this port once the listener is gone.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let at_home = |submission: &mut Value| {
        submission["job_provisioning_data"] = json!({
            "backend": "remote", "instance_type": {"name": "ssh", "resources": {"cpus": 1, "memory_mib": 1, "gpus": [], "spot": false}},
            "instance_id": "i", "hostname": "127.0.0.1", "region": "remote", "price": 0.0, "username": "root",
            "ssh_port": closed, "dockerized": false,
        });
    };
    let pair = dstack_ssh::keys::generate_ed25519(&dstack_system::Random::seeded(1), "me").unwrap();
    let mut running = recorded_run("running", at_home);
    running["run_spec"]["ssh_key_pub"] = json!(pair.public);
    let user = json!({
        "id": "0df2c062-1818-4087-974b-c2122b309d8d", "username": "admin", "global_role": "admin", "active": true,
        "permissions": {"can_create_projects": true}, "ssh_public_key": pair.public, "ssh_private_key": pair.private.expose(),
        "creds": {"token": "golden-admin-token"},
    });
    let (server, ended) = apply(vec![
        Exchange::new(RUN, running.clone()),
        Exchange::new("/api/users/get_my_user", user),
        Exchange::new(RUN, running),
        Exchange::new(LOGS, lines(&[("01", "one\n")])),
        Exchange::new(LOGS, lines(&[("01", "one\n"), ("02", "two\n")])),
        Exchange::new(LOGS, lines(&[("02", "two\n")])),
        Exchange::new(LOGS, lines(&[("02", "two\n")])),
        Exchange::new(LOGS, lines(&[("02", "two\n")])),
        Exchange::new(LOGS, lines(&[("02", "two\n")])),
        Exchange::new(LOGS, lines(&[("02", "two\n")])),
        Exchange::new(RUN, recorded_run("done", at_home)),
        Exchange::new(LOGS, lines(&[("02", "two\n"), ("03", "three\n")])),
        Exchange::new(RUN, recorded_run("done", at_home)),
    ])
    .await;
    server.assert_done();
    ended.assert_code(0);
    assert!(
        ended
            .out
            .ends_with("cli-task provisioning completed (running)\none\ntwo\nthree\nDone\n"),
        "{}",
        ended.out
    );
    assert!(
        ended
            .err
            .starts_with("Cannot attach to the run: cannot connect to 127.0.0.1"),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn logs_are_read_page_by_page() {
    let mut first = lines(&[("01", "a\n"), ("01", "b\n")]);
    first["next_token"] = json!("2");
    let server = FakeServer::start(vec![
        Exchange::new(RUN, recorded_run("done", |_| {})),
        Exchange::new(LOGS, first),
        Exchange::new(LOGS, lines(&[("01", "c\n"), ("02", "d\n")])),
    ])
    .await;
    let ended = Cli::with_project(&server)
        .run(&["logs", "cli-task", "-d", "--since", "2026-01-01T00:00:00Z"])
        .await;
    ended.assert_code(0);
    assert_eq!(ended.out, "a\nb\nc\nd\n");
    let asked = server.asked();
    assert_eq!(asked[1].body["diagnose"], true);
    assert_eq!(asked[1].body["start_time"], "2026-01-01T00:00:00Z");
    assert_eq!(asked[2].body["next_token"], "2");
    server.assert_done();
}
