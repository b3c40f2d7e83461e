//! A server on a database as SQLite: nobody but itself tells it of what changes, whatever the sweep would find later.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::RunStatus;
use dstack_model::volumes::VolumeStatus;
use dstack_sim::{Script, World, invariants, killed_everywhere};
use serde_json::json;

/// Less than it takes until everything is looked at again in any case.
const SOON: Duration = Duration::from_secs(15);
const MINUTE: Duration = Duration::from_secs(60);

async fn world(seed: u64) -> World {
    let world = World::of_one_server(seed, 2).await.unwrap();
    world.clouds.offer(&["small"]);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn tasks_run_end_and_are_stopped_without_a_sweep() {
    let world = world(1).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "short", &json!({})).await.unwrap();
    assert_eq!(world.finished(&run, SOON).await.unwrap(), RunStatus::Done);
    let fails = Script {
        exit: 3,
        ..Script::default()
    };
    world.hosts.script("fails", fails);
    let run = world.submit(&engine, "fails", &json!({})).await.unwrap();
    assert_eq!(world.finished(&run, SOON).await.unwrap(), RunStatus::Failed);
    let long = Script {
        lines: 1000,
        ..Script::default()
    };
    world.hosts.script("long", long);
    let run = world.submit(&engine, "long", &json!({})).await.unwrap();
    world.running(&run, SOON).await.unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(world.finished(&run, SOON).await.unwrap(), RunStatus::Terminated);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn nodes_in_a_cloud_find_one_another_and_their_machines_end_when_idle() {
    let world = world(2).await;
    let engine = world.start().await.unwrap();
    let nodes = json!({"fleets": ["cloud"], "nodes": 3, "startup_order": "master-first"});
    let run = world.submit(&engine, "train", &nodes).await.unwrap();
    assert_eq!(world.finished(&run, 2 * SOON).await.unwrap(), RunStatus::Done);
    let gone = |world: &World| world.clouds.machines().is_empty();
    world.until("no machine is left", 7 * MINUTE, gone).await.unwrap();
    let ended = |world: &World| {
        let tables = world.store.tables();
        let mut rows = tables
            .instances
            .values()
            .filter(|row| row.name.starts_with("cloud-"));
        rows.all(|row| row.status() == InstanceStatus::Terminated)
    };
    world.until("all are over", SOON, ended).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn volumes_are_made_and_deleted_without_a_sweep() {
    let world = world(3).await;
    let engine = world.start().await.unwrap();
    let id = world.submit_volume(&engine, "data", &json!({})).await.unwrap();
    let active = |world: &World| {
        let tables = world.store.tables();
        tables
            .volumes
            .get(&id)
            .is_some_and(|row| row.status() == VolumeStatus::Active)
    };
    world.until("it is made", SOON, active).await.unwrap();
    world.delete_volume(&engine, "data").await.unwrap();
    let gone = |world: &World| world.clouds.disks().is_empty();
    world.until("its disk is gone", SOON, gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fleet_is_brought_to_its_size_and_ended_without_a_sweep() {
    let world = world(4).await;
    let engine = world.start().await.unwrap();
    let fleet = world
        .apply_fleet(&engine, "own", &json!({"nodes": 2}))
        .await
        .unwrap();
    let machines = |count: usize| move |world: &World| world.clouds.machines().len() == count;
    world
        .until("it has its machines", SOON, machines(2))
        .await
        .unwrap();
    world.end_fleet(&engine, fleet, None).await.unwrap();
    world.until("they are gone", SOON, machines(0)).await.unwrap();
}

/// The next process goes on at once: there is no lease to wait for.
#[tokio::test(start_paused = true)]
async fn wherever_it_dies_the_next_process_goes_on() {
    let points = killed_everywhere(1..=4, killed_at).await;
    assert!(points.contains("cloud.create.before"), "{points:?}");
}

async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = world(5).await;
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let run = world
        .submit(&engine, "train", &json!({"fleets": ["cloud"]}))
        .await
        .unwrap();
    tokio::select! {
        () = engine.stopped() => {}
        () = world.pass(MINUTE) => {}
    }
    engine.stop();
    let _engine = world.start().await.unwrap();
    let status = world.finished(&run, 5 * MINUTE).await;
    let status = status.unwrap_or_else(|stuck| panic!("killed at {point} #{nth}: {stuck}"));
    assert_eq!(status, RunStatus::Done, "killed at {point} #{nth}");
    die
}
