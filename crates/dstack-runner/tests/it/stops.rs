//! Stopping: the terminal's interrupt first, then harder.

use serde_json::json;

use dstack_agent_api::runner::JobState;

use crate::harness::{TestRunner, ended, last_state, log_of, state};

fn stopped() -> dstack_agent_api::runner::JobStateEvent {
    state(JobState::Terminated, None)
}

/// Runs a script that says `ready`, stops it, returns its log and how many processes of its session are left.
async fn stop_script(script: &str) -> (String, Vec<u32>) {
    let runner = TestRunner::start().await;
    runner.run_script(&format!("echo session $$; {script}")).await;
    runner.wait_for_log("ready").await;
    runner.client.stop().await.unwrap();
    let events = runner.events().await;
    assert_eq!(last_state(&events), stopped());
    let log = log_of(&events);
    let session = log
        .lines()
        .next()
        .unwrap()
        .strip_prefix("session ")
        .unwrap()
        .parse()
        .unwrap();
    (log, dstack_runner::session::members(session))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_is_enough_for_most() {
    let (log, left) = stop_script("echo ready; sleep 1000").await;
    assert!(log.ends_with("ready\n"), "{log}");
    assert!(left.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trap_runs() {
    let (log, left) = stop_script("trap 'echo bye; exit 5' INT; echo ready; sleep 1000 & wait").await;
    assert!(log.contains("bye\n"), "{log}");
    // The job's own clean-up does not reach its background process: the runner does.
    assert!(left.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn interactive_shells_with_job_control_stop() {
    let runner = TestRunner::start().await;
    let mut spec = runner.spec("");
    spec["commands"] = json!(["/bin/sh", "-i", "-c", "echo ready; sleep 1000 && echo never"]);
    runner.run(spec).await;
    runner.wait_for_log("ready").await;
    runner.client.stop().await.unwrap();
    let events = runner.events().await;
    assert_eq!(last_state(&events), stopped());
    let log = log_of(&events);
    // Neither the interrupt nor the prompt of a shell that waits for more; what shells say at their start is theirs.
    assert!(log.ends_with("ready\n"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn last_words_are_kept() {
    let (log, _) =
        stop_script("trap 'printf \"step 3 of 7\"; exit' INT; echo ready; sleep 1000 & wait").await;
    assert!(log.ends_with("ready\nstep 3 of 7\n"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ignores_interrupts_is_hung_up() {
    let (log, left) =
        stop_script("trap '' INT; trap 'echo hung up; exit' HUP; echo ready; while :; do sleep 0.1; done")
            .await;
    assert!(log.contains("hung up\n"), "{log}");
    assert!(left.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ignores_everything_is_killed() {
    let (_, left) = stop_script("trap '' INT HUP TERM; echo ready; while :; do sleep 0.1; done").await;
    assert!(left.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn max_duration_ends_the_job() {
    let runner = TestRunner::start().await;
    let mut spec = runner.spec("echo start; sleep 1000");
    spec["max_duration"] = json!(1);
    runner.run(spec).await;
    let events = runner.events().await;
    assert_eq!(
        last_state(&events),
        ended(
            "max_duration_exceeded",
            "Max duration exceeded",
            JobState::Terminated
        )
    );
    assert_eq!(log_of(&events), "start\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_stops_the_job() {
    let runner = TestRunner::start().await;
    runner.run_script("echo ready; sleep 1000").await;
    runner.wait_for_log("ready").await;
    runner.signals.send(()).await.unwrap();
    assert_eq!(last_state(&runner.events().await), stopped());
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_without_a_job_do_nothing() {
    let runner = TestRunner::start().await;
    runner.client.stop().await.unwrap();
    let (_, last) = runner.outcome("echo hello").await;
    assert_eq!(last, state(JobState::Done, Some(0)));
    runner.client.stop().await.unwrap();
    assert_eq!(last_state(&runner.events().await), state(JobState::Done, Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn background_processes_end_with_the_job() {
    for script in [
        "sleep 1000 & echo over; exit 4",
        "(trap '' HUP; sleep 1000 >/dev/null 2>&1 </dev/null) & exit 4",
    ] {
        let runner = TestRunner::start().await;
        let (log, last) = runner.outcome(&format!("echo session $$; {script}")).await;
        assert_eq!(last, state(JobState::Failed, Some(4)), "{script}");
        let session = log
            .lines()
            .next()
            .unwrap()
            .strip_prefix("session ")
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(
            dstack_runner::session::members(session),
            Vec::<u32>::new(),
            "{script}"
        );
    }
}
