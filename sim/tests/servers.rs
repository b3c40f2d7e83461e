//! Two servers that share a database, in virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods
)] // tests

use std::time::Duration;

use dstack_model::runs::RunStatus;
use dstack_sim::{Script, World, invariants};
use dstack_store::rows::RunRow;
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);

/// How often the run reached an end.
fn ends(world: &World, run: &RunRow) -> usize {
    let id = run.id.to_string();
    let tables = world.store.tables();
    let of_run = tables.events.iter().filter(|event| {
        event
            .targets
            .iter()
            .any(|target| target.entity_type == "run" && target.entity_id == id)
    });
    of_run
        .filter(|event| event.message.starts_with("Run status changed TERMINATING -> "))
        .count()
}

async fn all_done_once(world: &World, runs: &[RunRow]) {
    for run in runs {
        let status = world.finished(run, 10 * MINUTE).await.unwrap();
        assert_eq!(status, RunStatus::Done, "{}", run.run_name);
        assert_eq!(ends(world, run), 1, "{}", run.run_name);
    }
    assert_eq!(invariants::at_rest(world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn each_run_is_driven_by_one_of_them() {
    let world = World::new(31, 8).await.unwrap();
    let a = world.start_as("a").await.unwrap();
    let b = world.start_as("b").await.unwrap();
    let mut runs = Vec::new();
    for n in 0..8 {
        let engine = if n % 2 == 0 { &a } else { &b };
        let name = format!("run-{n}");
        runs.push(world.submit(engine, &name, &json!({})).await.unwrap());
    }
    all_done_once(&world, &runs).await;
}

#[tokio::test(start_paused = true)]
async fn whenever_one_is_killed_the_other_finishes_its_work() {
    for killed_after in (0..60).map(|tenths| Duration::from_millis(100 * tenths)) {
        let world = World::new(32, 8).await.unwrap();
        // The first to start drives the machine.
        let (doomed, heir) = if killed_after.as_millis().is_multiple_of(200) {
            let doomed = world.start_as("a").await.unwrap();
            (doomed, world.start_as("b").await.unwrap())
        } else {
            let heir = world.start_as("b").await.unwrap();
            (world.start_as("a").await.unwrap(), heir)
        };
        let mut runs = Vec::new();
        for (n, engine) in [&doomed, &heir, &doomed, &heir].into_iter().enumerate() {
            let name = format!("run-{n}");
            let script = Script {
                lines: 20,
                ..Script::default()
            };
            world.hosts.script(&name, script);
            runs.push(world.submit(engine, &name, &json!({})).await.unwrap());
        }
        world.pass(killed_after).await;
        doomed.stop();
        all_done_once(&world, &runs).await;
        heir.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_asked_of_one_reaches_the_run_of_the_other() {
    let world = World::new(33, 1).await.unwrap();
    let a = world.start_as("a").await.unwrap();
    let b = world.start_as("b").await.unwrap();
    let script = Script {
        lines: 10_000,
        ..Script::default()
    };
    world.hosts.script("long", script);
    let run = world.submit(&a, "long", &json!({})).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.stop(&b, &run, false).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Terminated);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}
