//! Runs of several nodes in a cloud that makes their containers as one, by an engine that dies anywhere, in a cloud that loses calls.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dstack_engine::Engine;
use dstack_engine::failpoint::DieAt;
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobTerminationReason, RunStatus};
use dstack_plan::lifecycle::compute_group::ComputeGroupState;
use dstack_plan::orphans::{Policy, Removes};
use dstack_sim::clouds::CONTAINER_LOST;
use dstack_sim::{Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore;
use dstack_store::rows::{InstanceRow, JobRow, RunRow};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

fn nodes(count: usize) -> Value {
    json!({"fleets": ["cloud"], "nodes": count})
}

/// A cloud that makes containers in groups.
async fn world(seed: u64, offers: &[&str]) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.makes_groups();
    world.clouds.offer_containers(offers);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    world
}

/// Jobs that do not end by themselves.
const LONG: Script = Script {
    lines: 100_000,
    pause: Duration::from_millis(200),
    exit: 0,
    gpu: None,
    alone: false,
};

async fn jobs(world: &World, run: &RunRow) -> Vec<JobRow> {
    world.store.run(run.id).await.unwrap().unwrap().jobs
}

fn instances(world: &World) -> Vec<InstanceRow> {
    let mut rows: Vec<InstanceRow> = world.store.tables().instances.into_values().collect();
    rows.retain(|row| row.name.starts_with("cloud-"));
    rows.sort_by_key(|row| row.id);
    rows
}

/// The run is stopped, its volumes are free then, and can be deleted.
async fn gives_its_volumes_back(world: &World, engine: &Engine, run: &RunRow, names: &[&str]) {
    world.stop(engine, run, false).await.unwrap();
    world.finished(run, 5 * MINUTE).await.unwrap();
    let are_free = |world: &World| world.store.tables().attachments.is_empty();
    world
        .until("the volumes are free", 5 * MINUTE, are_free)
        .await
        .unwrap();
    for name in names {
        world.delete_volume(engine, name).await.unwrap();
    }
    nothing_is_left(world, 5 * MINUTE, "").await;
}

