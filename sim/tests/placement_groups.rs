//! Placement groups of clusters, by an engine that dies anywhere, in a cloud that loses calls and keeps groups for a while.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dstack_engine::Engine;
use dstack_engine::failpoint::DieAt;
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::RunStatus;
use dstack_plan::lifecycle::placement_group::PlacementGroupStatus;
use dstack_plan::orphans::{Policy, Removes};
use dstack_sim::clouds::Delays;
use dstack_sim::{Faults, World, invariants, killed_everywhere};
use dstack_store::EntityRef;
use dstack_store::rows::{InstanceRow, PlacementGroupRow};
use dstack_units::FleetId;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A cloud with placement groups, in which a machine that has ended counts as in its group for ten seconds.
async fn world(seed: u64) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.has_placement_groups(10 * SECOND);
    world
        .clouds
        .offer_in(&[("cheap", "there", &["there-a"]), ("small", "here", &["here-a"])]);
    world
}

fn cluster(nodes: impl Into<Value>) -> Value {
    json!({"nodes": nodes.into(), "placement": "cluster"})
}

fn groups(world: &World, fleet: FleetId) -> Vec<PlacementGroupRow> {
    let mut rows: Vec<PlacementGroupRow> = world.store.tables().placement_groups.into_values().collect();
    rows.retain(|row| row.fleet_id == fleet);
    rows
}

fn alive(world: &World, fleet: FleetId) -> Vec<InstanceRow> {
    let mut rows: Vec<InstanceRow> = world.store.tables().instances.into_values().collect();
    rows.retain(|row| row.fleet_id == Some(fleet) && row.status() != InstanceStatus::Terminated);
    rows
}

/// The fleet has so many idle instances and no others.
fn is_idle(world: &World, fleet: FleetId, count: usize) -> bool {
    assert_eq!(invariants::always(world), Vec::<String>::new());
    let rows = alive(world, fleet);
    rows.len() == count && rows.iter().all(|row| row.status() == InstanceStatus::Idle)
}

async fn has_idle(world: &World, fleet: FleetId, count: usize) {
    let there = |world: &World| is_idle(world, fleet, count);
    world.until("its size", HOUR, there).await.unwrap();
}

/// All machines are in one group, which is the only one there is; its name.
fn the_group(world: &World) -> String {
    let groups = world.clouds.placement_groups();
    assert_eq!(groups.len(), 1, "{groups:?}");
    let machines = world.clouds.machines();
    let name = groups[0].name.clone();
    assert!(
        machines
            .iter()
            .all(|machine| machine.group.as_ref() == Some(&name)),
        "{machines:?}"
    );
    name
}

async fn is_gone(world: &World, fleet: FleetId, when: &str) {
    let what = format!("the end of the fleet {when}");
    let deleted = |world: &World| world.store.tables().fleets[&fleet].deleted;
    world.until(&what, HOUR, deleted).await.unwrap();
    let what = format!("nothing is left {when}");
    let nothing = |world: &World| {
        let over = groups(world, fleet).iter().all(|row| row.status().is_over());
        over && invariants::nothing_left(world).is_empty()
    };
    world.until(&what, 10 * MINUTE, nothing).await.unwrap();
    world.throughout(&what, 10 * MINUTE, nothing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_machines_of_a_cluster_are_in_one_group_that_goes_after_them() {
    let world = world(1).await;
    world.clouds.full(&["cheap"]);
    let engine = world.start().await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", &cluster(3)).await.unwrap();
    has_idle(&world, id, 3).await;
    let name = the_group(&world);
    assert!(name.starts_with("dstack-cloud-"), "{name}");
    // The one that was made for the offer that did not work is gone, or goes.
    let kept: Vec<PlacementGroupRow> = groups(&world, id)
        .into_iter()
        .filter(|row| row.status() == PlacementGroupStatus::Active)
        .collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].configuration.region, "here");
    // It is asked for only while its backend is there.
    let backend = (kept[0].project_id, "aws".to_owned());
    assert!(world.store.tables().expected_backends.contains(&backend));
    world.end_fleet(&engine, id, None).await.unwrap();
    is_gone(&world, id, "").await;
    assert!(world.clouds.groups_in_use() > 0, "the cloud never refused");
}

