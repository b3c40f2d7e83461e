//! Hosts of SSH fleets: set up step by step by engines that die anywhere, used, and left as they were found.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_engine::{AgentError, Engine, HostError};
use dstack_model::fleets::FleetStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason as Reason};
use dstack_model::runs::{JobTerminationReason, RunStatus};
use dstack_sim::output::shim_token;
use dstack_sim::scenario::Builder;
use dstack_sim::ssh_hosts::KEY;
use dstack_sim::{Script, World, invariants, killed_everywhere};
use dstack_store::rows::{FleetRow, InstanceRow, OperationKind};
use dstack_store::{EngineStore as _, EntityRef};
use dstack_units::FleetId;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn of_hosts(hosts: &[&str]) -> Value {
    let key = json!({"public": "", "private": KEY});
    json!({"placement": "cluster", "ssh_config": {"user": "me", "ssh_key": key, "hosts": hosts}})
}

async fn applied(world: &World, engine: &Engine, hosts: &[&str]) -> FleetId {
    world.apply_fleet(engine, "lab", &of_hosts(hosts)).await.unwrap()
}

/// The fleet's instances by number, also those that are over.
fn instances(world: &World, fleet: FleetId) -> Vec<InstanceRow> {
    let mut rows: Vec<InstanceRow> = world.store.tables().instances.into_values().collect();
    rows.retain(|row| row.fleet_id == Some(fleet));
    rows.sort_by_key(|row| row.instance_num);
    rows
}

fn statuses(world: &World, fleet: FleetId) -> Vec<InstanceStatus> {
    instances(world, fleet).iter().map(InstanceRow::status).collect()
}

fn all_idle(world: &World, fleet: FleetId, count: usize) -> bool {
    assert_eq!(invariants::always(world), Vec::<String>::new());
    statuses(world, fleet) == vec![InstanceStatus::Idle; count]
}

async fn become_idle(world: &World, fleet: FleetId, count: usize, within: Duration) {
    let there = |world: &World| all_idle(world, fleet, count);
    world.until("all hosts to be idle", within, there).await.unwrap();
}

fn is_over(world: &World, fleet: FleetId) -> bool {
    world.store.tables().fleets[&fleet].status() == FleetStatus::Terminated
}

async fn comes_to_its_end(world: &World, fleet: FleetId, within: Duration) {
    let over = |world: &World| is_over(world, fleet);
    world.until("the fleet to be over", within, over).await.unwrap();
}

fn has_event(world: &World, text: &str) -> bool {
    world
        .store
        .tables()
        .events
        .iter()
        .any(|event| event.message.contains(text))
}