/// Within this time there is nothing any more, in the cloud nor in the rows, and for as long nothing comes back.
async fn nothing_is_left(world: &World, within: Duration, when: &str) {
    let what = format!("nothing is left {when}");
    let nothing = |world: &World| {
        assert_eq!(invariants::always(world), Vec::<String>::new(), "{when}");
        let groups = world.store.tables().compute_groups.into_values();
        let over = |row: &InstanceRow| row.status() == InstanceStatus::Terminated;
        invariants::nothing_left(world).is_empty()
            && instances(world).iter().all(over)
            && groups
                .map(|row| row.status())
                .all(|state| state == ComputeGroupState::Terminated)
    };
    world.until(&what, within, nothing).await.unwrap();
    world.throughout(&what, within, nothing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_nodes_of_a_run_are_made_as_one_and_end_as_one() {
    let world = world(1, &["small"]).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(3)).await.unwrap();
    let made = |world: &World| !world.clouds.groups_of_containers().is_empty();
    world.until("the group", MINUTE, made).await.unwrap();
    assert_eq!(world.clouds.groups_of_containers()[0].size, 3);
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"], "it is asked for once");
    assert!(world.clouds.containers().is_empty());
    let rows = instances(&world);
    let groups: BTreeSet<_> = rows.iter().map(|row| row.compute_group_id).collect();
    assert_eq!((rows.len(), groups.len()), (3, 1));
    assert!(rows.iter().all(|row| row.compute_group_id.is_some()));
    let jobs = jobs(&world, &run).await;
    for job in &jobs {
        let told = world.hosts.told(job.id).unwrap().cluster_info;
        assert_eq!(told.job_ips, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    }
    // It is asked for only while its backend is there.
    let backend = (rows[0].project_id, "aws".to_owned());
    assert!(world.store.tables().expected_backends.contains(&backend));
    nothing_is_left(&world, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn a_run_of_one_node_gets_a_container_of_its_own() {
    let world = world(2, &["small"]).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(1)).await.unwrap();
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    assert!(world.store.tables().compute_groups.is_empty());
    nothing_is_left(&world, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn groups_of_a_fixed_size_are_for_runs_of_as_many_nodes() {
    let world = world(12, &[]).await;
    world
        .clouds
        .offer_groups(&[("pair", 2), ("four", 4), ("three", 3)]);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(3)).await.unwrap();
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["three"]);
    let one = world.submit(&engine, "one", &nodes(1)).await.unwrap();
    assert_eq!(world.finished(&one, 5 * MINUTE).await.unwrap(), RunStatus::Failed);
    assert_eq!(world.clouds.asked(), ["three"], "a single node gets none of it");
    nothing_is_left(&world, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn offers_are_tried_until_all_nodes_are_to_be_had_of_one() {
    let world = world(3, &["small", "medium", "large"]).await;
    world.clouds.full(&["small", "medium"]);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small", "medium", "large"]);
    assert!(instances(&world).iter().all(|row| row.price == Some(3.0)));
    nothing_is_left(&world, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn nodes_for_which_no_offer_works_are_all_refused() {
    let world = world(4, &["small"]).await;
    world.clouds.full(&["small"]);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Failed);
    let jobs = jobs(&world, &run).await;
    // The first that hears of it ends the run, and the other with it.
    let told = jobs
        .iter()
        .find(|job| job.termination_reason() == Some(JobTerminationReason::FailedToStartDueToNoCapacity));
    let message = told.unwrap().termination_reason_message().unwrap();
    assert!(message.contains("tried 1 of 1 offers, all failed"), "{message}");
    assert!(jobs.iter().all(|job| job.status().is_finished()));
    nothing_is_left(&world, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_have_no_room_together_are_refused_before_anything_is_asked_for() {
    let world = world(5, &["small"]).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(5)).await.unwrap();
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Failed);
    assert!(world.clouds.asked().is_empty());
    // Three of four are taken: there is room for one of two nodes.
    for name in ["cloud-0", "cloud-1", "cloud-2"] {
        world.hosts.script(name, LONG);
    }
    let first = world.submit(&engine, "first", &nodes(3)).await.unwrap();
    world.running(&first, 5 * MINUTE).await.unwrap();
    let second = world.submit(&engine, "second", &nodes(2)).await.unwrap();
    assert_eq!(
        world.finished(&second, 5 * MINUTE).await.unwrap(),
        RunStatus::Failed
    );
    assert_eq!(world.clouds.asked(), ["small"]);
    world.stop(&engine, &first, false).await.unwrap();
    nothing_is_left(&world, 5 * MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn the_jobs_of_a_group_that_breaks_are_told_why() {
    let world = world(6, &["small"]).await;
    for name in ["cloud-0", "cloud-1"] {
        world.hosts.script(name, LONG);
    }
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
    world.running(&run, 5 * MINUTE).await.unwrap();
    world.pass(2 * MINUTE).await;
    world.clouds.lose_group(world.clouds.groups_of_containers()[0].id);
    assert_eq!(
        world.finished(&run, 10 * MINUTE).await.unwrap(),
        RunStatus::Failed
    );
    let told = instances(&world);
    let told = told.iter().filter_map(InstanceRow::termination_reason_message);
    assert!(told.into_iter().any(|text| text.contains(CONTAINER_LOST)));
    nothing_is_left(&world, 5 * MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn each_node_of_a_group_is_made_with_its_own_volume_or_none_is_made() {
    let world = world(10, &["small"]).await;
    for name in ["cloud-0", "cloud-1"] {
        world.hosts.script(name, LONG);
    }
    let engine = world.start().await.unwrap();
    let own = json!({"fleets": ["cloud"], "nodes": 2, "volumes": ["data-${{ dstack.node_rank }}:/data"]});
    world.made_volume(&engine, "data-0", &json!({})).await.unwrap();
    let lacking = world.submit(&engine, "lacking", &own).await.unwrap();
    let status = world.finished(&lacking, 5 * MINUTE).await.unwrap();
    assert_eq!(status, RunStatus::Failed);
    for job in jobs(&world, &lacking).await {
        let told = (job.termination_reason(), job.termination_reason_message());
        let expected = (
            Some(JobTerminationReason::VolumeError),
            Some("Volume ['data-1'] not found"),
        );
        assert_eq!(told, expected);
    }
    assert!(world.clouds.asked().is_empty(), "the second node has no volume");
    world.made_volume(&engine, "data-1", &json!({})).await.unwrap();
    let run = world.submit(&engine, "train", &own).await.unwrap();
    world.running(&run, 5 * MINUTE).await.unwrap();
    let mounted: Vec<_> = world
        .clouds
        .workloads_of_group()
        .into_iter()
        .flat_map(|workload| workload.volumes)
        .map(|one| (one.name, one.volume.volume_id, one.path))
        .collect();
    let expected = [("data-0", "vol-1"), ("data-1", "vol-2")];
    let expected = expected.map(|(name, id)| (name.to_owned(), id.to_owned(), "/data".to_owned()));
    assert_eq!(mounted, expected);
    let both_have_theirs = |world: &World| {
        let rows = world.store.tables().attachments;
        rows.len() == 2 && rows.values().all(|row| row.handed_over)
    };
    world
        .until("both nodes have theirs", MINUTE, both_have_theirs)
        .await
        .unwrap();
    assert!(world.delete_volume(&engine, "data-1").await.is_err());
    gives_its_volumes_back(&world, &engine, &run, &["data-0", "data-1"]).await;
}

/// Each node names a volume in either zone: all of them go to the second, with its volumes, where the first is full.
#[tokio::test(start_paused = true)]
async fn where_a_zone_is_full_all_nodes_of_a_group_take_their_next_volumes() {
    let world = world(12, &[]).await;
    world
        .clouds
        .offer_containers_in(&[("small", "here", &["b"]), ("large", "here", &["a"])]);
    world.clouds.full(&["small"]);
    for name in ["cloud-0", "cloud-1"] {
        world.hosts.script(name, LONG);
    }
    let engine = world.start().await.unwrap();
    for node in 0..2 {
        for zone in ["b", "a"] {
            let there = json!({"availability_zone": zone});
            let name = format!("data-{node}-{zone}");
            world.made_volume(&engine, &name, &there).await.unwrap();
        }
    }
    let names = ["b", "a"].map(|zone| format!("data-${{{{ dstack.node_rank }}}}-{zone}"));
    let own = json!({"fleets": ["cloud"], "nodes": 2, "volumes": [{"name": names, "path": "/data"}]});
    let run = world.submit(&engine, "train", &own).await.unwrap();
    world.running(&run, 5 * MINUTE).await.unwrap();
    assert_eq!(world.clouds.asked(), ["small", "large"]);
    let workloads = world.clouds.workloads_of_group().into_iter();
    let mut mounted = workloads
        .flat_map(|workload| workload.volumes)
        .map(|one| one.name);
    assert_eq!(
        (mounted.next(), mounted.next()),
        (Some("data-0-a".to_owned()), Some("data-1-a".to_owned()))
    );
    let taken = world.store.tables().attachments;
    assert!(taken.len() == 2 && taken.values().all(|row| row.name.ends_with("-a")));
    gives_its_volumes_back(
        &world,
        &engine,
        &run,
        &["data-0-a", "data-0-b", "data-1-a", "data-1-b"],
    )
    .await;
}

/// What is said of a group is noted of each of its members, and is not taken back while the cloud does not tell.
#[tokio::test(start_paused = true)]
async fn that_a_group_is_taken_away_is_noted_of_its_members_while_the_cloud_does_not_tell() {
    let world = world(7, &["small"]).await;
    for name in ["cloud-0", "cloud-1"] {
        world.hosts.script(name, LONG);
    }
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
    world.running(&run, 5 * MINUTE).await.unwrap();
    world.pass(2 * MINUTE).await;
    // Nobody can be told.
    world.hosts.cut_off(true);
    let group = instances(&world)[0].compute_group_id.unwrap();
    let at = world.clock.now() + 3 * MINUTE;
    world.clouds.will_take_group(group, Some(at), "the price went up");
    let is_noted = |world: &World| {
        let said = |row: &InstanceRow| row.leaving_because.as_deref() == Some("the price went up");
        instances(world)
            .iter()
            .all(|row| said(row) && row.leaving_at == Some(at))
    };
    world.until("it is noted", MINUTE, is_noted).await.unwrap();
    world.clouds.unreadable(true);
    world
        .throughout("the notice stands", MINUTE, is_noted)
        .await
        .unwrap();
    world.clouds.unreadable(false);
    nothing_is_left(&world, 30 * MINUTE, "after the notice").await;
    drop(engine);
}

/// Whoever looks for what belongs to nobody finds the row of the group.
#[tokio::test(start_paused = true)]
async fn a_group_is_never_taken_for_an_orphan() {
    let mut world = world(9, &["small"]).await;
    world.orphans = Policy {
        grace: Duration::from_secs(20),
        removes: Removes::Everything,
    };
    world.orphans_interval = Duration::from_secs(5);
    for name in ["cloud-0", "cloud-1"] {
        world.hosts.script(name, LONG);
    }
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
    world.running(&run, 5 * MINUTE).await.unwrap();
    let kept = |world: &World| world.clouds.groups_of_containers().len() == 1;
    world
        .throughout("it is left alone", 5 * MINUTE, kept)
        .await
        .unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    nothing_is_left(&world, 5 * MINUTE, "").await;
    assert!(world.clouds.inventories() > 10, "nobody looked");
    assert_eq!(world.clouds.swept(), Vec::<String>::new());
}

/// Whenever a run is stopped, nothing of it stays in the cloud.
#[tokio::test(start_paused = true)]
async fn a_run_stopped_at_any_time_leaves_no_group() {
    for hundreds in 0..30 {
        let world = world(7, &["small", "large"]).await;
        world.clouds.full(&["small"]);
        for name in ["cloud-0", "cloud-1"] {
            world.hosts.script(name, LONG);
        }
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
        world.pass(hundreds * Duration::from_millis(100)).await;
        world.stop(&engine, &run, false).await.unwrap();
        let status = world.finished(&run, 5 * MINUTE).await.unwrap();
        assert_eq!(status, RunStatus::Terminated, "after {hundreds}");
        nothing_is_left(&world, 2 * MINUTE, &format!("after {hundreds}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_is_late_and_loses_answers_has_no_group_twice_or_for_nobody() {
    for seed in 0..30 {
        let world = world(seed, &["small", "medium", "large"]).await;
        world.clouds.full(&["medium"]);
        world.clouds.be_unreliable();
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
        let status = world.finished(&run, 30 * MINUTE).await;
        let status = status.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        assert!(status.is_finished(), "seed {seed}: {status:?}");
        nothing_is_left(&world, 10 * MINUTE, &format!("seed {seed}")).await;
    }
}

/// Runs a task of two nodes, killing the engine at `point`; the failpoints that were passed.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let when = format!("killed at {point} #{nth}");
    let world = world(8, &["small", "large"]).await;
    world.clouds.full(&["small"]);
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let run = world.submit(&engine, "train", &nodes(2)).await.unwrap();
    let engine = world.after_death(engine, 2 * MINUTE).await.unwrap();
    let status = world.finished(&run, 10 * MINUTE).await;
    let status = status.unwrap_or_else(|stuck| panic!("{when}: {stuck}"));
    assert_eq!(status, RunStatus::Done, "{when}");
    assert!(
        world.clouds.containers().is_empty(),
        "{when}: a node is made alone"
    );
    assert_eq!(world.clouds.most_groups_made(), 1, "{when}");
    nothing_is_left(&world, 2 * MINUTE, &when).await;
    drop(engine);
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_no_group_is_made_twice_or_left() {
    let points = killed_everywhere([1, 2, 3, 5], killed_at).await;
    for wanted in [
        "schedule.commit.after",
        "group.commit.before",
        "group.commit.after",
        "cloud.create.before",
        "cloud.create.after",
        "container.prepare.after",
        "cloud.remove.before",
        "cloud.remove.after",
        "instance.commit.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}
