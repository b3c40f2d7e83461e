//! How the process ends.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc;

use dstack_agent_api::stream::StreamLine;
use dstack_runner::runner::RunnerError;

use crate::harness::{TestRunner, started};

async fn watch_to_the_end(runner: &TestRunner) {
    let url = format!("ws://127.0.0.1:{}/logs_ws", runner.port);
    let (mut socket, _) = tokio_tungstenite::connect_async(&url).await.unwrap();
    while let Some(Ok(_)) = socket.next().await {}
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_when_server_and_watcher_have_everything() {
    let runner = TestRunner::start().await;
    runner.run_script("echo hello").await;
    watch_to_the_end(&runner).await;
    let events = runner.events().await;
    let last = events
        .iter()
        .filter_map(StreamLine::event_timestamp)
        .max()
        .unwrap();
    runner.client.ack(last - 1).await.unwrap();
    assert!(!runner.finished.is_finished());
    runner.client.ack(last).await.unwrap();
    assert!(runner.finished.await.unwrap().unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_pull_counts_as_well() {
    let runner = TestRunner::start().await;
    runner.run_script("echo hello").await;
    watch_to_the_end(&runner).await;
    let pull = runner.client.pull(0).await.unwrap();
    assert_eq!(pull.has_more, Some(false));
    assert!(runner.finished.await.unwrap().unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn lingers_for_a_watcher() {
    let runner = TestRunner::start().await;
    runner.run_script("echo hello").await;
    runner.events().await;
    assert_eq!(runner.client.pull(0).await.unwrap().has_more, Some(false));
    // A second pull is still answered, and the watcher comes late.
    assert_eq!(runner.client.pull(0).await.unwrap().has_more, Some(false));
    assert!(!runner.finished.is_finished());
    watch_to_the_end(&runner).await;
    assert!(runner.finished.await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn gives_up_without_a_job() {
    let (runner, _dir) = started(&[], None).await;
    let (_signals, received) = mpsc::channel(1);
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    let error = runner.finish(received).await.unwrap_err();
    assert!(matches!(error, RunnerError::NoJob), "{error}");
    assert_eq!(error.to_string(), "no job submitted");
    assert!(before.elapsed() >= Duration::from_secs(299));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_before_a_job_is_an_error() {
    let runner = TestRunner::start().await;
    runner.signals.send(()).await.unwrap();
    assert!(matches!(
        runner.finished.await.unwrap().unwrap(),
        Err(RunnerError::Interrupted)
    ));
}
