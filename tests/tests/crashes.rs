//! SIGKILL to the server, to the shim, to both: the run reaches its one end with every line in order.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use anyhow::{Context, Result};
use dstack_tests::need;
use dstack_tests::runs::{TEST_TIMEOUT, attach, submit};
use dstack_tests::server::{Server, Setup, eventually, signal};
use serde_json::json;

/// Prints the numbers 1 to 60, ten a second.
const COUNTING: &str = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; sleep 0.1; done";

fn counted() -> String {
    (1..=60).map(|i| format!("line {i}\n")).collect()
}

fn assert_finished_once(server: &Server, name: &str) -> Result<()> {
    let run = attach(server, name);
    assert_eq!(run.wait_until_finished()?, "done", "{:#}", run.get()?);
    let submissions = run.get()?;
    let count = submissions
        .pointer("/jobs/0/job_submissions")
        .and_then(|s| s.as_array().map(Vec::len));
    assert_eq!(count, Some(1), "the job ran more than once: {submissions:#}");
    assert_eq!(run.logs()?, counted());
    Ok(())
}

/// The agent that runs tasks on this machine.
fn shim(server: &Server) -> Result<u32> {
    eventually("the shim is running", TEST_TIMEOUT, || {
        Ok(server.descendants().into_iter().find(|pid| {
            fs_err::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"shim"))
        }))
    })
}

#[test]
fn the_server_is_killed_while_the_job_prints() {
    let mut server = need!(Setup::local()).start().unwrap();
    submit(&server, "counting", &[COUNTING], &json!({}))
        .unwrap()
        .wait_for_log("line 10\n")
        .unwrap();
    server.kill().unwrap();
    server.start().unwrap();
    assert_finished_once(&server, "counting").unwrap();
}

#[test]
fn the_server_is_killed_right_after_each_status() {
    for status in ["submitted", "provisioning", "running"] {
        let mut server = need!(Setup::local()).start().unwrap();
        let run = submit(&server, "counting", &[COUNTING], &json!({})).unwrap();
        // A status that passed too quickly to be seen is as good as seen: the kill comes all the same.
        let later: &[&str] = match status {
            "submitted" => &["submitted", "provisioning", "running"],
            "provisioning" => &["provisioning", "running"],
            _ => &["running"],
        };
        run.wait_for(later).unwrap();
        server.kill().unwrap();
        server.start().unwrap();
        assert_finished_once(&server, "counting").unwrap();
    }
}

#[test]
fn the_shim_is_killed_while_the_job_prints() {
    let server = need!(Setup::local()).start().unwrap();
    submit(&server, "counting", &[COUNTING], &json!({}))
        .unwrap()
        .wait_for_log("line 10\n")
        .unwrap();
    signal(shim(&server).unwrap(), "KILL");
    assert_finished_once(&server, "counting").unwrap();
}

#[test]
fn server_and_shim_are_killed_while_the_job_prints() {
    let mut server = need!(Setup::local()).start().unwrap();
    submit(&server, "counting", &[COUNTING], &json!({}))
        .unwrap()
        .wait_for_log("line 10\n")
        .unwrap();
    let shim = shim(&server).unwrap();
    server.kill().unwrap();
    signal(shim, "KILL");
    server.start().unwrap();
    assert_finished_once(&server, "counting").unwrap();
}

#[test]
fn the_job_ends_while_the_server_is_down() {
    let mut server = need!(Setup::local()).start().unwrap();
    let marker = server.home().join("the-job-has-ended");
    let end = format!("echo last words; touch {}; exit 3", marker.display());
    submit(
        &server,
        "alone",
        &["echo first words", "sleep 2", &end],
        &json!({}),
    )
    .unwrap()
    .wait_for_log("first words")
    .unwrap();
    server.kill().unwrap();
    eventually("the job ends by itself", TEST_TIMEOUT, || {
        Ok(marker.exists().then_some(()))
    })
    .unwrap();
    server.start().unwrap();
    let run = attach(&server, "alone");
    assert_eq!(run.wait_until_finished().unwrap(), "failed");
    assert_eq!(run.logs().unwrap(), "first words\nlast words\n");
    let submission = run.submission().unwrap();
    assert_eq!(submission["exit_status"], 3, "{submission:#}");
}

#[test]
fn sigterm_ends_the_server_and_not_the_run() {
    let mut server = need!(Setup::local()).start().unwrap();
    submit(&server, "counting", &[COUNTING], &json!({}))
        .unwrap()
        .wait_for_log("line 10\n")
        .unwrap();
    assert_eq!(server.terminate().unwrap(), Some(0));
    server.start().unwrap();
    assert_finished_once(&server, "counting").unwrap();
}

#[test]
fn tokens_and_settings_survive_a_kill() {
    let mut server = need!(Setup::local()).start().unwrap();
    server
        .get(
            "/api/project/main/secrets/create_or_update",
            &json!({"name": "A", "value": "b"}),
        )
        .unwrap();
    server.kill().unwrap();
    server.start().unwrap();
    let secret = server
        .get("/api/project/main/secrets/get", &json!({"name": "A"}))
        .unwrap();
    assert_eq!(secret["value"].as_str().context("a value").unwrap(), "b");
}
