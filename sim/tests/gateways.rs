//! Gateways: on hosts of SSH fleets and on machines of clouds, made, replaced and taken away by engines that die anywhere.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_engine::{Engine, EngineError, HostError};
use dstack_model::fleets::FleetStatus;
use dstack_model::gateways::GatewayStatus;
use dstack_model::instances::InstanceStatus;
use dstack_sim::ssh_hosts::KEY;
use dstack_sim::{World, invariants, killed_everywhere};
use dstack_store::Commit;
use dstack_store::rows::{FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, NewGateway};
use dstack_units::{FleetId, GatewayId};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn lab(world: &World, engine: &Engine, hosts: &[&str]) -> FleetId {
    let key = json!({"public": "", "private": KEY});
    let configuration = json!({"ssh_config": {"user": "me", "ssh_key": key, "hosts": hosts}});
    let fleet = world.apply_fleet(engine, "lab", &configuration).await.unwrap();
    let count = hosts.len();
    let is_idle =
        move |row: &&InstanceRow| row.status() == InstanceStatus::Idle && row.fleet_id == Some(fleet);
    let ready = move |world: &World| world.store.tables().instances.values().filter(is_idle).count() == count;
    world
        .until("the hosts are set up", 5 * MINUTE, ready)
        .await
        .unwrap();
    fleet
}

fn row(world: &World, id: GatewayId) -> Option<GatewayRow> {
    world.store.read(|tables| tables.gateways.get(&id).cloned())
}

fn status(world: &World, id: GatewayId) -> Option<GatewayStatus> {
    row(world, id).map(|row| row.status())
}

/// A gateway as the API stores it.
async fn submitted(world: &World, engine: &Engine, more: &Value) -> GatewayId {
    let id = world.builder.random.uuid().into();
    let mut configuration = json!({"type": "gateway", "name": "gate", "backend": "remote", "region": "lab"});
    for (name, value) in more.as_object().unwrap() {
        configuration[name] = value.clone();
    }
    let new = NewGateway {
        id,
        project: world.builder.project,
        name: "gate".to_owned(),
        configuration: serde_json::from_value(configuration).unwrap(),
        backend: None,
    };
    let mut changes = world.builder.changes(world.clock.now());
    changes.insert(
        GatewayRow::submitted(new, world.clock.now()),
        "Gateway created. Status: SUBMITTED",
    );
    engine.commit(Commit::from(changes)).await.unwrap();
    id
}

/// As the API changes it: again where the engine was faster, or died before it was done.
async fn changed(world: &World, engine: &Engine, id: GatewayId, change: impl Fn(&mut GatewayRow)) {
    loop {
        let before = row(world, id).unwrap();
        let mut after = before.clone();
        change(&mut after);
        let mut changes = world.builder.changes(world.clock.now());
        changes.update(&before, after);
        match engine.commit(Commit::from(changes)).await {
            Err(EngineError::Store(error)) if error.is_conflict() => {}
            Err(EngineError::Killed(_)) if row(world, id).unwrap().version == before.version => {}
            Err(EngineError::Killed(_)) => return,
            done => return done.unwrap(),
        }
    }
}

async fn deleted(world: &World, engine: &Engine, id: GatewayId) {
    let now = world.clock.now();
    changed(world, engine, id, |row| row.mark_for_deletion(now)).await;
}

async fn becomes(world: &World, id: GatewayId, wanted: GatewayStatus, within: Duration) {
    let is = move |world: &World| status(world, id) == Some(wanted);
    world.until(&format!("{wanted:?}"), within, is).await.unwrap();
}

async fn is_gone(world: &World, id: GatewayId, within: Duration) {
    let gone = move |world: &World| row(world, id).is_none();
    world.until("the gateway is gone", within, gone).await.unwrap();
}

fn builds(hosts: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(host, build): &(&str, &str)| ((*host).to_owned(), (*build).to_owned());
    hosts.iter().map(owned).collect()
}