#[tokio::test(start_paused = true)]
async fn only_clusters_have_groups_and_two_never_share_one() {
    let world = world(2).await;
    let engine = world.start().await.unwrap();
    let plain = world
        .apply_fleet(&engine, "plain", &json!({"nodes": 1}))
        .await
        .unwrap();
    has_idle(&world, plain, 1).await;
    assert_eq!(world.clouds.machines()[0].group, None);
    assert!(world.clouds.placement_groups().is_empty());
    let mut fleets = Vec::new();
    for name in ["one", "two"] {
        let id = world.apply_fleet(&engine, name, &cluster(2)).await.unwrap();
        has_idle(&world, id, 2).await;
        fleets.push(id);
    }
    let names: BTreeSet<Option<String>> = world
        .clouds
        .machines()
        .into_iter()
        .map(|machine| machine.group)
        .collect();
    assert_eq!(names.len(), 3, "none, and one for each cluster: {names:?}");
    for id in fleets {
        world.end_fleet(&engine, id, None).await.unwrap();
        let over = |world: &World| groups(world, id).iter().all(|row| row.status().is_over());
        world.until("its group is gone", HOUR, over).await.unwrap();
    }
    assert!(world.clouds.placement_groups().is_empty());
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_job_in_a_cluster_gets_a_machine_in_its_group() {
    let world = world(3).await;
    let engine = world.start().await.unwrap();
    let id = world
        .apply_fleet(&engine, "cloud", &cluster("0..4"))
        .await
        .unwrap();
    let nodes = json!({"fleets": ["cloud"], "nodes": 2});
    let run = world.submit(&engine, "train", &nodes).await.unwrap();
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.machines().len(), 2);
    let first = the_group(&world);
    // The group stays with the fleet, for whatever is made next.
    let none = |world: &World| alive(world, id).is_empty();
    world
        .until("its machines are idle for too long", HOUR, none)
        .await
        .unwrap();
    let again = world.submit(&engine, "again", &nodes).await.unwrap();
    assert_eq!(world.finished(&again, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(the_group(&world), first);
    assert_eq!(groups(&world, id).len(), 1);
    world.end_fleet(&engine, id, None).await.unwrap();
    is_gone(&world, id, "").await;
}

/// The next first machine may go elsewhere: the fleet has one group at a time.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_begins_anew_elsewhere_has_its_group_there() {
    let world = world(4).await;
    let engine = world.start().await.unwrap();
    let id = world
        .apply_fleet(&engine, "cloud", &cluster("0..4"))
        .await
        .unwrap();
    for (name, full) in [("first", "small"), ("second", "cheap")] {
        world.clouds.full(&[full]);
        let wants = json!({"fleets": ["cloud"], "idle_duration": "20s"});
        let run = world.submit(&engine, name, &wants).await.unwrap();
        assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
        let none = |world: &World| alive(world, id).is_empty();
        world.until("its machine is gone", HOUR, none).await.unwrap();
    }
    let one = |world: &World| world.clouds.placement_groups().len() == 1;
    world.until("the first group is gone", HOUR, one).await.unwrap();
    assert_eq!(world.clouds.placement_groups()[0].region, "here");
    world.end_fleet(&engine, id, None).await.unwrap();
    is_gone(&world, id, "").await;
}

#[tokio::test(start_paused = true)]
async fn an_offer_for_which_there_is_no_group_is_left_out() {
    let world = world(5).await;
    world.clouds.offer(&["tiny", "small"]);
    world.clouds.unsuited_for_groups(&["tiny"]);
    let engine = world.start().await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", &cluster(2)).await.unwrap();
    has_idle(&world, id, 2).await;
    assert!(
        world
            .clouds
            .machines()
            .iter()
            .all(|machine| machine.offer == "small")
    );
    the_group(&world);
    let failed = groups(&world, id);
    let failed = failed
        .iter()
        .find(|row| row.status() == PlacementGroupStatus::Failed)
        .unwrap();
    assert_eq!(failed.status_message(), Some("no placement groups for tiny"));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_deleted_at_any_time_leaves_no_group() {
    for hundreds in 0..40 {
        let world = world(6).await;
        world.clouds.full(&["cheap"]);
        world.clouds.delays(Delays {
            late: 0.3,
            late_by: Duration::from_secs(100),
            unlisted: Duration::from_secs(30),
            ..Delays::default()
        });
        let engine = world.start().await.unwrap();
        let id = world.apply_fleet(&engine, "cloud", &cluster(2)).await.unwrap();
        world.pass(hundreds * Duration::from_millis(100)).await;
        world.end_fleet(&engine, id, None).await.unwrap();
        is_gone(&world, id, &format!("after {hundreds}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_cloud_that_loses_calls_and_answers_no_group_is_made_twice_or_left() {
    for seed in 0..20 {
        let world = world(seed).await;
        world.clouds.full(&["cheap"]);
        world.clouds.faults(Faults {
            lost_call: 0.2,
            lost_answer: 0.2,
            ..Faults::default()
        });
        let engine = world.start().await.unwrap();
        let id = world.apply_fleet(&engine, "cloud", &cluster(2)).await.unwrap();
        // Offers of which too many calls are lost are given up, and tried again after a pause.
        let there = |world: &World| is_idle(world, id, 2);
        world.until("its size", 12 * HOUR, there).await.unwrap();
        world.end_fleet(&engine, id, None).await.unwrap();
        is_gone(&world, id, &format!("(seed {seed})")).await;
    }
}

/// A removal that is refused for long is not given up, and survives the server.
#[tokio::test(start_paused = true)]
async fn a_group_that_the_cloud_keeps_for_hours_is_deleted_in_the_end() {
    let world = world(7).await;
    world.clouds.has_placement_groups(3 * HOUR);
    let engine = world.start().await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", &cluster(1)).await.unwrap();
    has_idle(&world, id, 1).await;
    world.end_fleet(&engine, id, None).await.unwrap();
    let refused = |world: &World| world.clouds.groups_in_use() > 2;
    world.until("the cloud refuses", HOUR, refused).await.unwrap();
    let reason = groups(&world, id)[0].waiting_for().unwrap().to_string();
    assert!(reason.contains("DependencyViolation"), "{reason}");
    engine.stop();
    world.leases_run_out().await;
    let _engine = world.start().await.unwrap();
    let over = |world: &World| groups(world, id).iter().all(|row| row.status().is_over());
    world.until("it is gone", 4 * HOUR, over).await.unwrap();
    assert!(world.clouds.placement_groups().is_empty());
}

/// The machine waits for its group, and is not late by a pause.
#[tokio::test(start_paused = true)]
async fn a_machine_is_asked_for_as_soon_as_its_group_is_there() {
    let world = world(13).await;
    let lookup = Duration::from_millis(300);
    world.clouds.delays(Delays {
        lookup,
        ..Delays::default()
    });
    let engine = world.start().await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", &cluster(1)).await.unwrap();
    let is_there = |world: &World| {
        let is_active = |row: &PlacementGroupRow| row.status() == PlacementGroupStatus::Active;
        groups(world, id).iter().any(is_active)
    };
    world.until("the group is there", MINUTE, is_there).await.unwrap();
    assert_eq!(world.clouds.asked(), Vec::<String>::new());
    let asked = |world: &World| !world.clouds.asked().is_empty();
    world.until("a machine", 2 * lookup, asked).await.unwrap();
}

/// The server is replaced by one of an earlier version when the group has just been made: it goes with its fleet all the same.
#[tokio::test(start_paused = true)]
async fn a_group_whose_notes_cannot_be_read_goes_with_its_fleet() {
    let world = world(12).await;
    let die = Arc::new(DieAt::new("placement.commit.before", 2));
    let engine = world.start_dying(&die).await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", &cluster(1)).await.unwrap();
    engine.stopped().await;
    assert!(die.fired() && world.clouds.placement_groups().len() == 1);
    world.leases_run_out().await;
    let group = EntityRef::PlacementGroup(groups(&world, id)[0].id);
    let added = world.add_to_notes_of_creation(group, "of_a_later_version");
    added.await.unwrap();
    let engine = world.start().await.unwrap();
    world.pass(MINUTE).await;
    world.end_fleet(&engine, id, None).await.unwrap();
    is_gone(&world, id, "although this version cannot read it").await;
}

/// Whoever looks for what belongs to nobody finds the row of each group, also while its cloud takes its time.
#[tokio::test(start_paused = true)]
async fn a_group_is_never_taken_for_an_orphan() {
    let mut world = world(9).await;
    world.clouds.has_placement_groups(5 * MINUTE);
    world.orphans = Policy {
        grace: 20 * SECOND,
        removes: Removes::Everything,
    };
    world.orphans_interval = 5 * SECOND;
    let engine = world.start().await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", &cluster(2)).await.unwrap();
    has_idle(&world, id, 2).await;
    let kept = |world: &World| world.clouds.placement_groups().len() == 1;
    world
        .throughout("it is left alone", 5 * MINUTE, kept)
        .await
        .unwrap();
    world.end_fleet(&engine, id, None).await.unwrap();
    is_gone(&world, id, "").await;
    assert!(world.clouds.inventories() > 10, "nobody looked");
    assert_eq!(world.clouds.swept(), Vec::<String>::new());
}

/// A cluster comes up and is deleted while the engine is killed at `point`.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let when = format!("killed at {point} #{nth}");
    let world = world(8).await;
    world.clouds.full(&["cheap"]);
    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", &cluster(2)).await.unwrap();
    until(&world, &mut engine, &when, |world| is_idle(world, id, 2)).await;
    let only_one = |world: &World| world.clouds.placement_groups().len() == 1;
    until(&world, &mut engine, &when, only_one).await;
    the_group(&world);
    world.end_fleet(&engine, id, None).await.unwrap();
    let nothing = |world: &World| {
        let over = groups(world, id).iter().all(|row| row.status().is_over());
        over && world.store.tables().fleets[&id].deleted && invariants::nothing_left(world).is_empty()
    };
    until(&world, &mut engine, &when, nothing).await;
    is_gone(&world, id, &when).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{when}");
    die
}

/// Waits for something, with an engine at all times: when this one dies, another is started.
async fn until(world: &World, engine: &mut Engine, what: &str, holds: impl Fn(&World) -> bool) {
    let always_one = async {
        loop {
            engine.stopped().await;
            world.leases_run_out().await;
            *engine = world.start().await.unwrap();
        }
    };
    tokio::select! {
        biased;
        waited = world.until(what, HOUR, holds) => waited.unwrap(),
        () = always_one => {}
    }
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_a_cluster_has_one_group_and_leaves_none() {
    let points = killed_everywhere([1, 2, 3, 5], killed_at).await;
    for wanted in [
        "placement.choose.before",
        "placement.choose.after",
        "placement.commit.before",
        "placement.commit.after",
        "cloud.create.before",
        "cloud.create.after",
        "cloud.remove.before",
        "cloud.remove.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}
