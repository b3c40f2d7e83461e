//! Fleets that bring up their instances by themselves, with engines that die anywhere, in clouds that lose calls and
//! machines.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::Engine;
use dstack_engine::failpoint::DieAt;
use dstack_model::fleets::FleetStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason as Reason};
use dstack_model::runs::RunStatus;
use dstack_plan::lifecycle::WaitReason;
use dstack_sim::clouds::SOLD_OUT;
use dstack_sim::{Faults, Script, World, invariants};
use dstack_store::Json;
use dstack_store::rows::{AgentAddress, FleetRow, HostRules, InstanceRow, RunRow};
use dstack_units::{FleetId, InstanceId};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

async fn world(seed: u64, offers: &[&str]) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer(offers);
    world
}

/// An engine, and a fleet with these fields that was applied just now.
async fn applied(world: &World, fields: &Value) -> (Engine, FleetId) {
    let engine = world.start().await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", fields).await.unwrap();
    (engine, id)
}

/// As [`applied`], once the fleet has so many idle instances.
async fn with_idle(world: &World, count: usize, fields: &Value) -> (Engine, FleetId) {
    let (engine, id) = applied(world, fields).await;
    has_idle(world, id, count, MINUTE, "").await;
    (engine, id)
}

/// Submits a run to the fleet.
async fn submit(world: &World, engine: &Engine, name: &str) -> RunRow {
    let wants = json!({"fleets": ["cloud"]});
    world.submit(engine, name, &wants).await.unwrap()
}

async fn submit_all(world: &World, engine: &Engine, names: &[&str]) -> Vec<RunRow> {
    let mut runs = Vec::new();
    for name in names {
        runs.push(submit(world, engine, name).await);
    }
    runs
}

async fn all_done(world: &World, runs: &[RunRow]) {
    for run in runs {
        assert_eq!(world.finished(run, MINUTE).await.unwrap(), RunStatus::Done);
    }
}

fn fleet(world: &World, id: FleetId) -> FleetRow {
    world.store.tables().fleets.remove(&id).unwrap()
}

/// Its instances by number, also those that are over.
fn all(world: &World, id: FleetId) -> Vec<InstanceRow> {
    let mut rows: Vec<InstanceRow> = world.store.tables().instances.into_values().collect();
    rows.retain(|row| row.fleet_id == Some(id));
    rows.sort_by_key(|row| (row.instance_num, row.created_at));
    rows
}

/// Its instances that are not over.
fn alive(world: &World, id: FleetId) -> Vec<InstanceRow> {
    let mut rows = all(world, id);
    rows.retain(|row| row.status() != InstanceStatus::Terminated);
    rows
}

fn idle(world: &World, id: FleetId) -> usize {
    alive(world, id)
        .iter()
        .filter(|row| row.status() == InstanceStatus::Idle)
        .count()
}

fn events(world: &World, text: &str) -> usize {
    let events = world.store.tables().events;
    events.iter().filter(|event| event.message.contains(text)).count()
}

/// Whether it has so many idle instances and no others; nothing may be wrong.
fn just_idle(world: &World, id: FleetId, count: usize, when: &str) -> bool {
    assert_eq!(invariants::always(world), Vec::<String>::new(), "{when}");
    idle(world, id) == count && alive(world, id).len() == count
}

/// Waits for so many idle instances and no others; nothing may be wrong meanwhile.
async fn has_idle(world: &World, id: FleetId, count: usize, within: Duration, when: &str) {
    let what = format!("{count} idle instances and no others {when}");
    let there = |world: &World| just_idle(world, id, count, when);
    world.until(&what, within, there).await.unwrap();
}

/// As [`has_idle`] within five minutes, and for as long nothing is added or ended.
async fn comes_to(world: &World, id: FleetId, count: usize) {
    has_idle(world, id, count, 5 * MINUTE, "").await;
    let there = |world: &World| just_idle(world, id, count, "");
    world.throughout("its size", 5 * MINUTE, there).await.unwrap();
}