#[tokio::test(start_paused = true)]
async fn a_gateway_runs_on_hosts_of_a_fleet_and_leaves_nothing_there() {
    let world = World::new(1, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    lab(&world, &engine, &["a", "bb", "ccc"]).await;
    let id = submitted(&world, &engine, &json!({"replicas": 2})).await;
    becomes(&world, id, GatewayStatus::Running, MINUTE).await;
    assert_eq!(
        world.ssh_hosts.gateways(),
        builds(&[("a", "build-1"), ("bb", "build-1")])
    );
    let replicas: Vec<_> = world.store.tables().gateway_replicas.into_values().collect();
    let first = replicas.iter().find(|row| row.replica_num == 0).unwrap();
    let place = first.provisioning_data.as_deref().unwrap();
    assert_eq!((place.ip_address.as_str(), first.name.as_str()), ("a", "gate-0"));

    deleted(&world, &engine, id).await;
    is_gone(&world, id, MINUTE).await;
    assert_eq!(world.ssh_hosts.gateways(), builds(&[]));
    assert!(world.store.tables().gateway_replicas.is_empty());
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn replicas_follow_their_number_their_hosts_and_the_build_of_the_agent() {
    let world = World::new(2, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = lab(&world, &engine, &["a", "bb"]).await;
    let id = submitted(&world, &engine, &json!({})).await;
    becomes(&world, id, GatewayStatus::Running, MINUTE).await;
    changed(&world, &engine, id, |row| {
        let mut configuration = (*row.configuration).clone();
        configuration.replicas = Some(2);
        row.configuration = dstack_store::Json::new(configuration);
    })
    .await;
    let both = |world: &World| world.ssh_hosts.gateways().len() == 2;
    world.until("there are two", MINUTE, both).await.unwrap();

    world.ssh_hosts.carry("build-2");
    let newer = |world: &World| world.ssh_hosts.gateways() == builds(&[("a", "build-2"), ("bb", "build-2")]);
    world
        .until("both are of the new build", 20 * MINUTE, newer)
        .await
        .unwrap();
    assert_eq!(status(&world, id), Some(GatewayStatus::Running));

    // A host leaves its fleet, and the gateway with it; there is no other host.
    world.end_fleet(&engine, fleet, Some(&[0])).await.unwrap();
    let one = |world: &World| world.ssh_hosts.gateways() == builds(&[("bb", "build-2")]);
    world.until("one is left", 10 * MINUTE, one).await.unwrap();
    let waits = |world: &World| row(world, id).is_some_and(|row| row.waiting_for().is_some());
    world
        .until("it waits for a host", 10 * MINUTE, waits)
        .await
        .unwrap();
    assert_eq!(status(&world, id), Some(GatewayStatus::Running));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_at_the_host_is_said_and_nothing_stays() {
    let world = World::new(3, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    lab(&world, &engine, &["a"]).await;
    let taken = HostError::Transient("port 80 is taken".to_owned());
    world.ssh_hosts.gateway_trouble("a", Some(taken));
    let id = submitted(&world, &engine, &json!({})).await;
    becomes(&world, id, GatewayStatus::Failed, 15 * MINUTE).await;
    let message = row(&world, id).unwrap().status_message().unwrap().to_owned();
    assert!(
        message.contains("not set up within 10 minutes: port 80 is taken"),
        "{message}"
    );
    let over = |world: &World| {
        world
            .store
            .tables()
            .gateway_replicas
            .values()
            .all(GatewayReplicaRow::is_over)
    };
    world
        .until("its replica is over", 5 * MINUTE, over)
        .await
        .unwrap();
    world.ssh_hosts.gateway_trouble("a", None);
    deleted(&world, &engine, id).await;
    is_gone(&world, id, MINUTE).await;
    // The host is free again.
    let next = submitted(&world, &engine, &json!({})).await;
    becomes(&world, next, GatewayStatus::Running, MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn two_gateways_do_not_share_a_host() {
    let world = World::new(4, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    lab(&world, &engine, &["a"]).await;
    let first = submitted(&world, &engine, &json!({})).await;
    becomes(&world, first, GatewayStatus::Running, MINUTE).await;
    let second = submitted(&world, &engine, &json!({"name": "other"})).await;
    becomes(&world, second, GatewayStatus::Failed, 15 * MINUTE).await;
    let message = row(&world, second).unwrap().status_message().unwrap().to_owned();
    assert!(message.starts_with("No host of fleet lab can take"), "{message}");
    let missing = submitted(&world, &engine, &json!({"region": "nowhere"})).await;
    becomes(&world, missing, GatewayStatus::Failed, MINUTE).await;
}

/// A gateway is made and deleted, its fleet after it, by an engine that is killed at a failpoint, and another that goes on.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = World::new(5, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let fleet = lab(&world, &engine, &["a", "bb"]).await;
    let id = submitted(&world, &engine, &json!({"replicas": 2})).await;
    engine.stop();
    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    let runs = async |_: &Engine| becomes(&world, id, GatewayStatus::Running, 5 * MINUTE).await;
    world.outliving(&mut engine, runs).await.unwrap();
    let delete = async |engine: &Engine| {
        if row(&world, id).is_some_and(|row| !row.to_be_deleted) {
            deleted(&world, engine, id).await;
        }
    };
    world.outliving(&mut engine, delete).await.unwrap();
    let gone = async |_: &Engine| is_gone(&world, id, 5 * MINUTE).await;
    world.outliving(&mut engine, gone).await.unwrap();
    assert_eq!(
        world.ssh_hosts.gateways(),
        builds(&[]),
        "killed at {point} #{nth}"
    );
    let end = async |engine: &Engine| world.end_fleet(engine, fleet, None).await.unwrap();
    world.outliving(&mut engine, end).await.unwrap();
    let is_over = |row: &FleetRow| row.status() == FleetStatus::Terminated;
    let over = async |_: &Engine| {
        let over = |world: &World| is_over(&world.store.tables().fleets[&fleet]);
        world.until("the fleet is over", 5 * MINUTE, over).await.unwrap();
    };
    world.outliving(&mut engine, over).await.unwrap();
    engine.stop();
    let left = invariants::at_rest(&world);
    assert_eq!(left, Vec::<String>::new(), "killed at {point} #{nth}");
    die
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_goes_on_where_it_was() {
    let points = killed_everywhere(1..=4, killed_at).await;
    for point in [
        "gateway.prepare.before",
        "gateway.prepare.after",
        "gateway.release.before",
        "gateway.release.after",
        "gateway.commit.after",
        "gateway-replica.commit.after",
    ] {
        assert!(points.contains(point), "{point} is not passed: {points:?}");
    }
}

fn on_cloud(more: &Value) -> Value {
    let mut configuration = json!({"backend": "aws", "region": "here"});
    for (name, value) in more.as_object().unwrap() {
        configuration[name] = value.clone();
    }
    configuration
}

fn replicas(world: &World) -> Vec<GatewayReplicaRow> {
    world.store.tables().gateway_replicas.into_values().collect()
}

/// Where the gateway's replicas that run are.
fn addresses(world: &World) -> Vec<String> {
    let running = replicas(world)
        .into_iter()
        .filter(|row| row.is_active() && row.reach.is_some());
    let address = |row: GatewayReplicaRow| row.provisioning_data.unwrap().ip_address.clone();
    let mut all: Vec<String> = running.map(address).collect();
    all.sort_unstable();
    all
}

#[tokio::test(start_paused = true)]
async fn a_cloud_makes_the_machines_of_a_gateway_and_they_end_with_it() {
    let world = World::new(6, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = submitted(&world, &engine, &on_cloud(&json!({"replicas": 2}))).await;
    becomes(&world, id, GatewayStatus::Running, MINUTE).await;
    assert_eq!(world.clouds.gateway_machines().len(), 2);
    assert_eq!(
        world.ssh_hosts.gateways(),
        builds(&[("10.9.0.1", "build-1"), ("10.9.0.2", "build-1")])
    );
    assert_eq!(addresses(&world), ["10.9.0.1", "10.9.0.2"]);

    world.ssh_hosts.carry("build-2");
    let newer = |world: &World| {
        world.ssh_hosts.gateways() == builds(&[("10.9.0.1", "build-2"), ("10.9.0.2", "build-2")])
    };
    world
        .until("both are of the new build", 20 * MINUTE, newer)
        .await
        .unwrap();

    // One more than is wanted goes, machine and all.
    changed(&world, &engine, id, |row| {
        let mut configuration = (*row.configuration).clone();
        configuration.replicas = Some(1);
        row.configuration = dstack_store::Json::new(configuration);
    })
    .await;
    let one = |world: &World| world.clouds.gateway_machines().len() == 1;
    world.until("one is left", 5 * MINUTE, one).await.unwrap();

    deleted(&world, &engine, id).await;
    is_gone(&world, id, MINUTE).await;
    assert_eq!(invariants::nothing_left(&world), Vec::<String>::new());
}

/// A failed gateway may be deleted at any time later: whoever drove it before still does.
#[tokio::test(start_paused = true)]
async fn a_gateway_for_which_no_machine_is_to_be_had_fails_with_the_reason_and_is_gone_soon_after_its_deletion()
 {
    let world = World::new(7, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    world.clouds.full_of_gateways(true);
    let id = submitted(&world, &engine, &on_cloud(&json!({}))).await;
    becomes(&world, id, GatewayStatus::Failed, MINUTE).await;
    let reason = row(&world, id).unwrap().status_message().unwrap().to_owned();
    assert!(
        reason.starts_with("Failed to provision gateway replica: ") && reason.contains("no machine left"),
        "{reason}"
    );

    // Longer than until everything is claimed again.
    world.pass(120 * SECOND).await;
    deleted(&world, &engine, id).await;
    is_gone(&world, id, SECOND).await;
    let events = world.store.read(|tables| {
        let of_gateways = tables.events.iter();
        let of_gateways = of_gateways.filter(|event| {
            event.message.starts_with("Gateway") && !event.message.starts_with("Gateway replica")
        });
        of_gateways.map(|event| event.message.clone()).collect::<Vec<_>>()
    });
    let failed = format!("Gateway status changed PROVISIONING -> FAILED ({reason})");
    assert_eq!(
        events,
        [
            "Gateway created. Status: SUBMITTED",
            "Gateway status changed SUBMITTED -> PROVISIONING",
            &failed,
            "Gateway deleted"
        ]
    );

    world.clouds.gone(true);
    let id = submitted(&world, &engine, &on_cloud(&json!({}))).await;
    becomes(&world, id, GatewayStatus::Failed, MINUTE).await;
    let reason = row(&world, id).unwrap().status_message().unwrap().to_owned();
    assert!(reason.contains("not configured for gateways"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_moves_is_followed_and_one_that_is_lost_is_replaced() {
    let world = World::new(8, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = submitted(&world, &engine, &on_cloud(&json!({}))).await;
    becomes(&world, id, GatewayStatus::Running, MINUTE).await;
    let away = |address: &str, is_away: bool| {
        let trouble = HostError::Transient("no route".to_owned());
        world
            .ssh_hosts
            .gateway_trouble(address, is_away.then_some(trouble));
    };

    // It was stopped and started by its owner.
    let replica = replicas(&world)[0].id;
    away("10.9.0.1", true);
    world.clouds.move_gateway("10.9.0.1", "10.9.0.77");
    world.ssh_hosts.is_the_one_of("10.9.0.77", "10.9.0.1");
    world.services.gateway_is_silent(replica, true);
    let moved = |world: &World| addresses(world) == ["10.9.0.77"];
    world.until("it is followed", 10 * MINUTE, moved).await.unwrap();
    world.services.gateway_is_silent(replica, false);
    assert_eq!(status(&world, id), Some(GatewayStatus::Running));

    away("10.9.0.77", true);
    world.clouds.lose_gateways();
    world.services.gateway_is_silent(replica, true);
    let replaced = |world: &World| addresses(world) == ["10.9.0.2"];
    world
        .until("it is replaced", 20 * MINUTE, replaced)
        .await
        .unwrap();
    assert_eq!(status(&world, id), Some(GatewayStatus::Running));
    deleted(&world, &engine, id).await;
    is_gone(&world, id, 5 * MINUTE).await;
    assert_eq!(invariants::nothing_left(&world), Vec::<String>::new());
}

/// Whoever is at its address now is not given what the gateway has.
#[tokio::test(start_paused = true)]
async fn a_machine_that_shows_another_key_is_not_taken_for_the_one_that_was_made() {
    let world = World::new(10, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = submitted(&world, &engine, &on_cloud(&json!({}))).await;
    becomes(&world, id, GatewayStatus::Running, MINUTE).await;
    let replica = replicas(&world)[0].id;
    world.ssh_hosts.carry("build-2");
    world.ssh_hosts.is_the_one_of("10.9.0.1", "somebody");
    world.services.gateway_is_silent(replica, true);
    let refuses = |world: &World| {
        let reason = replicas(world)[0].waiting_for().map(ToString::to_string);
        reason.is_some_and(|reason| reason.contains("the host key was"))
    };
    world.until("it is refused", 10 * MINUTE, refuses).await.unwrap();
    world.pass(30 * MINUTE).await;
    assert_eq!(world.ssh_hosts.gateways(), builds(&[("10.9.0.1", "build-1")]));
    assert_eq!(
        (status(&world, id), world.clouds.gateway_machines().len()),
        (Some(GatewayStatus::Running), 1)
    );

    // It was only away.
    world.ssh_hosts.is_the_one_of("10.9.0.1", "10.9.0.1");
    let newer = |world: &World| world.ssh_hosts.gateways() == builds(&[("10.9.0.1", "build-2")]);
    world.until("it is set up", 20 * MINUTE, newer).await.unwrap();
}

/// A gateway is made and deleted in a cloud, by an engine that is killed at a failpoint, and another that goes on.
async fn killed_in_cloud_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = World::new(9, 1).await.unwrap();
    world.clouds.be_unreliable();
    let engine = world.start().await.unwrap();
    let id = submitted(&world, &engine, &on_cloud(&json!({"replicas": 2}))).await;
    engine.stop();
    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    let settled = async |_: &Engine| {
        let settled = |world: &World| {
            matches!(
                status(world, id),
                Some(GatewayStatus::Running | GatewayStatus::Failed)
            )
        };
        world
            .until("it runs or has failed", 40 * MINUTE, settled)
            .await
            .unwrap();
    };
    world.outliving(&mut engine, settled).await.unwrap();
    let delete = async |engine: &Engine| {
        if row(&world, id).is_some_and(|row| !row.to_be_deleted) {
            deleted(&world, engine, id).await;
        }
    };
    world.outliving(&mut engine, delete).await.unwrap();
    let gone = async |_: &Engine| is_gone(&world, id, 40 * MINUTE).await;
    world.outliving(&mut engine, gone).await.unwrap();
    engine.stop();
    // What was asked for last takes effect late.
    world.pass(5 * MINUTE).await;
    let left = invariants::nothing_left(&world);
    assert_eq!(left, Vec::<String>::new(), "killed at {point} #{nth}");
    die
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_leaves_no_machine_in_the_cloud() {
    let points = killed_everywhere(1..=4, killed_in_cloud_at).await;
    for point in [
        "cloud.create.before",
        "cloud.create.after",
        "gateway.greet.before",
        "gateway.greet.after",
        "gateway.prepare.before",
        "gateway.prepare.after",
        "cloud.remove.before",
        "cloud.remove.after",
        "gateway-replica.commit.after",
    ] {
        assert!(points.contains(point), "{point} is not passed: {points:?}");
    }
}

fn balanced(more: &Value) -> Value {
    let mut configuration =
        on_cloud(&json!({"replicas": 2, "load_balancer": {"type": "alb"}, "certificate": null}));
    for (name, value) in more.as_object().unwrap() {
        configuration[name] = value.clone();
    }
    configuration
}

/// Ids of the machines behind the one load balancer.
fn behind(world: &World) -> Vec<String> {
    let mut all = world.clouds.load_balancers();
    all.pop().map(|balancer| balancer.machines).unwrap_or_default()
}

fn ids(world: &World) -> Vec<String> {
    let mut ids: Vec<String> = world
        .clouds
        .gateway_machines()
        .iter()
        .map(|machine| machine.replica.to_string())
        .collect();
    ids.sort_unstable();
    ids
}

async fn wants(world: &World, engine: &Engine, id: GatewayId, replicas: i64) {
    changed(world, engine, id, |row| {
        let mut configuration = (*row.configuration).clone();
        configuration.replicas = Some(replicas);
        row.configuration = dstack_store::Json::new(configuration);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_has_the_machines_that_serve_and_lets_go_of_one_before_it_ends() {
    let world = World::new(12, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = submitted(&world, &engine, &balanced(&json!({}))).await;
    becomes(&world, id, GatewayStatus::Running, 5 * MINUTE).await;
    assert_eq!((behind(&world).len(), behind(&world)), (2, ids(&world)));
    assert!(
        row(&world, id)
            .unwrap()
            .hostname
            .unwrap()
            .ends_with(".lb.example")
    );

    wants(&world, &engine, id, 3).await;
    let three = |world: &World| behind(world).len() == 3;
    world
        .until("the third one is behind it", 5 * MINUTE, three)
        .await
        .unwrap();

    wants(&world, &engine, id, 1).await;
    let one = |world: &World| world.clouds.gateway_machines().len() == 1;
    world.until("one is left", 10 * MINUTE, one).await.unwrap();
    assert_eq!(behind(&world), ids(&world));
    assert_eq!(
        world.clouds.cut_off(),
        Vec::<String>::new(),
        "each has ended without requests"
    );

    // One that is lost is replaced, and nobody waits for it.
    let replica = replicas(&world)
        .into_iter()
        .find(GatewayReplicaRow::is_active)
        .unwrap()
        .id;
    world.clouds.lose_gateways();
    let trouble = HostError::Transient("no route".to_owned());
    let address = addresses(&world).remove(0);
    world.ssh_hosts.gateway_trouble(&address, Some(trouble));
    world.services.gateway_is_silent(replica, true);
    let replaced = |world: &World| behind(world).len() == 1 && behind(world) == ids(world);
    world
        .until("another is behind it", 20 * MINUTE, replaced)
        .await
        .unwrap();

    deleted(&world, &engine, id).await;
    is_gone(&world, id, 5 * MINUTE).await;
    assert_eq!(invariants::nothing_left(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_gateway_whose_load_balancer_cannot_be_had_fails_with_the_reason() {
    let world = World::new(13, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    world.clouds.refuse_load_balancers("two zones are needed");
    let id = submitted(&world, &engine, &balanced(&json!({}))).await;
    becomes(&world, id, GatewayStatus::Failed, MINUTE).await;
    let reason = row(&world, id).unwrap().status_message().unwrap().to_owned();
    assert!(
        reason.starts_with("Failed to create the load balancer: ") && reason.contains("two zones are needed"),
        "{reason}"
    );
    assert_eq!(invariants::nothing_left(&world), Vec::<String>::new());
    deleted(&world, &engine, id).await;
    is_gone(&world, id, MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_deleted_while_its_load_balancer_is_made_leaves_nothing() {
    let world = World::new(16, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    world.clouds.never_finish_load_balancers();
    let id = submitted(&world, &engine, &balanced(&json!({}))).await;
    let begun = |world: &World| world.clouds.load_balancers().len() == 1;
    world.until("it is being made", MINUTE, begun).await.unwrap();
    deleted(&world, &engine, id).await;
    is_gone(&world, id, 5 * MINUTE).await;
    assert_eq!(invariants::nothing_left(&world), Vec::<String>::new());
}

/// It goes on with the machines that it has, says what is in the way, and has the others once that is mended.
#[tokio::test(start_paused = true)]
async fn a_load_balancer_that_refuses_machines_is_told_again_also_while_a_replica_is_missing() {
    let world = World::new(15, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = submitted(&world, &engine, &balanced(&json!({"replicas": 1}))).await;
    becomes(&world, id, GatewayStatus::Running, 5 * MINUTE).await;
    world.clouds.refuse_to_balance(true);
    wants(&world, &engine, id, 2).await;
    let two = |world: &World| addresses(world).len() == 2;
    world
        .until("the second one serves", 5 * MINUTE, two)
        .await
        .unwrap();
    world.clouds.full_of_gateways(true);
    wants(&world, &engine, id, 3).await;
    world.pass(5 * MINUTE).await;
    assert_eq!(
        (behind(&world).len(), status(&world, id)),
        (1, Some(GatewayStatus::Running))
    );
    world.clouds.refuse_to_balance(false);
    let both = |world: &World| behind(world).len() == 2;
    world
        .until("the second one is behind it", MINUTE, both)
        .await
        .unwrap();
    deleted(&world, &engine, id).await;
    is_gone(&world, id, 5 * MINUTE).await;
    assert_eq!(invariants::nothing_left(&world), Vec::<String>::new());
}

/// A gateway behind a load balancer is made, made smaller and deleted by an engine that is killed at a failpoint, and another that goes on.
async fn killed_behind_a_load_balancer(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = World::new(14, 1).await.unwrap();
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start().await.unwrap();
    let id = submitted(&world, &engine, &balanced(&json!({}))).await;
    engine.stop();
    let mut engine = world.start_dying(&die).await.unwrap();
    let runs = async |_: &Engine| becomes(&world, id, GatewayStatus::Running, 10 * MINUTE).await;
    world.outliving(&mut engine, runs).await.unwrap();
    assert_eq!(behind(&world), ids(&world), "killed at {point} #{nth}");
    let smaller = async |engine: &Engine| wants(&world, engine, id, 1).await;
    world.outliving(&mut engine, smaller).await.unwrap();
    let one = async |_: &Engine| {
        let one = |world: &World| world.clouds.gateway_machines().len() == 1;
        world.until("one is left", 10 * MINUTE, one).await.unwrap();
    };
    world.outliving(&mut engine, one).await.unwrap();
    assert_eq!(
        world.clouds.cut_off(),
        Vec::<String>::new(),
        "killed at {point} #{nth}"
    );
    let delete = async |engine: &Engine| {
        if row(&world, id).is_some_and(|row| !row.to_be_deleted) {
            deleted(&world, engine, id).await;
        }
    };
    world.outliving(&mut engine, delete).await.unwrap();
    let gone = async |_: &Engine| is_gone(&world, id, 10 * MINUTE).await;
    world.outliving(&mut engine, gone).await.unwrap();
    engine.stop();
    let left = invariants::nothing_left(&world);
    assert_eq!(left, Vec::<String>::new(), "killed at {point} #{nth}");
    die
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_leaves_no_load_balancer() {
    let points = killed_everywhere(1..=4, killed_behind_a_load_balancer).await;
    for point in [
        "cloud.create.before",
        "cloud.remove.before",
        "gateway.balance.before",
        "gateway.balance.after",
    ] {
        assert!(points.contains(point), "{point} is not passed: {points:?}");
    }
}
