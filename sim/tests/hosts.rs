//! Hosts of SSH fleets: set up step by step by engines that die anywhere, used, and left as they were found.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_engine::{Engine, Failpoints, HostError};
use dstack_model::fleets::FleetStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason as Reason};
use dstack_model::runs::{JobTerminationReason, RunStatus};
use dstack_sim::output::shim_token;
use dstack_sim::scenario::Builder;
use dstack_sim::{Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore as _;
use dstack_store::rows::{FleetRow, InstanceRow};
use dstack_units::FleetId;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A key of the right form, which opens nothing.
const KEY: &str = "\
-----BEGIN OPENSSH PRIVATE KEY-----\n\
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n\
QyNTUxOQAAACB8kJianwVrLKGw4+nV6mOTy2OGbYpytfqap2qLDRZMQQAAAIi31J3It9Sd\n\
yAAAAAtzc2gtZWQyNTUxOQAAACB8kJianwVrLKGw4+nV6mOTy2OGbYpytfqap2qLDRZMQQ\n\
AAAEChazO2+rvlP6KYqQoKuAxAakHyXPrD9GCz0ehzFYv9EXyQmJqfBWssobDj6dXqY5PL\n\
Y4ZtinK1+pqnaosNFkxBAAAAAAECAwQF\n\
-----END OPENSSH PRIVATE KEY-----\n
";

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
    let failpoints = Arc::clone(&die) as Arc<dyn Failpoints>;
    let mut engine = world.start_with(failpoints).await.unwrap();
    let configuration = of_hosts(&["a", "bb"]);
    let fleet = loop {
        tokio::select! {
            made = world.apply_fleet(&engine, "lab", &configuration) => break made.unwrap(),
            () = engine.stopped() => {}
        }
        engine = restart(&world).await;
        // The client that was cut off looks whether it is there before it asks again.
        let made = |fleet: &&FleetRow| fleet.name == "lab";
        if let Some(id) = world
            .store
            .read(|tables| tables.fleets.values().find(made).map(|fleet| fleet.id))
        {
            break id;
        }
    };
    let killed = tokio::select! {
        () = engine.stopped() => true,
        () = become_idle(&world, fleet, 2, 5 * MINUTE) => false,
    };
    if killed {
        engine = restart(&world).await;
        become_idle(&world, fleet, 2, 5 * MINUTE).await;
    }
    tokio::select! {
        ended = world.end_fleet(&engine, fleet, None) => ended.unwrap(),
        () = engine.stopped() => {
            engine = restart(&world).await;
            world.end_fleet(&engine, fleet, None).await.unwrap();
        }
    }
    let killed = tokio::select! {
        () = engine.stopped() => true,
        () = comes_to_its_end(&world, fleet, 3 * MINUTE) => false,
    };
    if killed {
        engine = restart(&world).await;
        comes_to_its_end(&world, fleet, 3 * MINUTE).await;
    }
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

async fn restart(world: &World) -> Engine {
    world.leases_run_out().await;
    world.start().await.unwrap()
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