fn transient(text: &str) -> Option<HostError> {
    Some(HostError::Transient(text.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn hosts_are_set_up_run_jobs_and_are_left_as_they_were() {
    let world = World::new(1, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a", "bb"]).await;
    become_idle(&world, fleet, 2, MINUTE).await;
    let host = &instances(&world, fleet)[1];
    let place = host.job_provisioning_data.as_deref().unwrap();
    assert_eq!(place.internal_ip.as_deref(), Some("10.0.0.3"));
    assert_eq!(
        (place.instance_type.name.as_str(), host.total_blocks),
        ("instance", Some(1))
    );
    assert!(has_event(&world, "step 3") && has_event(&world, "Instance status changed PENDING -> IDLE"));

    let wants = json!({"fleets": ["lab"], "nodes": 2});
    let run = world.submit(&engine, "train", &wants).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    become_idle(&world, fleet, 2, MINUTE).await;

    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, MINUTE).await;
    assert_eq!(world.ssh_hosts.installed(), BTreeSet::new());
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

/// A fleet is applied, set up and deleted by an engine that is killed at a failpoint, and another that goes on.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = World::new(3, 1).await.unwrap();
    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    let configuration = of_hosts(&["a", "bb"]);
    let ask = async |engine: &Engine| world.apply_fleet(engine, "lab", &configuration).await.unwrap();
    let there = |world: &World| {
        let made = |fleet: &&FleetRow| fleet.name == "lab";
        world
            .store
            .read(|tables| tables.fleets.values().find(made).map(|fleet| fleet.id))
    };
    let fleet = world.ask_until_there(&mut engine, ask, there).await.unwrap();
    let idle = async |_: &Engine| become_idle(&world, fleet, 2, 5 * MINUTE).await;
    world.outliving(&mut engine, idle).await.unwrap();
    let end = async |engine: &Engine| world.end_fleet(engine, fleet, None).await.unwrap();
    world.outliving(&mut engine, end).await.unwrap();
    let over = async |_: &Engine| comes_to_its_end(&world, fleet, 3 * MINUTE).await;
    world.outliving(&mut engine, over).await.unwrap();
    engine.stop();
    assert_eq!(
        world.ssh_hosts.installed(),
        BTreeSet::new(),
        "killed at {point} #{nth}"
    );
    assert_eq!(
        invariants::at_rest(&world),
        Vec::<String>::new(),
        "killed at {point} #{nth}"
    );
    die
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_goes_on_where_it_was() {
    let points = killed_everywhere(1..=6, killed_at).await;
    for point in [
        "host.prepare.before",
        "host.prepare.after",
        "host.release.before",
        "host.release.after",
        "instance.commit.after",
    ] {
        assert!(points.contains(point), "{point} is not passed: {points:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_host_holds_up_nobody_and_says_what_is_wrong() {
    let world = World::new(4, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let names: Vec<String> = (0..10).map(|num| format!("host{num}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.ssh_hosts.step_takes(5 * SECOND);
    world
        .ssh_hosts
        .trouble("host3", transient("Docker is not installed"));
    let fleet = applied(&world, &engine, &names).await;
    let nine = |world: &World| {
        statuses(world, fleet)
            .iter()
            .filter(|status| **status == InstanceStatus::Idle)
            .count()
            == 9
    };
    // Ten hosts one after the other would take 200 s.
    world.until("nine hosts", 25 * SECOND, nine).await.unwrap();
    let waits = instances(&world, fleet)[3].waiting_for().unwrap().to_string();
    assert!(waits.contains("Docker is not installed"), "{waits}");
    let told = "Host is not set up yet: Docker is not installed";
    assert!(has_event(&world, told));
    let times = world
        .store
        .tables()
        .events
        .iter()
        .filter(|event| event.message == told)
        .count();
    assert_eq!(times, 1);
    // Somebody installs it.
    world.ssh_hosts.trouble("host3", None);
    become_idle(&world, fleet, 10, MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_never_works_is_given_up_with_the_cause() {
    let world = World::new(5, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    world.ssh_hosts.trouble("a", transient("no route to host"));
    world.ssh_hosts.trouble(
        "bb",
        Some(HostError::Refused("Unsupported private SSH key type".to_owned())),
    );
    let fleet = applied(&world, &engine, &["a", "bb"]).await;
    let reason = |world: &World, num: usize| {
        let row = &instances(world, fleet)[num];
        let message = row.termination_reason_message().map(str::to_owned);
        (row.status() == InstanceStatus::Terminated).then(|| (row.termination_reason(), message))
    };
    let refused = world
        .found("the refusal", MINUTE, |world: &World| reason(world, 1))
        .await
        .unwrap();
    assert_eq!(
        refused,
        (
            Some(Reason::Error),
            Some("Unsupported private SSH key type".to_owned())
        )
    );
    assert_eq!(reason(&world, 0), None);
    let late = world
        .found("the end", 13 * MINUTE, |world: &World| reason(world, 0))
        .await
        .unwrap();
    let message = "Failed to add SSH instance in 600s: no route to host".to_owned();
    assert_eq!(late, (Some(Reason::ProvisioningTimeout), Some(message)));
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_deleted_while_it_is_set_up_leaves_nothing() {
    for wait in 0..8 {
        let world = World::new(6, 1).await.unwrap();
        let engine = world.start().await.unwrap();
        world.ssh_hosts.step_takes(2 * SECOND);
        let fleet = applied(&world, &engine, &["a"]).await;
        world.pass(wait * SECOND).await;
        world.end_fleet(&engine, fleet, None).await.unwrap();
        comes_to_its_end(&world, fleet, MINUTE).await;
        assert_eq!(world.ssh_hosts.installed(), BTreeSet::new(), "after {wait} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_out_of_reach_keeps_its_agent_and_nobody_waits_for_ever() {
    let world = World::new(7, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a", "bb"]).await;
    become_idle(&world, fleet, 2, MINUTE).await;
    world.ssh_hosts.trouble("bb", transient("no route to host"));
    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, 6 * MINUTE).await;
    assert_eq!(world.ssh_hosts.installed(), BTreeSet::from(["bb".to_owned()]));
    assert!(has_event(&world, "Agent is left on the host: no route to host"));
}

#[tokio::test(start_paused = true)]
async fn hosts_come_and_go_in_place() {
    let world = World::new(8, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a", "bb"]).await;
    become_idle(&world, fleet, 2, MINUTE).await;
    applied(&world, &engine, &["bb", "ccc"]).await;
    let changed = |world: &World| {
        let idle: Vec<String> = instances(world, fleet)
            .iter()
            .filter(|row| row.status() == InstanceStatus::Idle)
            .filter_map(|row| row.job_provisioning_data.as_deref()?.hostname.clone())
            .collect();
        idle.len() == 2
            && idle.contains(&"ccc".to_owned())
            && world.ssh_hosts.installed() == BTreeSet::from(["bb".to_owned(), "ccc".to_owned()])
    };
    world.until("the new host", MINUTE, changed).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_lost_do_no_harm() {
    for seed in 0..10 {
        let world = World::new(seed, 1).await.unwrap();
        let engine = world.start().await.unwrap();
        world.ssh_hosts.lose_answers(0.4);
        let fleet = applied(&world, &engine, &["a", "bb"]).await;
        become_idle(&world, fleet, 2, 5 * MINUTE).await;
        world.end_fleet(&engine, fleet, None).await.unwrap();
        comes_to_its_end(&world, fleet, 2 * MINUTE).await;
        assert_eq!(world.ssh_hosts.installed(), BTreeSet::new(), "seed {seed}");
    }
}

/// A machine of another project, whose fleet the world's project imports.
async fn imported_machine(world: &World) -> FleetId {
    let builder = Builder {
        project: world.builder.random.uuid().into(),
        ..world.builder.clone()
    };
    let machine = builder.machine(4, world.clock.now()).unwrap();
    world.store.commit(machine).await.unwrap();
    let theirs = |fleet: &&FleetRow| fleet.project_id == builder.project;
    let fleet = world
        .store
        .read(|tables| tables.fleets.values().find(theirs).unwrap().id);
    world.store.name_project(world.builder.project, "main");
    world.store.name_project(builder.project, "theirs");
    world.store.import_fleet(world.builder.project, fleet, true);
    fleet
}

#[tokio::test(start_paused = true)]
async fn imported_fleets_run_jobs_until_they_are_not_exported_any_more() {
    let world = World::new(9, 1).await.unwrap();
    let fleet = imported_machine(&world).await;
    let engine = world.start().await.unwrap();
    let wants = json!({"fleets": ["theirs/local"]});
    let run = world.submit(&engine, "short", &wants).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let placed = world.store.tables().runs[&run.id].fleet_id;
    assert_eq!(placed, Some(fleet));

    let long = Script {
        lines: 1000,
        ..Script::default()
    };
    world.hosts.script("long", long);
    let run = world.submit(&engine, "long", &wants).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.store.import_fleet(world.builder.project, fleet, false);
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Failed);
    let ended = world
        .store
        .tables()
        .jobs
        .into_values()
        .find(|job| job.run_id == run.id)
        .unwrap();
    assert_eq!(
        ended.termination_reason(),
        Some(JobTerminationReason::InstanceAccessRevoked)
    );
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());

    let run = world.submit(&engine, "late", &wants).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_leaves_the_fleet_while_it_is_set_up_keeps_nothing() {
    for wait in 0..8 {
        let world = World::new(10, 1).await.unwrap();
        let engine = world.start().await.unwrap();
        world.ssh_hosts.step_takes(2 * SECOND);
        let fleet = applied(&world, &engine, &["a", "bb"]).await;
        world.pass(wait * SECOND).await;
        applied(&world, &engine, &["bb"]).await;
        // It is not set up again while it is being left.
        let again = world.apply_fleet(&engine, "lab", &of_hosts(&["a", "bb"])).await;
        assert!(again.is_err(), "after {wait} s");
        let left = |world: &World| {
            let statuses = statuses(world, fleet);
            statuses.contains(&InstanceStatus::Idle) && statuses.contains(&InstanceStatus::Terminated)
        };
        world.until("the host has left", MINUTE, left).await.unwrap();
        assert_eq!(
            world.ssh_hosts.installed(),
            BTreeSet::from(["bb".to_owned()]),
            "after {wait} s"
        );
    }
}

/// Nothing is wrong, and at no host two steps were made at the same time.
fn nothing_is_wrong(world: &World) {
    assert_eq!(invariants::always(world), Vec::<String>::new());
    assert!(
        world.ssh_hosts.most_at_once() <= 1,
        "two servers were at one host"
    );
}

/// A job that goes on for a while.
fn a_while() -> Script {
    Script {
        lines: 100,
        pause: SECOND,
        ..Script::default()
    }
}

fn waits_for(world: &World, fleet: FleetId) -> String {
    let waits = instances(world, fleet)[0].waiting_for().map(ToString::to_string);
    waits.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_agent_is_gone_is_set_up_again_and_its_job_goes_on() {
    let world = World::new(11, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.hosts.script("train", a_while());
    let run = world
        .submit(&engine, "train", &json!({"fleets": ["lab"]}))
        .await
        .unwrap();
    world.running(&run, MINUTE).await.unwrap();
    // One that has just been set up has a minute.
    world.pass(50 * SECOND).await;

    world.ssh_hosts.step_takes(2 * SECOND);
    world.hosts.agent_runs("a", false);
    world.pass(9 * SECOND).await;
    assert_eq!(
        world.ssh_hosts.agents_started("a"),
        1,
        "whoever keeps it running may start it"
    );
    let again = |world: &World| waits_for(world, fleet).contains("to be set up again");
    world
        .until("the host is set up again", 5 * SECOND, again)
        .await
        .unwrap();
    assert_eq!(statuses(&world, fleet), [InstanceStatus::Busy]);
    assert!(has_event(
        &world,
        "Host is set up again: its agent does not answer"
    ));
    let there = |world: &World| !instances(world, fleet)[0].unreachable;
    world
        .until("the agent answers", 15 * SECOND, there)
        .await
        .unwrap();
    assert_eq!(waits_for(&world, fleet), "");
    assert_eq!(world.ssh_hosts.agents_started("a"), 2);

    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    nothing_is_wrong(&world);
    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, MINUTE).await;
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_host_out_of_reach_is_waited_for_and_not_set_up_again() {
    let world = World::new(12, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    let steps = world.ssh_hosts.steps_begun("a");
    world.hosts.cut_off(true);
    world.pass(5 * MINUTE).await;
    assert_eq!(world.ssh_hosts.steps_begun("a"), steps);
    assert!(waits_for(&world, fleet).contains("to be reachable again"));
    world.hosts.cut_off(false);
    let there = |world: &World| !instances(world, fleet)[0].unreachable;
    world.until("the agent answers", 5 * SECOND, there).await.unwrap();
    assert_eq!(world.ssh_hosts.agents_started("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_mended_is_tried_less_and_less_often_and_says_why() {
    let world = World::new(13, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.hosts.agent_runs("a", false);
    world.ssh_hosts.trouble("a", transient("no space is left"));
    let mut tried = Vec::new();
    for _ in 0..8 {
        let before = world.ssh_hosts.steps_begun("a");
        world.pass(60 * MINUTE).await;
        tried.push(world.ssh_hosts.steps_begun("a") - before);
    }
    // At most every 15 s, but for the first moments.
    assert!(tried[0] <= 250 && tried[7] <= 30, "{tried:?}");
    assert!(tried.windows(2).all(|hours| hours[1] < hours[0]), "{tried:?}");
    assert!(
        waits_for(&world, fleet).contains("to be set up again (last attempt: no space is left)"),
        "{}",
        waits_for(&world, fleet)
    );
    assert_eq!(statuses(&world, fleet), [InstanceStatus::Idle]);
    world.ssh_hosts.trouble("a", None);
    let there = |world: &World| !instances(world, fleet)[0].unreachable;
    world.until("the agent answers", 6 * MINUTE, there).await.unwrap();
    nothing_is_wrong(&world);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_again_and_again_is_not_brought_without_end() {
    let world = World::new(14, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    for _ in 0..4 * 3600 {
        world.hosts.agent_runs("a", false);
        world.pass(SECOND).await;
    }
    let started = world.ssh_hosts.agents_started("a");
    assert!((10..40).contains(&started), "{started}");
    let refused = HostError::Refused("no agent for this architecture".to_owned());
    world.ssh_hosts.trouble("a", Some(refused));
    world.pass(20 * MINUTE).await;
    let steps = world.ssh_hosts.steps_begun("a");
    world.pass(60 * MINUTE).await;
    assert!(world.ssh_hosts.steps_begun("a") - steps <= 5);
    assert!(waits_for(&world, fleet).contains("no agent for this architecture"));
    nothing_is_wrong(&world);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_brings_another_build_replaces_the_agents_while_jobs_go_on() {
    let world = World::new(15, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a", "bb"]).await;
    become_idle(&world, fleet, 2, MINUTE).await;
    world.hosts.script("train", a_while());
    let wants = json!({"fleets": ["lab"], "nodes": 2});
    let run = world.submit(&engine, "train", &wants).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    engine.stop();
    world.leases_run_out().await;
    world.ssh_hosts.carry("build-2");
    let engine = world.start().await.unwrap();
    let replaced = |world: &World| {
        ["a", "bb"].map(|host| world.ssh_hosts.build_at(host))
            == ["build-2", "build-2"].map(|build| Some(build.to_owned()))
    };
    world.until("the new build", 2 * MINUTE, replaced).await.unwrap();
    assert_eq!(world.finished(&run, 3 * MINUTE).await.unwrap(), RunStatus::Done);
    world.pass(10 * MINUTE).await;
    assert_eq!(
        ["a", "bb"].map(|host| world.ssh_hosts.agents_started(host)),
        [2, 2]
    );
    assert!(has_event(&world, "another build of its agent"));
    nothing_is_wrong(&world);
    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, MINUTE).await;
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

/// The agent of a host that is in use goes for good, under an engine that is killed at a failpoint, and another that goes on.
async fn killed_at_while_set_up_again(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = World::new(16, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    engine.stop();
    world.leases_run_out().await;
    let steps = world.ssh_hosts.steps_begun("a");
    world.hosts.agent_runs("a", false);

    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    let there = |world: &World| {
        let row = &instances(world, fleet)[0];
        !row.unreachable && row.waiting_for().is_none() && world.ssh_hosts.agents_started("a") == 2
    };
    let mended = async |_: &Engine| world.until("the agent", 2 * MINUTE, there).await.unwrap();
    if world.outliving(&mut engine, mended).await.unwrap() {
        world.pass(5 * MINUTE).await;
    } else {
        engine.stop();
    }
    assert_eq!(world.ssh_hosts.agents_started("a"), 2, "killed at {point} #{nth}");
    // Four steps, the one of the kill once more, and one that a dying server began.
    let made = world.ssh_hosts.steps_begun("a") - steps;
    assert!(made <= 6, "killed at {point} #{nth}: {made} steps");
    nothing_is_wrong(&world);
    die
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_sets_a_host_up_again_once() {
    let points = killed_everywhere(1..=8, killed_at_while_set_up_again).await;
    for point in [
        "host.prepare.before",
        "host.prepare.after",
        "instance.commit.after",
    ] {
        assert!(points.contains(point), "{point} is not passed: {points:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_installed_anew_gets_the_agent_once_its_key_is_accepted() {
    let world = World::new(17, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    let key = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU";
    world.ssh_hosts.reinstall("a", key);
    world.ssh_hosts.has_cpus("a", 32);
    world.pass(5 * MINUTE).await;
    assert_eq!(
        world.ssh_hosts.installed(),
        BTreeSet::new(),
        "nothing comes to another machine"
    );
    world.trust_host(&engine, "lab", 0, key).await.unwrap();
    let there = |world: &World| !instances(world, fleet)[0].unreachable;
    world.until("the agent answers", MINUTE, there).await.unwrap();
    assert_eq!(world.ssh_hosts.agents_started("a"), 2);
    let run = world
        .submit(&engine, "after", &json!({"fleets": ["lab"]}))
        .await
        .unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    nothing_is_wrong(&world);

    // Keys that were only replaced: an agent that runs is left alone.
    let steps = world.ssh_hosts.steps_begun("a");
    world.trust_host(&engine, "lab", 0, key).await.unwrap();
    world.pass(MINUTE).await;
    assert!(world.ssh_hosts.steps_begun("a") > steps);
    assert_eq!(world.ssh_hosts.agents_started("a"), 2);
}

/// As the instance offers them, and as it tells of its place.
fn cpus(world: &World, fleet: FleetId) -> (i64, i64) {
    let row = &instances(world, fleet)[0];
    let offered = row.offer.as_deref().unwrap().instance.resources.cpus;
    let place = row.job_provisioning_data.as_deref().unwrap();
    (offered, place.instance_type.resources.cpus)
}

#[tokio::test(start_paused = true)]
async fn what_a_host_that_was_set_up_again_offers_counts_once_no_job_runs_there() {
    let world = World::new(21, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.hosts.script("train", a_while());
    let wants = json!({"fleets": ["lab"]});
    let run = world.submit(&engine, "train", &wants).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.ssh_hosts.has_cpus("a", 32);
    world.ssh_hosts.carry("build-2");
    world.pass(70 * SECOND).await;
    assert_eq!(world.ssh_hosts.build_at("a").as_deref(), Some("build-2"));
    assert_eq!(cpus(&world, fleet), (8, 8));
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    let offers = |world: &World| cpus(world, fleet) == (32, 32);
    world.until("what it has now", MINUTE, offers).await.unwrap();
    nothing_is_wrong(&world);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_open_to_hosts_that_have_left() {
    let world = World::new(22, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a", "bb", "c"]).await;
    world.ssh_hosts.trouble("c", transient("no space is left"));
    let two = |world: &World| {
        let idle = |status: &&InstanceStatus| **status == InstanceStatus::Idle;
        statuses(world, fleet).iter().filter(idle).count() == 2
    };
    world.until("two hosts", MINUTE, two).await.unwrap();
    let are_reached = |world: &World| (world.hosts.reached(), world.ssh_hosts.reached());
    let of_fleet = ["a", "bb", "c"].map(str::to_owned);
    assert!(are_reached(&world).1 == of_fleet.into());
    world.ssh_hosts.trouble("bb", transient("no route to host"));
    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, 6 * MINUTE).await;
    assert!(has_event(&world, "Agent is left on the host"));
    // The agent of one that was left behind may go on telling: that is noticed at its next word.
    world.hosts.lag();
    world.pass(10 * SECOND).await;
    let (agents, hosts) = are_reached(&world);
    let of_fleet = |name: &&String| ["a", "bb", "c"].contains(&name.as_str());
    assert_eq!(agents.iter().filter(of_fleet).count(), 0, "{agents:?}");
    assert_eq!(hosts, BTreeSet::new());
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_step_hangs_is_left_in_bounded_time() {
    for (wait, leaves, within) in [
        (1, false, 3 * MINUTE),
        (1, true, 7 * MINUTE),
        (3, true, 5 * MINUTE),
    ] {
        let world = World::new(18, 1).await.unwrap();
        let engine = world.start().await.unwrap();
        world.ssh_hosts.step_takes(SECOND);
        let fleet = applied(&world, &engine, &["a"]).await;
        world.pass(wait * SECOND + SECOND / 2).await;
        // The step after the present one does not come to an end.
        world.ssh_hosts.hang("a", true);
        world.pass(2 * SECOND).await;
        world.end_fleet(&engine, fleet, None).await.unwrap();
        world.ssh_hosts.hang("a", leaves);
        let waiting = |world: &World| instances(world, fleet)[0].deadline_at().is_some();
        world.until("a deadline", SECOND, waiting).await.unwrap();
        comes_to_its_end(&world, fleet, within).await;
        let left = world.ssh_hosts.installed();
        assert_eq!(!left.is_empty(), leaves, "after {wait} s");
        assert_eq!(has_event(&world, "Agent is left on the host"), leaves);
        nothing_is_wrong(&world);
    }
}

/// A release that its caller has given up may still take effect, and hit the agent of whoever has the host by then.
#[tokio::test(start_paused = true)]
async fn a_release_that_comes_late_leaves_nothing_and_harms_nobody_for_long() {
    let world = World::new(19, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.ssh_hosts.release_late(Some(6 * MINUTE));
    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, 5 * MINUTE).await;
    assert!(has_event(&world, "Agent is left on the host"));
    world.pass(3 * MINUTE).await;
    assert_eq!(world.ssh_hosts.installed(), BTreeSet::new());

    // The same, while another fleet has the host already.
    world.ssh_hosts.release_late(None);
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.ssh_hosts.release_late(Some(6 * MINUTE));
    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, 5 * MINUTE).await;
    world.ssh_hosts.release_late(None);
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.pass(3 * MINUTE).await;
    let there = |world: &World| {
        world.ssh_hosts.installed() == BTreeSet::from(["a".to_owned()])
            && all_idle(world, fleet, 1)
            && !instances(world, fleet)[0].unreachable
    };
    world
        .until("the agent is there again", 2 * MINUTE, there)
        .await
        .unwrap();
    world.end_fleet(&engine, fleet, None).await.unwrap();
    comes_to_its_end(&world, fleet, 5 * MINUTE).await;
    assert_eq!(world.ssh_hosts.installed(), BTreeSet::new());
    nothing_is_wrong(&world);
}

/// What opened a host is kept until it is released, and no longer.
#[tokio::test(start_paused = true)]
async fn a_host_that_leaves_keeps_the_keys_that_it_had_until_it_is_released() {
    let world = World::new(20, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let jump = json!({"hostname": "j", "user": "jump", "identity_file": "x", "ssh_key": {"public": "", "private": KEY}});
    let with_jump = |hosts: Value| {
        let key = json!({"public": "", "private": KEY});
        json!({"ssh_config": {"user": "me", "ssh_key": key, "hosts": hosts}})
    };
    let first = with_jump(json!([{"hostname": "a", "proxy_jump": jump}, "bb"]));
    let fleet = world.apply_fleet(&engine, "lab", &first).await.unwrap();
    become_idle(&world, fleet, 2, MINUTE).await;
    let leaving = |world: &World| {
        let id = instances(world, fleet)[0].id;
        world.store.read(|tables| {
            let of_host = tables
                .operations
                .values()
                .filter(|row| row.subject == EntityRef::Instance(id));
            let notes = of_host.filter(|row| row.kind == OperationKind::Release);
            notes
                .filter_map(|row| row.notes.as_deref().cloned())
                .map(|notes| notes.to_string())
                .collect::<String>()
        })
    };
    world.ssh_hosts.step_takes(10 * SECOND);
    let second = with_jump(json!(["bb"]));
    world.apply_fleet(&engine, "lab", &second).await.unwrap();
    let kept = leaving(&world);
    assert!(
        kept.contains("\"hostname\":\"j\"") && kept.contains("PRIVATE KEY") && !kept.contains("bb"),
        "{kept}"
    );
    let left = |world: &World| instances(world, fleet)[0].status() == InstanceStatus::Terminated;
    world.until("the host has left", MINUTE, left).await.unwrap();
    assert_eq!(world.ssh_hosts.installed(), BTreeSet::from(["bb".to_owned()]));
    assert!(!leaving(&world).contains("PRIVATE KEY"));

    // Nor longer where it stays out of reach, or was never reached.
    let again = |name: &str| with_jump(json!([{"hostname": name, "proxy_jump": jump}, "bb"]));
    for (name, reached) in [("c", true), ("dd", false)] {
        world.ssh_hosts.step_takes(SECOND);
        world.apply_fleet(&engine, "lab", &again(name)).await.unwrap();
        if reached {
            world
                .until("idle", MINUTE, |world: &World| {
                    statuses(world, fleet)
                        .iter()
                        .filter(|status| **status == InstanceStatus::Idle)
                        .count()
                        == 2
                })
                .await
                .unwrap();
        }
        world.ssh_hosts.trouble(name, transient("no route to host"));
        world.apply_fleet(&engine, "lab", &second).await.unwrap();
        let left = |world: &World| {
            statuses(world, fleet)
                .iter()
                .all(|status| matches!(status, InstanceStatus::Terminated | InstanceStatus::Idle))
        };
        world.until("the host has left", 6 * MINUTE, left).await.unwrap();
        let keys = world.store.read(|tables| {
            tables.operations.values().any(|row| {
                row.kind == OperationKind::Release
                    && row
                        .notes
                        .as_ref()
                        .is_some_and(|notes| notes.to_string().contains("PRIVATE KEY"))
            })
        });
        assert!(!keys, "{name}");
    }
    nothing_is_wrong(&world);
}

/// What may happen to hosts that are in use, and to the servers that keep them so.
struct Fate<'a> {
    world: &'a World,
    engine: Engine,
    /// Host keys that are not accepted yet, by number of the instance.
    unaccepted: [Option<String>; 2],
    times: u64,
}

impl Fate<'_> {
    const HOSTS: [&'static str; 2] = ["a", "bb"];

    async fn strike(&mut self) {
        let (world, random) = (self.world, &self.world.builder.random);
        self.times += 1;
        let num = usize::try_from(random.below(2)).unwrap();
        let host = Self::HOSTS[num];
        match random.below(10) {
            0 | 1 => world.hosts.agent_runs(host, false),
            2 => world.ssh_hosts.trouble(host, transient("no space is left")),
            3 => world.ssh_hosts.trouble(host, None),
            4 => world.hosts.cut_off(true),
            5 => world.hosts.cut_off(false),
            6 => world.ssh_hosts.carry(&format!("build-{}", self.times)),
            7 => {
                let key = format!("SHA256:{:A>43}", self.times);
                world.ssh_hosts.reinstall(host, &key);
                self.unaccepted[num] = Some(key);
            }
            8 => self.accept(num).await,
            _ => {
                self.engine.stop();
                world.leases_run_out().await;
                self.engine = world.start().await.unwrap();
            }
        }
        world.pass(Duration::from_millis(random.below(60_000))).await;
    }

    async fn accept(&mut self, num: usize) {
        if let Some(key) = self.unaccepted[num].take() {
            let number = i64::try_from(num).unwrap();
            self.world
                .trust_host(&self.engine, "lab", number, &key)
                .await
                .unwrap();
        }
    }

    /// All is mended that nobody but people can mend.
    async fn relent(&mut self) {
        self.world.hosts.cut_off(false);
        self.world.ssh_hosts.lose_answers(0.0);
        for (num, host) in Self::HOSTS.into_iter().enumerate() {
            self.world.ssh_hosts.trouble(host, None);
            self.accept(num).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hosts_are_usable_in_the_end_whatever_has_happened_to_them() {
    for seed in 100..120 {
        let world = World::new(seed, 1).await.unwrap();
        let engine = world.start().await.unwrap();
        let fleet = applied(&world, &engine, &Fate::HOSTS).await;
        become_idle(&world, fleet, 2, MINUTE).await;
        world.ssh_hosts.step_takes(SECOND);
        world.ssh_hosts.lose_answers(0.2);
        let unaccepted = [None, None];
        let mut fate = Fate {
            world: &world,
            engine,
            unaccepted,
            times: 0,
        };
        for _ in 0..60 {
            fate.strike().await;
        }
        fate.relent().await;
        let usable = |world: &World| {
            let rows = instances(world, fleet);
            let built = Fate::HOSTS.map(|host| world.ssh_hosts.build_at(host));
            let settled = |row: &InstanceRow| {
                row.status() == InstanceStatus::Idle && !row.unreachable && row.waiting_for().is_none()
            };
            rows.iter().all(settled)
                && built
                    .iter()
                    .all(|build| *build == Some(world.ssh_hosts.carried()))
        };
        let within = 20 * MINUTE;
        world
            .until(&format!("usable hosts, seed {seed}"), within, usable)
            .await
            .unwrap();
        let wants = json!({"fleets": ["lab"], "nodes": 2});
        let run = world.submit(&fate.engine, "train", &wants).await.unwrap();
        assert_eq!(
            world.finished(&run, MINUTE).await.unwrap(),
            RunStatus::Done,
            "seed {seed}"
        );
        nothing_is_wrong(&world);
        world.end_fleet(&fate.engine, fleet, None).await.unwrap();
        comes_to_its_end(&world, fleet, MINUTE).await;
        assert_eq!(world.ssh_hosts.installed(), BTreeSet::new(), "seed {seed}");
        assert_eq!(invariants::at_rest(&world), Vec::<String>::new(), "seed {seed}");
    }
}

/// Somebody who is root on a host has it set up for another instance, by mistake say, and then for this one again.
#[tokio::test(start_paused = true)]
async fn a_job_outlives_that_the_agent_of_its_host_has_another_token_for_a_while() {
    let world = World::new(23, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.hosts.shim_token("a", Some("of another".into()));
    let wants = json!({"fleets": ["lab"]});
    let run = world.submit(&engine, "train", &wants).await.unwrap();
    world.pass(20 * SECOND).await;
    assert_eq!(world.status(run.id), Some(RunStatus::Provisioning));
    let instance = instances(&world, fleet)[0].id;
    world.hosts.shim_token("a", Some(shim_token(instance)));
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
}

/// A program of anybody takes the port of an agent that does not run, and says what an agent of another instance would say.
#[tokio::test(start_paused = true)]
async fn whose_agent_a_host_has_is_not_decided_by_what_answers_on_its_port() {
    let refused = AgentError::Refused {
        status: 401,
        message: "dstack-shim".to_owned(),
    };
    for answer in [
        refused,
        AgentError::Unproven {
            status: None,
            message: "no proof".to_owned(),
        },
    ] {
        let world = World::new(29, 1).await.unwrap();
        let engine = world.start().await.unwrap();
        let fleet = applied(&world, &engine, &["a"]).await;
        become_idle(&world, fleet, 1, MINUTE).await;
        world.pass(MINUTE).await;
        world.hosts.impersonate("a", answer);
        world.hosts.agent_runs("a", false);
        let again = |world: &World| world.ssh_hosts.agents_started("a") == 2;
        world
            .until("the host is set up again", MINUTE, again)
            .await
            .unwrap();
        // Another instance has set it up: that one goes on.
        world.pass(2 * MINUTE).await;
        world.hosts.shim_token("a", Some("of another".into()));
        world.hosts.agent_runs("a", false);
        world.pass(2 * MINUTE).await;
        assert_eq!(world.ssh_hosts.agents_started("a"), 2);
    }
}

fn count_of(world: &World, text: &str) -> usize {
    let tables = world.store.tables();
    let events = tables.events.iter();
    events.filter(|event| event.message.contains(text)).count()
}

/// Both are set up at once, by servers that know nothing of each other; each puts its token there in turn.
#[tokio::test(start_paused = true)]
async fn one_machine_under_two_names_is_one_host_whoever_sets_it_up() {
    for (seed, step) in (30..36).zip([0, 200, 400, 700, 1000, 1300]) {
        let world = World::new(seed, 1).await.unwrap();
        world.hosts.alias("bb", "a");
        let engine = world.start().await.unwrap();
        world.ssh_hosts.step_takes(Duration::from_millis(step));
        // Two fleets: whose names they are does not matter.
        let one = applied(&world, &engine, &["a"]).await;
        world.pass(Duration::from_millis(step / 3)).await;
        let other = world
            .apply_fleet(&engine, "other", &of_hosts(&["bb"]))
            .await
            .unwrap();
        let ended = |world: &World| {
            let both = [one, other].into_iter().flat_map(|fleet| instances(world, fleet));
            let over = both.filter(|row| row.status() == InstanceStatus::Terminated);
            over.last()
                .and_then(|row| row.termination_reason_message().map(str::to_owned))
        };
        let told = world.found("the end of one", MINUTE, ended).await.unwrap();
        assert!(
            told.contains("is the machine of") && told.contains("take one of them out"),
            "{told}"
        );
        let stays = |world: &World| {
            let both: Vec<InstanceRow> = [one, other]
                .into_iter()
                .flat_map(|fleet| instances(world, fleet))
                .collect();
            let idle = both.iter().find(|row| row.status() == InstanceStatus::Idle)?;
            let is_settled = !idle.unreachable && idle.waiting_for().is_none();
            is_settled.then(|| idle.clone())
        };
        let idle = world.found("the other", 2 * MINUTE, stays).await.unwrap();
        // Its agent is its own again, and takes jobs.
        let fleet = idle.name.trim_end_matches("-0");
        let run = world
            .submit(&engine, "train", &json!({"fleets": [fleet]}))
            .await
            .unwrap();
        assert_eq!(
            world.finished(&run, MINUTE).await.unwrap(),
            RunStatus::Done,
            "step {step}"
        );
        assert_eq!(world.ssh_hosts.installed(), BTreeSet::from(["a".to_owned()]));
        assert_eq!(invariants::always(&world), Vec::<String>::new());
    }
}

async fn reason_of_end(world: &World, fleet: FleetId) -> String {
    let ended = |world: &World| {
        let rows = instances(world, fleet);
        let over = rows.iter().find(|row| row.status() == InstanceStatus::Terminated);
        over.and_then(|row| row.termination_reason_message().map(str::to_owned))
    };
    world.found("its end", 2 * MINUTE, ended).await.unwrap()
}

/// What a machine says of itself, its owner decides: that keeps no host of another project away, and ends none.
#[tokio::test(start_paused = true)]
async fn a_machine_that_says_it_is_that_of_another_project_is_told_from_it_by_its_host_key() {
    let mut world = World::new(41, 1).await.unwrap();
    world.hosts.alias("aa", "a");
    world.ssh_hosts.says_of_itself("b", "a");
    let engine = world.start().await.unwrap();
    let ours = applied(&world, &engine, &["a"]).await;
    become_idle(&world, ours, 1, MINUTE).await;
    world.builder.project = world.builder.random.uuid().into();
    let theirs = world
        .apply_fleet(&engine, "theirs", &of_hosts(&["b"]))
        .await
        .unwrap();
    become_idle(&world, theirs, 1, MINUTE).await;
    assert!(all_idle(&world, ours, 1));
    assert_eq!(world.ssh_hosts.agents_started("a"), 1);
    // The same machine by another name shows the same key.
    world.builder.project = world.builder.random.uuid().into();
    let same = world
        .apply_fleet(&engine, "same", &of_hosts(&["aa"]))
        .await
        .unwrap();
    let told = reason_of_end(&world, same).await;
    assert!(
        told.contains("is a machine that a fleet of another project has"),
        "{told}"
    );
    become_idle(&world, ours, 1, 2 * MINUTE).await;
}

/// Its number is another then, also that which its other name would tell.
#[tokio::test(start_paused = true)]
async fn a_host_that_was_started_again_is_known_by_its_other_name() {
    let world = World::new(42, 1).await.unwrap();
    world.hosts.alias("bb", "a");
    let engine = world.start().await.unwrap();
    let one = applied(&world, &engine, &["a"]).await;
    become_idle(&world, one, 1, MINUTE).await;
    world.ssh_hosts.says_of_itself("a", "a, started again");
    world.hosts.agent_runs("a", false);
    world.pass(2 * SECOND).await;
    world.hosts.agent_runs("a", true);
    world.pass(10 * SECOND).await;
    let other = world
        .apply_fleet(&engine, "other", &of_hosts(&["bb"]))
        .await
        .unwrap();
    let told = reason_of_end(&world, other).await;
    assert!(told.contains("is the machine of lab-0"), "{told}");
    become_idle(&world, one, 1, 2 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_accepted_counts_at_once_however_long_nothing_worked() {
    let world = World::new(37, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    let key = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU";
    world.hosts.agent_runs("a", false);
    world.ssh_hosts.trouble("a", transient("no space is left"));
    // It is tried each five minutes by then.
    world.pass(8 * 60 * MINUTE).await;
    world.ssh_hosts.reinstall("a", key);
    world.ssh_hosts.trouble("a", None);
    world.trust_host(&engine, "lab", 0, key).await.unwrap();
    let there = |world: &World| !instances(world, fleet)[0].unreachable;
    world
        .until("the agent answers", 10 * SECOND, there)
        .await
        .unwrap();
    nothing_is_wrong(&world);
}

/// Two causes take turns for days, and others have numbers in them that are others each time.
#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_is_told_once_however_often_it_changes() {
    let world = World::new(38, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.hosts.agent_runs("a", false);
    for minute in 0..6 * 60 {
        let text = match minute {
            0..60 if minute % 2 == 0 => "no space is left".to_owned(),
            0..60 => "the clock is off".to_owned(),
            _ => format!("process {minute} is in the way"),
        };
        world.ssh_hosts.trouble("a", transient(&text));
        world.pass(MINUTE).await;
    }
    for text in ["no space is left", "the clock is off"] {
        assert_eq!(count_of(&world, text), 1, "{text}");
    }
    let told = count_of(&world, "Host is not set up yet");
    assert!((3..=8).contains(&told), "{told}");
    // What is there now is shown all the same.
    world.pass(10 * MINUTE).await;
    assert!(
        waits_for(&world, fleet).contains("process 359 is in the way"),
        "{}",
        waits_for(&world, fleet)
    );
}

/// It hangs: its port takes connections, and nothing comes back.
#[tokio::test(start_paused = true)]
async fn an_agent_that_answers_nothing_is_started_again_and_its_job_goes_on() {
    let world = World::new(39, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    let long = Script {
        lines: 400,
        ..a_while()
    };
    world.hosts.script("train", long);
    let run = world
        .submit(&engine, "train", &json!({"fleets": ["lab"]}))
        .await
        .unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.pass(MINUTE).await;
    world.hosts.agent_is_late("a", Some(None));
    let says = |world: &World| waits_for(world, fleet).contains("no answer within 9 s");
    world
        .until("the cause is shown", 15 * SECOND, says)
        .await
        .unwrap();
    world.pass(MINUTE).await;
    assert_eq!(world.ssh_hosts.agents_started("a"), 1, "it may answer yet");
    let there =
        |world: &World| world.ssh_hosts.agents_started("a") == 2 && !instances(world, fleet)[0].unreachable;
    world.until("the agent answers", 3 * MINUTE, there).await.unwrap();
    assert!(has_event(
        &world,
        "Host is set up again: its agent takes connections and does not answer"
    ));
    assert_eq!(world.finished(&run, 8 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.ssh_hosts.agents_started("a"), 2);
    nothing_is_wrong(&world);
}

/// The host is under load: no call is answered in its time, and all would be.
#[tokio::test(start_paused = true)]
async fn an_agent_that_answers_late_is_left_alone() {
    let world = World::new(40, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.pass(2 * MINUTE).await;
    world.hosts.agent_is_late("a", Some(Some(40 * SECOND)));
    world.pass(60 * MINUTE).await;
    assert!(instances(&world, fleet)[0].unreachable);
    assert_eq!(world.ssh_hosts.agents_started("a"), 1);
    world.hosts.agent_is_late("a", None);
    let there = |world: &World| !instances(world, fleet)[0].unreachable;
    world.until("the agent answers", MINUTE, there).await.unwrap();
    assert_eq!(world.ssh_hosts.agents_started("a"), 1);
}

/// It is connected and says something now and then: nobody would wait for its tasks without end.
#[tokio::test(start_paused = true)]
async fn an_agent_that_never_tells_all_its_tasks_is_asked_again_and_says_why() {
    let world = World::new(40, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.hosts.never_synced("a", true);
    world.hosts.cut_off(true);
    world.pass(5 * SECOND).await;
    world.hosts.cut_off(false);
    let is_told = |world: &World| {
        let row = &instances(world, fleet)[0];
        let reason = row.waiting_for().map(ToString::to_string).unwrap_or_default();
        row.unreachable && reason.contains("has not told all its tasks within 60 s")
    };
    world.until("it is told", 2 * MINUTE, is_told).await.unwrap();
    // Streams that are open already go on as they began.
    world.hosts.never_synced("a", false);
    let is_back = |world: &World| !instances(world, fleet)[0].unreachable;
    world.until("it is back", 2 * MINUTE, is_back).await.unwrap();
    let run = world
        .submit(&engine, "train", &json!({"fleets": ["lab"]}))
        .await
        .unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_for_its_only_host_that_is_away_for_a_moment() {
    for (away, ends) in [
        (SECOND, RunStatus::Done),
        (20 * SECOND, RunStatus::Done),
        (90 * SECOND, RunStatus::Failed),
    ] {
        let world = World::new(41, 1).await.unwrap();
        let engine = world.start().await.unwrap();
        let fleet = applied(&world, &engine, &["a"]).await;
        become_idle(&world, fleet, 1, MINUTE).await;
        world.hosts.cut_off(true);
        let gone = |world: &World| instances(world, fleet)[0].unreachable;
        world.until("the host is away", 5 * SECOND, gone).await.unwrap();
        let run = world
            .submit(&engine, "train", &json!({"fleets": ["lab"]}))
            .await
            .unwrap();
        world.pass(away).await;
        world.hosts.cut_off(false);
        assert_eq!(world.finished(&run, MINUTE).await.unwrap(), ends, "{away:?}");
        assert_eq!(invariants::always(&world), Vec::<String>::new());
    }
}

/// Nothing is waited for that would not do: it has another fleet, or too little.
#[tokio::test(start_paused = true)]
async fn a_run_does_not_wait_for_a_host_that_would_not_do() {
    let world = World::new(42, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = applied(&world, &engine, &["a"]).await;
    become_idle(&world, fleet, 1, MINUTE).await;
    world.hosts.cut_off(true);
    let gone = |world: &World| instances(world, fleet)[0].unreachable;
    world.until("the host is away", 5 * SECOND, gone).await.unwrap();
    let wants = json!({"fleets": ["lab"], "resources": {"cpu": "64.."}});
    let run = world.submit(&engine, "train", &wants).await.unwrap();
    assert_eq!(world.finished(&run, 5 * SECOND).await.unwrap(), RunStatus::Failed);
}