/// Whether another instance is there for the lost one, so that there are so many again.
fn is_replaced(world: &World, id: FleetId, lost: InstanceId, count: usize, when: &str) -> bool {
    world.store.tables().instances[&lost].deleted && just_idle(world, id, count, when)
}

/// Waits until this many instances, all that the fleet has, are over.
async fn all_over(world: &World, id: FleetId, count: usize) -> Vec<InstanceRow> {
    let what = format!("the end of {count} instances");
    let over = |world: &World| {
        let rows = all(world, id);
        (rows.len() == count && alive(world, id).is_empty()).then_some(rows)
    };
    world.found(&what, 30 * SECOND, over).await.unwrap()
}

/// The fleet is over, and nothing of it is anywhere, nor comes back.
async fn is_gone(world: &World, id: FleetId, within: Duration, when: &str) {
    let what = format!("the end of the fleet {when}");
    let deleted = |world: &World| fleet(world, id).deleted;
    world.until(&what, within, deleted).await.unwrap();
    assert_eq!(fleet(world, id).status(), FleetStatus::Terminated, "{when}");
    let nothing = |world: &World| {
        assert_eq!(invariants::nothing_left(world), Vec::<String>::new(), "{when}");
        all(world, id).iter().all(|row| row.deleted)
    };
    let what = format!("nothing is left {when}");
    world.throughout(&what, MINUTE, nothing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fleet_gets_the_instances_that_it_wants() {
    let world = world(1, &["small", "large"]).await;
    let (engine, id) = with_idle(&world, 3, &json!({"nodes": 3})).await;
    assert_eq!(world.clouds.machines().len(), 3);
    assert_eq!(world.clouds.asked(), ["small", "small", "small"]);
    let names: Vec<String> = alive(&world, id).into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["cloud-0", "cloud-1", "cloud-2"]);
    // Runs take them; nothing more is made.
    let runs = submit_all(&world, &engine, &["run-a", "run-b", "run-c"]).await;
    all_done(&world, &runs).await;
    has_idle(&world, id, 3, MINUTE, "").await;
    let same = |world: &World| just_idle(world, id, 3, "") && world.clouds.asked().len() == 3;
    world
        .throughout("nothing more is made", HOUR, same)
        .await
        .unwrap();
    let made = "Instance status changed PENDING -> PROVISIONING";
    assert_eq!((events(&world, made), events(&world, "to meet target")), (3, 0));
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
    world.end_fleet(&engine, id, None).await.unwrap();
    is_gone(&world, id, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn instances_are_divided_into_the_blocks_of_their_fleet() {
    let world = world(2, &["small"]).await;
    let fields = json!({"nodes": 1, "blocks": 4, "resources": {"cpu": "1.."}});
    let (engine, id) = with_idle(&world, 1, &fields).await;
    assert_eq!(alive(&world, id)[0].total_blocks, Some(4));
    let long = Script {
        lines: 100,
        ..Script::default()
    };
    let names = ["run-a", "run-b", "run-c", "run-d"];
    for name in names {
        world.hosts.script(name, long);
    }
    let runs = submit_all(&world, &engine, &names).await;
    let all_run = |world: &World| {
        let running = |run: &RunRow| world.status(run.id) == Some(RunStatus::Running);
        runs.iter().all(running)
    };
    world
        .until("all run at the same time", 10 * SECOND, all_run)
        .await
        .unwrap();
    assert_eq!(alive(&world, id)[0].busy_blocks, 4);
    all_done(&world, &runs).await;
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

/// A job would end there at once: it gets another one, also by a server that has not asked the cloud itself yet.
#[tokio::test(start_paused = true)]
async fn no_job_is_placed_on_an_instance_that_its_cloud_takes_away() {
    for is_restarted in [false, true] {
        let world = world(6, &["small"]).await;
        let fields = json!({"nodes": "1..2", "blocks": 2, "resources": {"cpu": "1.."}});
        let (mut engine, id) = with_idle(&world, 1, &fields).await;
        let long = Script {
            lines: 1000,
            ..Script::default()
        };
        world.hosts.script("first", long);
        let first = submit(&world, &engine, "first").await;
        let is_running = |world: &World| world.status(first.id) == Some(RunStatus::Running);
        world.until("the first runs", MINUTE, is_running).await.unwrap();
        let leaving = alive(&world, id).remove(0);
        world.pass(2 * MINUTE).await;
        world.clouds.will_take(leaving.id, "the price went up");
        let is_noted = |world: &World| {
            let rows = alive(world, id);
            rows.iter().any(|row| row.leaving_because.is_some())
        };
        world
            .until("the notice is written down", MINUTE, is_noted)
            .await
            .unwrap();
        assert_eq!(alive(&world, id)[0].busy_blocks, 1);
        if is_restarted {
            engine.stop();
            world.leases_run_out().await;
            engine = world.start().await.unwrap();
        }
        let second = submit(&world, &engine, "second").await;
        all_done(&world, &[second]).await;
        let ended = all(&world, id)
            .into_iter()
            .find(|row| row.id == leaving.id)
            .unwrap();
        assert_eq!(ended.termination_reason(), Some(Reason::Unreachable));
    }
}

#[tokio::test(start_paused = true)]
async fn instances_beyond_the_least_number_end_when_they_have_been_idle() {
    for (min, seed) in [(0, 3), (1, 4), (2, 5)] {
        let world = world(seed, &["small"]).await;
        let fields = json!({"nodes": {"min": min, "target": 3}, "idle_duration": "10m"});
        let (_engine, id) = with_idle(&world, 3, &fields).await;
        let enough = |world: &World| idle(world, id) >= min;
        world
            .throughout("at no time fewer", 30 * MINUTE, enough)
            .await
            .unwrap();
        has_idle(&world, id, min, SECOND, "").await;
        assert_eq!(world.clouds.machines().len(), min);
        let ended: Vec<_> = all(&world, id).into_iter().filter(|row| row.deleted).collect();
        assert_eq!(ended.len(), 3 - min);
        assert!(
            ended
                .iter()
                .all(|row| row.termination_reason() == Some(Reason::IdleTimeout))
        );
        // What was wanted at the beginning is not brought up again.
        let same = |world: &World| just_idle(world, id, min, "") && world.clouds.asked().len() == 3;
        world
            .throughout("nothing more is made", 24 * HOUR, same)
            .await
            .unwrap();
    }
}

/// A server that was away for long finds all of them idle for too long at the same moment.
#[tokio::test(start_paused = true)]
async fn instances_that_are_all_due_to_end_at_once_leave_as_many_as_the_fleet_must_have() {
    let world = world(14, &["small"]).await;
    let fields = json!({"nodes": {"min": 1, "target": 4}, "idle_duration": "10m"});
    let (engine, id) = with_idle(&world, 4, &fields).await;
    engine.stop();
    world.pass(HOUR).await;
    let _engine = world.start().await.unwrap();
    let enough = |world: &World| idle(world, id) >= 1;
    world
        .throughout("at no time none", 10 * MINUTE, enough)
        .await
        .unwrap();
    has_idle(&world, id, 1, SECOND, "").await;
    assert_eq!(
        (world.clouds.machines().len(), world.clouds.asked().len()),
        (1, 4)
    );
}

#[tokio::test(start_paused = true)]
async fn a_fleet_without_offers_says_so_and_tries_again() {
    let world = world(6, &[]).await;
    let (_engine, id) = applied(&world, &json!({"nodes": 2})).await;
    let shown = all_over(&world, id, 2).await;
    for row in &shown {
        assert_eq!((row.status(), row.deleted), (InstanceStatus::Terminated, false));
        assert_eq!(row.termination_reason(), Some(Reason::NoOffers));
        assert_eq!(row.termination_reason_message(), Some("No offers found"));
    }
    let text =
        "Instance status changed PENDING -> TERMINATED. Termination reason: NO_OFFERS (No offers found)";
    assert_eq!(events(&world, text), 2);
    let is_shown = |world: &World, row: &InstanceRow| !world.store.tables().instances[&row.id].deleted;
    let both_are = |world: &World| shown.iter().all(|row| is_shown(world, row));
    world
        .throughout("both are shown for a while", 55 * SECOND, both_are)
        .await
        .unwrap();
    let none_is = |world: &World| !shown.iter().any(|row| is_shown(world, row));
    world
        .until("they are shown no longer", 10 * SECOND, none_is)
        .await
        .unwrap();
    let again = "Instance created to meet target fleet node count. Status: PENDING";
    assert_eq!(events(&world, again), 2);
    world.clouds.offer(&["small"]);
    has_idle(&world, id, 2, 5 * MINUTE, "").await;
    assert!(fleet(&world, id).consolidation_attempt > 0);
    let well = |world: &World| fleet(world, id).consolidation_attempt == 0;
    world
        .until("attempts are counted anew", HOUR, well)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fleet_for_which_no_offer_works_says_what_the_cloud_said() {
    let world = world(7, &[]).await;
    world.clouds.sold_out();
    let (_engine, id) = applied(&world, &json!({"nodes": {"min": 0, "target": 1}})).await;
    let row = all_over(&world, id, 1).await.remove(0);
    assert_eq!(row.termination_reason(), Some(Reason::NoOffers));
    let message = format!("All offers failed: {SOLD_OUT}");
    assert_eq!(row.termination_reason_message(), Some(message.as_str()));
    // It may be empty: nothing is tried again.
    let once = |world: &World| world.clouds.asked() == ["small", "large"];
    world.throughout("each is asked once", HOUR, once).await.unwrap();
    assert_eq!((all(&world, id).len(), alive(&world, id).len()), (1, 0));
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_cannot_get_to_its_size_is_given_up_until_it_is_applied_again() {
    let world = world(8, &["small"]).await;
    world.clouds.full(&["small"]);
    let (engine, id) = applied(&world, &json!({"nodes": 1})).await;
    let gave_up = "Fleet consolidation stopped after 15 attempts. Update the fleet to resume";
    let given_up = |world: &World| events(world, gave_up) == 1 && world.clouds.asked().len() == 16;
    world.until("it is given up", 24 * HOUR, given_up).await.unwrap();
    world
        .throughout("it stays given up", 24 * HOUR, given_up)
        .await
        .unwrap();
    world.clouds.full(&[]);
    world
        .throughout("it stays given up", 24 * HOUR, given_up)
        .await
        .unwrap();
    assert_eq!(idle(&world, id), 0);
    let more = json!({"nodes": {"min": 1, "max": 2}});
    world.apply_fleet(&engine, "cloud", &more).await.unwrap();
    has_idle(&world, id, 1, 3 * MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_lost_is_replaced() {
    let world = world(9, &["small"]).await;
    let (engine, id) = with_idle(&world, 2, &json!({"nodes": 2})).await;
    let lost = alive(&world, id)[1].id;
    world.lose(lost);
    let lost_row = |world: &World| world.store.tables().instances.remove(&lost).unwrap();
    let unreachable = |world: &World| Some(lost_row(world)).filter(|row| row.unreachable);
    let row = world
        .found("it is unreachable", MINUTE, unreachable)
        .await
        .unwrap();
    assert_eq!(row.status(), InstanceStatus::Idle);
    assert_eq!(
        row.waiting_for().map(ToString::to_string).as_deref(),
        Some("the agent of cloud-1 to be reachable again")
    );
    // A server that starts again goes on waiting, and does not begin anew.
    engine.stop();
    world.pass(18 * MINUTE).await;
    let _engine = world.start().await.unwrap();
    let deleted = |world: &World| lost_row(world).deleted;
    world.until("it is given up", 3 * MINUTE, deleted).await.unwrap();
    assert_eq!(lost_row(&world).termination_reason(), Some(Reason::Unreachable));
    has_idle(&world, id, 2, 2 * MINUTE, "").await;
    assert_eq!(world.clouds.machines().len(), 2);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_job_on_a_machine_that_is_lost_ends_and_frees_it() {
    let world = world(10, &["small"]).await;
    let long = Script {
        lines: 1000,
        pause: MINUTE,
        ..Script::default()
    };
    world.hosts.script("train", long);
    let (engine, id) = with_idle(&world, 1, &json!({"nodes": 1})).await;
    let run = submit(&world, &engine, "train").await;
    world.running(&run, MINUTE).await.unwrap();
    assert_eq!(alive(&world, id)[0].status(), InstanceStatus::Busy);
    let lost = alive(&world, id)[0].id;
    world.lose(lost);
    assert_eq!(world.finished(&run, HOUR).await.unwrap(), RunStatus::Failed);
    let replaced = |world: &World| is_replaced(world, id, lost, 1, "");
    world
        .until("another instead of it", 32 * MINUTE, replaced)
        .await
        .unwrap();
    assert_eq!(world.clouds.machines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn instances_that_a_user_ends_come_back_only_where_the_fleet_must_have_them() {
    for (min, seed) in [(0, 11), (2, 12)] {
        let world = world(seed, &["small"]).await;
        let nodes = json!({"nodes": {"min": min, "target": 2}});
        let (engine, id) = with_idle(&world, 2, &nodes).await;
        world.end_fleet(&engine, id, Some(&[0])).await.unwrap();
        comes_to(&world, id, min.max(1)).await;
        assert_eq!(world.clouds.machines().len(), min.max(1));
        assert_eq!(fleet(&world, id).status(), FleetStatus::Active);
    }
}

/// Whenever a fleet is deleted, nothing of it stays in the cloud.
#[tokio::test(start_paused = true)]
async fn a_fleet_deleted_at_any_time_leaves_no_machine() {
    for hundreds in 0..30 {
        for fields in [json!({"nodes": 3}), json!({"nodes": 3, "placement": "cluster"})] {
            let when = format!("{fields} after {hundreds}");
            let world = world(13, &["small", "large"]).await;
            world.clouds.full(&["small"]);
            let (engine, id) = applied(&world, &fields).await;
            world.pass(hundreds * Duration::from_millis(100)).await;
            world.end_fleet(&engine, id, None).await.unwrap();
            is_gone(&world, id, 5 * MINUTE, &when).await;
            assert_eq!(
                events(&world, "Fleet status changed TERMINATING -> TERMINATED"),
                1,
                "{when}"
            );
        }
    }
}

async fn has_machine(world: &World) {
    let made = |world: &World| !world.clouds.machines().is_empty();
    world.until("the first machine", MINUTE, made).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_instances_of_a_cluster_are_made_where_its_first_is() {
    for seed in 0..20 {
        let world = World::new(seed, 1).await.unwrap();
        world.clouds.offer_in(&[
            ("cheap", "there", &["there-a"]),
            ("small", "here", &["here-b", "here-c"]),
            ("large", "here", &["here-a", "here-b"]),
        ]);
        world.clouds.full(&["cheap"]);
        let (_engine, id) = applied(&world, &json!({"nodes": 3, "placement": "cluster"})).await;
        has_machine(&world).await;
        // Others would be cheaper now, or in another zone, but not beside it.
        world.clouds.full(&["small"]);
        has_idle(&world, id, 3, MINUTE, "").await;
        let machines = world.clouds.machines();
        let place = ("here".to_owned(), Some("here-b".to_owned()));
        assert!(
            machines.iter().all(|machine| machine.place == place),
            "{machines:?}"
        );
        assert_eq!(world.clouds.asked()[..2], ["cheap", "small"]);
        assert!(!world.clouds.asked()[2..].contains(&"cheap".to_owned()));
        let master = fleet(&world, id).current_master_instance_id;
        assert_eq!(master, Some(machines[0].instance), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_whose_first_instance_is_lost_goes_on_beside_the_others() {
    let world = World::new(21, 1).await.unwrap();
    world
        .clouds
        .offer_in(&[("cheap", "there", &["there-a"]), ("small", "here", &["here-a"])]);
    world.clouds.full(&["cheap"]);
    let fields = json!({"nodes": 2, "placement": "cluster"});
    let (_engine, id) = with_idle(&world, 2, &fields).await;
    world.clouds.full(&[]);
    let first = fleet(&world, id).current_master_instance_id.unwrap();
    world.lose(first);
    let replaced = |world: &World| is_replaced(world, id, first, 2, "");
    world
        .until("another instead of it", 26 * MINUTE, replaced)
        .await
        .unwrap();
    assert!(
        world
            .clouds
            .machines()
            .iter()
            .all(|machine| machine.offer == "small")
    );
    assert_ne!(fleet(&world, id).current_master_instance_id, Some(first));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_may_be_empty_ends_with_a_first_instance_that_found_nothing() {
    let world = world(22, &["small"]).await;
    world.clouds.full(&["small"]);
    let fields = json!({"nodes": {"min": 0, "target": 3}, "placement": "cluster"});
    let (_engine, id) = applied(&world, &fields).await;
    let over = all_over(&world, id, 3).await;
    let reasons: Vec<_> = over
        .iter()
        .map(dstack_store::rows::InstanceRow::termination_reason)
        .collect();
    assert_eq!(
        reasons,
        [
            Some(Reason::NoOffers),
            Some(Reason::MasterFailed),
            Some(Reason::MasterFailed)
        ]
    );
    assert_eq!(world.clouds.asked(), ["small"]);
    let once = |world: &World| world.clouds.asked() == ["small"];
    world.throughout("it is asked once", HOUR, once).await.unwrap();
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

/// Two jobs that each want a new instance of an empty cluster get them beside each other.
#[tokio::test(start_paused = true)]
async fn instances_that_jobs_want_of_a_cluster_are_beside_each_other() {
    for seed in 0..20 {
        let world = World::new(seed, 1).await.unwrap();
        world
            .clouds
            .offer_in(&[("cheap", "there", &["there-a"]), ("small", "here", &["here-a"])]);
        world.clouds.full(&["cheap"]);
        let fields = json!({"nodes": "0..4", "placement": "cluster"});
        let (engine, id) = applied(&world, &fields).await;
        let runs = submit_all(&world, &engine, &["run-a", "run-b"]).await;
        has_machine(&world).await;
        world.clouds.full(&[]);
        all_done(&world, &runs).await;
        has_idle(&world, id, 2, SECOND, "").await;
        let machines = world.clouds.machines();
        assert!(
            machines.iter().all(|machine| machine.offer == "small"),
            "{machines:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_applied_again_becomes_what_it_is_now() {
    let world = world(23, &["small", "large"]).await;
    let (engine, id) = with_idle(&world, 3, &json!({"nodes": 3})).await;
    let fewer = json!({"nodes": {"min": 1, "max": 2}});
    world.apply_fleet(&engine, "cloud", &fewer).await.unwrap();
    let fewer = |world: &World| alive(world, id).len() == 2;
    world.until("one too many ends", 5 * MINUTE, fewer).await.unwrap();
    comes_to(&world, id, 2).await;
    assert_eq!(
        events(&world, "MAX_INSTANCES_LIMIT (Fleet has too many instances)"),
        1
    );
    let others = json!({"nodes": {"min": 1, "max": 2}, "instance_types": ["large"]});
    world.apply_fleet(&engine, "cloud", &others).await.unwrap();
    let one_large = |world: &World| {
        let machines = world.clouds.machines();
        machines.len() == 1 && machines[0].offer == "large"
    };
    world
        .until("one large machine", 5 * MINUTE, one_large)
        .await
        .unwrap();
    comes_to(&world, id, 1).await;
    assert_eq!(
        events(&world, "FLEET_SPEC_MISMATCH (Instance does not match fleet spec)"),
        2
    );
    assert_eq!(world.clouds.machines()[0].offer, "large");
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

/// Those who want instances of a fleet at the same time are counted, whichever server they are with.
#[tokio::test(start_paused = true)]
async fn a_fleet_is_never_larger_than_it_may_be() {
    for seed in 0..8 {
        let world = world(seed, &["small"]).await;
        let engines = [
            world.start_as("a").await.unwrap(),
            world.start_as("b").await.unwrap(),
        ];
        let fields = json!({"nodes": {"min": 1, "max": 2}, "idle_duration": "1m"});
        let id = world.apply_fleet(&engines[0], "cloud", &fields).await.unwrap();
        let mut runs = Vec::new();
        for n in 0..6 {
            let long = Script {
                lines: 50,
                ..Script::default()
            };
            world.hosts.script(&format!("run-{n}"), long);
            let wants =
                json!({"fleets": ["cloud"], "retry": {"on_events": ["no-capacity"], "duration": "1h"}});
            let run = world
                .submit(&engines[n % 2], &format!("run-{n}"), &wants)
                .await
                .unwrap();
            runs.push(run);
        }
        let all_over = |world: &World| {
            assert_eq!(invariants::always(world), Vec::<String>::new(), "seed {seed}");
            let tables = world.store.tables();
            runs.iter().all(|run| tables.runs[&run.id].status().is_finished())
        };
        world.until("the end of all runs", HOUR, all_over).await.unwrap();
        comes_to(&world, id, 1).await;
        for run in &runs {
            assert_eq!(world.status(run.id), Some(RunStatus::Done), "seed {seed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_cloud_that_loses_calls_and_answers_a_fleet_has_exactly_its_size() {
    for seed in 0..12 {
        for fields in [json!({"nodes": 3}), json!({"nodes": 3, "placement": "cluster"})] {
            let when = format!("seed {seed}, {fields}");
            let world = world(seed, &["small", "medium", "large"]).await;
            world.clouds.full(&["medium"]);
            world.clouds.faults(Faults {
                lost_call: 0.3,
                lost_answer: 0.3,
                ..Faults::default()
            });
            let (engine, id) = applied(&world, &fields).await;
            // A call whose fate nobody knows holds its instance up for minutes, and attempts of a fleet are further and further apart.
            has_idle(&world, id, 3, 48 * HOUR, &when).await;
            assert_eq!(world.clouds.machines().len(), 3, "{when}");
            world.end_fleet(&engine, id, None).await.unwrap();
            is_gone(&world, id, HOUR, &when).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_waits_while_the_backends_cannot_be_read() {
    let world = world(24, &["small"]).await;
    world.clouds.unreadable(true);
    let (_engine, id) = applied(&world, &json!({"nodes": 1})).await;
    let pending = |world: &World| {
        let rows = alive(world, id);
        rows.len() == 1 && rows[0].status() == InstanceStatus::Pending
    };
    world.throughout("it waits", MINUTE, pending).await.unwrap();
    let row = alive(&world, id).pop().unwrap();
    assert_eq!(row.waiting_for(), Some(&WaitReason::Offers));
    world.clouds.unreadable(false);
    has_idle(&world, id, 1, 10 * SECOND, "").await;
}

/// A fleet comes up, loses a machine, gets another and is deleted, while the engine is killed at `point`; the failpoints that
/// were passed.
async fn killed_at(fields: &Value, point: &str, nth: u32) -> Arc<DieAt> {
    let when = format!("{fields}, killed at {point} #{nth}");
    let world = world(25, &["small", "large"]).await;
    world.clouds.full(&["small"]);
    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    let id = world.apply_fleet(&engine, "cloud", fields).await.unwrap();
    let complete = |world: &World| just_idle(world, id, 2, &when);
    until(&world, &mut engine, &when, complete).await;
    assert_eq!(world.clouds.machines().len(), 2, "{when}");
    let lost = alive(&world, id)[0].id;
    world.lose(lost);
    let replaced = |world: &World| is_replaced(world, id, lost, 2, &when);
    until(&world, &mut engine, &when, replaced).await;
    assert_eq!(world.clouds.machines().len(), 2, "{when}");
    world.end_fleet(&engine, id, None).await.unwrap();
    until(&world, &mut engine, &when, |world| fleet(world, id).deleted).await;
    is_gone(&world, id, SECOND, &when).await;
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
    assert_eq!(invariants::always(world), Vec::<String>::new(), "{what}");
}

async fn killed_everywhere(fields: Value) {
    let points =
        dstack_sim::killed_everywhere([1, 2, 3, 5, 8, 13], |point, nth| killed_at(&fields, point, nth)).await;
    for wanted in [
        "cloud.create.before",
        "cloud.create.after",
        "cloud.remove.after",
        "instance.commit.after",
        "fleet.commit.before",
        "fleet.commit.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_a_fleet_has_exactly_its_size() {
    killed_everywhere(json!({"nodes": 2})).await;
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_a_cluster_has_exactly_its_size() {
    killed_everywhere(json!({"nodes": 2, "placement": "cluster"})).await;
}

/// The server keeps the fleet of its own machine as it is: a change of its hosts would end jobs, and come back never.
#[tokio::test(start_paused = true)]
async fn the_fleet_of_the_servers_own_machine_is_not_changed_by_users() {
    let world = World::new(31, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let refused = world
        .apply_fleet(&engine, "local", &json!({"ssh_config": {"hosts": []}}))
        .await;
    let text = format!("{:?}", refused.unwrap_err());
    assert!(text.contains("this server's own machine"), "{text}");
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
}

/// Machines of servers that are gone for good would stay for ever: their owner may end them.
#[tokio::test(start_paused = true)]
async fn a_servers_machine_is_ended_by_users_only_when_its_server_is_gone() {
    let world = World::new(32, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let machine = instance_of(&world, "local-0");
    let local = machine.fleet_id.unwrap();
    let refused = world.end_fleet(&engine, local, Some(&[0])).await.unwrap_err();
    assert!(
        format!("{refused:?}").contains("the machine of a server that runs"),
        "{refused:?}"
    );
    let mut gone = machine.clone();
    gone.unreachable = true;
    let mut changes = world.builder.changes(world.clock.now());
    changes.update(&instance_of(&world, "local-0"), gone);
    engine.stop();
    engine.commit(changes.into_commit()).await.unwrap();
    world.end_fleet(&engine, local, Some(&[0])).await.unwrap();
    assert_eq!(
        instance_of(&world, "local-0").status(),
        InstanceStatus::Terminating
    );
}

/// `--no-local`, then deleting the fleet: that is what the refusal says.
#[tokio::test(start_paused = true)]
async fn the_fleet_of_a_machine_that_is_not_offered_any_more_is_deleted() {
    let world = World::new(33, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let machine = instance_of(&world, "local-0");
    let local = machine.fleet_id.unwrap();
    let refused = world.end_fleet(&engine, local, None).await.unwrap_err();
    let text = format!("{refused:?}");
    assert!(text.contains("start the server with --no-local"), "{text}");
    let mut withdrawn = machine.clone();
    let agent = AgentAddress::clone(machine.agent.as_deref().unwrap());
    let AgentAddress::Local { runtime, host, rules } = agent else {
        panic!("it is not a host of an SSH fleet");
    };
    let rules = HostRules {
        offered: false,
        ..rules
    };
    withdrawn.agent = Some(Json::new(AgentAddress::Local { runtime, host, rules }));
    let mut changes = world.builder.changes(world.clock.now());
    changes.update(&machine, withdrawn);
    engine.commit(changes.into_commit()).await.unwrap();
    world.end_fleet(&engine, local, None).await.unwrap();
    let gone = |world: &World| fleet(world, local).deleted;
    world.until("the fleet is deleted", MINUTE, gone).await.unwrap();
}

fn instance_of(world: &World, name: &str) -> InstanceRow {
    world
        .store
        .read(|tables| tables.instances.values().find(|row| row.name == name).cloned())
        .unwrap()
}
