//! A machine that nobody needs ends itself, where that is wanted.

use std::time::Duration;

use dstack_agent_api::shim::TaskStatus;
use futures_util::StreamExt as _;
use inotify::{Inotify, WatchMask};

use crate::support::{Agent, Machine, config};

/// The agent ends its machine, for which a file stands, after a second.
async fn agent(machine: &Machine) -> Agent {
    let command = format!("touch {}", machine.path("ended/now").display());
    machine
        .agent_with(
            None,
            &[
                "--runner-binary-path",
                machine.path("fake-runner").to_str().unwrap(),
                "--self-terminate-after",
                "1",
                "--self-terminate-command",
                &command,
            ],
        )
        .await
}

#[tokio::test]
async fn a_machine_ends_itself_once_nothing_runs_and_nobody_asks() {
    let machine = Machine::new("process", None);
    let folder = machine.path("ended");
    fs_err::create_dir(&folder).unwrap();
    let inotify = Inotify::init().unwrap();
    inotify.watches().add(&folder, WatchMask::CREATE).unwrap();
    let mut created = inotify.into_event_stream([0; 4096]).unwrap();
    let agent = agent(&machine).await;
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    // Nobody asks, but something runs; then nothing runs, but somebody listens.
    let patience = Duration::from_millis(2500);
    tokio::time::timeout(patience, created.next()).await.unwrap_err();
    let mut stream = agent.client.stream().await.unwrap();
    machine.finish(&running, 0).await;
    agent.until_status("1", TaskStatus::Terminated).await;
    let ticks = async { while stream.next().await.unwrap().is_some() {} };
    tokio::select! {
        () = ticks => panic!("the stream ended"),
        ended = tokio::time::timeout(patience, created.next()) => assert!(ended.is_err(), "{ended:?}"),
    }
    drop(stream);
    // A stream that was left is noticed at the next tick.
    tokio::time::timeout(Duration::from_secs(30), created.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}
