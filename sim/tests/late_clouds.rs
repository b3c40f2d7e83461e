//! Two clouds of which one is late with its offers, or never tells them.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::Engine;
use dstack_engine::failpoint::DieAt;
use dstack_model::backends::BackendType;
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobTerminationReason, RunStatus};
use dstack_sim::clouds::{Clouds, Delays};
use dstack_sim::{Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore;
use dstack_store::rows::RunRow;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// Longer than anybody waits for offers.
const NEVER: Duration = Duration::from_secs(3600);
/// Longer than those wait who can do without the cloud that is late, and shorter than others wait for it.
const NOT_FOR_THE_LATE: Duration = Duration::from_millis(6_500);

/// A cloud that tells at once what it offers, and one that is late by so much.
async fn clouds(seed: u64, prompt: &[&str], late: &[&str], by: Duration) -> (World, Clouds) {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer(prompt);
    let other = world.clouds.add(BackendType::Gcp);
    other.offer(late);
    other.delays(Delays {
        offers: by,
        ..Delays::default()
    });
    (world, other)
}

/// With a fleet that may be in both.
async fn world(seed: u64, prompt: &[&str], late: &[&str], by: Duration) -> (World, Clouds, Engine) {
    let (world, other) = clouds(seed, prompt, late, by).await;
    let engine = world.start().await.unwrap();
    let fleet = json!({"nodes": "0..4"});
    world.apply_fleet(&engine, "cloud", &fleet).await.unwrap();
    (world, other, engine)
}

fn in_cloud() -> Value {
    json!({"fleets": ["cloud"]})
}

async fn submit(world: &World, engine: &Engine, name: &str) -> RunRow {
    world.submit(engine, name, &in_cloud()).await.unwrap()
}

/// The run ends as done, and its only job was never tried again.
async fn is_done(world: &World, run: &RunRow, within: Duration, when: &str) {
    let end = world.finished(run, within).await;
    let end = end.unwrap_or_else(|stuck| panic!("{when}: {stuck}"));
    assert_eq!(end, RunStatus::Done, "{when}");
    let jobs = world.store.run(run.id).await.unwrap().unwrap().jobs;
    assert_eq!(jobs.len(), 1, "{when}");
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_never_tells_its_offers_delays_no_job_that_another_can_take() {
    let (world, late, engine) = world(1, &["small"], &["large"], NEVER).await;
    let run = submit(&world, &engine, "train").await;
    let asked = |world: &World| world.clouds.asked() == ["small"];
    world
        .until("a machine is asked for", NOT_FOR_THE_LATE, asked)
        .await
        .unwrap();
    world.running(&run, 3 * SECOND).await.unwrap();
    is_done(&world, &run, MINUTE, "the first").await;
    // Nor later, when all are asked again, and the first machine is gone.
    world.clouds.offer(&["medium"]);
    world.pass(10 * MINUTE).await;
    let run = submit(&world, &engine, "again").await;
    let asked = |world: &World| world.clouds.asked() == ["small", "medium"];
    world
        .until("another is asked for", NOT_FOR_THE_LATE, asked)
        .await
        .unwrap();
    is_done(&world, &run, MINUTE, "the second").await;
    assert!(late.asked().is_empty());
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_is_late_is_waited_for_where_no_other_has_anything() {
    let (world, late, engine) = world(2, &[], &["large"], 12 * SECOND).await;
    let run = submit(&world, &engine, "train").await;
    let waits = |world: &World| world.status(run.id) == Some(RunStatus::Submitted);
    world
        .throughout("it is waited for", 12 * SECOND, waits)
        .await
        .unwrap();
    is_done(&world, &run, MINUTE, "").await;
    assert_eq!(late.asked(), ["large"]);
}

#[tokio::test(start_paused = true)]
async fn where_a_cloud_refuses_that_was_in_time_the_one_that_was_late_is_asked() {
    for (seed, by) in [8, 12, 18].into_iter().enumerate() {
        let (world, late, engine) = world(seed as u64, &["small"], &["large"], by * SECOND).await;
        world.clouds.full(&["small"]);
        let run = submit(&world, &engine, "train").await;
        is_done(&world, &run, MINUTE, &format!("late by {by} s")).await;
        assert_eq!(
            (world.clouds.asked(), late.asked()),
            (vec!["small".to_owned()], vec!["large".to_owned()]),
            "late by {by} s"
        );
        assert_eq!(late.machines().len(), 1);
    }
}

/// It takes the first minutes to refuse: what was known of the other is outdated by then.
#[tokio::test(start_paused = true)]
async fn the_cloud_that_was_late_is_asked_also_when_the_other_takes_long_to_refuse() {
    let (world, late, engine) = world(3, &["small"], &["large"], 8 * SECOND).await;
    world.clouds.never_ready(&["small"]);
    let run = submit(&world, &engine, "train").await;
    is_done(&world, &run, 15 * MINUTE, "").await;
    assert_eq!((world.clouds.asked().len(), late.asked().len()), (1, 1));
    assert!(world.clouds.machines().is_empty(), "nothing is left of the first");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_no_cloud_has_room_for_ends_also_where_one_never_tells_its_offers() {
    let (world, late, engine) = world(4, &["small"], &["large"], NEVER).await;
    world.clouds.full(&["small"]);
    let run = submit(&world, &engine, "train").await;
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    let job = world
        .store
        .run(run.id)
        .await
        .unwrap()
        .unwrap()
        .jobs
        .pop()
        .unwrap();
    let no_capacity = JobTerminationReason::FailedToStartDueToNoCapacity;
    assert_eq!(job.termination_reason(), Some(no_capacity));
    let message = job.termination_reason_message().unwrap_or_default();
    assert!(message.contains("no small left"), "{message}");
    assert_eq!((world.clouds.asked().len(), late.asked().len()), (1, 0));
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_fleet_of_a_cloud_that_is_late_delays_no_job_that_another_fleet_can_take() {
    let (world, late) = clouds(5, &["small"], &["large"], NEVER).await;
    let engine = world.start().await.unwrap();
    for (name, backend) in [("late", "gcp"), ("prompt", "aws")] {
        let fleet = json!({"nodes": "0..1", "backends": [backend]});
        world.apply_fleet(&engine, name, &fleet).await.unwrap();
    }
    let both = json!({"fleets": ["late", "prompt"]});
    let run = world.submit(&engine, "train", &both).await.unwrap();
    let asked = |world: &World| world.clouds.asked() == ["small"];
    world
        .until("a machine is asked for", NOT_FOR_THE_LATE, asked)
        .await
        .unwrap();
    is_done(&world, &run, MINUTE, "").await;
    assert!(late.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_fleet_gets_its_instances_from_the_cloud_that_is_in_time_or_has_room() {
    let is_idle = |world: &World| {
        let rows = world.store.tables().instances.into_values();
        rows.filter(|row| row.name == "own-0")
            .any(|row| row.status() == InstanceStatus::Idle)
    };
    let own = json!({"nodes": 1});
    let (prompt, _late, engine) = world(6, &["small"], &["large"], NEVER).await;
    prompt.apply_fleet(&engine, "own", &own).await.unwrap();
    let asked = |world: &World| world.clouds.asked() == ["small"];
    prompt
        .until("a machine is asked for", NOT_FOR_THE_LATE, asked)
        .await
        .unwrap();
    prompt.until("it is made", MINUTE, is_idle).await.unwrap();
    // Nothing is refused while one cloud is late, and it is asked where the other refuses.
    for offered in [&[][..], &["small"]] {
        let (both, late, engine) = world(7, offered, &["large"], 12 * SECOND).await;
        both.clouds.full(&["small"]);
        both.apply_fleet(&engine, "own", &own).await.unwrap();
        both.until("it is made", MINUTE, is_idle).await.unwrap();
        assert_eq!(late.asked(), ["large"], "{offered:?}");
        assert_eq!(both.clouds.asked(), offered);
        let rows = both.store.tables().instances.into_values();
        let made = rows.filter(|row| row.name.starts_with("own-")).count();
        assert_eq!(made, 1, "no instance was given up: {offered:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_made_as_one_are_asked_of_the_cloud_that_was_late_and_others_are_not() {
    let nodes = json!({"fleets": ["cloud"], "nodes": 2});
    let (world, late) = clouds(8, &[], &[], 8 * SECOND).await;
    world.clouds.makes_groups();
    world.clouds.offer_containers(&["small"]);
    world.clouds.full(&["small"]);
    late.makes_groups();
    late.offer_containers(&["large"]);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "as-one", &nodes).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(
        (world.clouds.asked().len(), late.asked()),
        (1, vec!["large".to_owned()])
    );
    // The first of nodes that are made one after the other is no group of containers.
    world.clouds.offer(&["machine"]);
    world.clouds.full(&["machine"]);
    world.pass(MINUTE).await;
    let run = world.submit(&engine, "apart", &nodes).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    assert_eq!((world.clouds.asked().len(), late.asked().len()), (2, 1));
}

/// What is attached, by the names of the volumes.
fn taken(world: &World) -> Vec<String> {
    let rows = world.store.tables().attachments.into_values();
    rows.map(|row| row.name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_job_with_a_volume_in_each_cloud_takes_the_one_of_the_cloud_that_was_late() {
    let (world, late, engine) = world(10, &["small"], &["large"], 8 * SECOND).await;
    world.clouds.full(&["small"]);
    for (name, backend) in [("first", "aws"), ("second", "gcp")] {
        let there = json!({"backend": backend});
        world.made_volume(&engine, name, &there).await.unwrap();
    }
    let long = Script {
        lines: 1000,
        ..Script::default()
    };
    world.hosts.script("train", long);
    let mounts = json!([{"name": ["first", "second"], "path": "/data"}]);
    let wants = json!({"fleets": ["cloud"], "volumes": mounts});
    let run = world.submit(&engine, "train", &wants).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    assert_eq!((world.clouds.asked().len(), late.asked().len()), (1, 1));
    assert_eq!(taken(&world), ["second"], "the other is free");
    assert_eq!(late.attached().len(), 1);
}

/// Of what is offered at first only the first node has a volume.
#[tokio::test(start_paused = true)]
async fn nodes_whose_volumes_are_in_the_cloud_that_is_late_are_not_refused_before_it_answers() {
    let (world, late) = clouds(11, &[], &[], 8 * SECOND).await;
    for (cloud, offered) in [(&world.clouds, "small"), (&late, "large")] {
        cloud.makes_groups();
        cloud.offer_containers(&[offered]);
    }
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    let engine = world.start().await.unwrap();
    for (name, backend, region) in [
        ("prompt-0", "aws", "here"),
        ("prompt-1", "aws", "elsewhere"),
        ("late-0", "gcp", "here"),
        ("late-1", "gcp", "here"),
    ] {
        let there = json!({"backend": backend, "region": region});
        world.made_volume(&engine, name, &there).await.unwrap();
    }
    let names = ["prompt", "late"].map(|cloud| format!("{cloud}-${{{{ dstack.node_rank }}}}"));
    let mounts = json!([{"name": names, "path": "/data"}]);
    let wants = json!({"fleets": ["cloud"], "nodes": 2, "volumes": mounts});
    let run = world.submit(&engine, "train", &wants).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!((world.clouds.asked().len(), late.asked().len()), (0, 1));
}

/// One server dies there, another goes on.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let when = format!("killed at {point}, {nth}");
    let (world, late) = clouds(9, &["small"], &["large"], 8 * SECOND).await;
    world.clouds.full(&["small"]);
    let fleet = world
        .builder
        .fleet("cloud", &json!({"nodes": "0..4"}), world.clock.now());
    let mut changes = world.builder.changes(world.clock.now());
    changes.insert_silently(fleet.unwrap());
    world.store.commit(changes.into_commit()).await.unwrap();
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let run = submit(&world, &engine, "train").await;
    let _next = world.after_death(engine, MINUTE).await.unwrap();
    is_done(&world, &run, 5 * MINUTE, &when).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{when}");
    assert_eq!(late.most_made(), 1, "{when}");
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_the_cloud_that_was_late_is_asked_by_the_next_server() {
    let points = killed_everywhere(1..=4, killed_at).await;
    for wanted in [
        "schedule.commit.after",
        "operation.record.after",
        "cloud.create.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}
