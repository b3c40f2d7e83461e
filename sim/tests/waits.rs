//! What all other tests here wait with: it sees each change when it comes, and says what it waited for in vain.

#![allow(clippy::unwrap_used)] // tests

use std::time::Duration;

use dstack_engine::Agents;
use dstack_plan::placement::HostRules;
use dstack_sim::World;
use dstack_store::EngineStore;
use dstack_store::rows::AgentAddress;
use futures_util::future::join;

const SECOND: Duration = Duration::from_secs(1);

async fn world() -> World {
    World::new(1, 1).await.unwrap()
}

/// Adds a fleet.
async fn add(world: &World, name: &str) {
    world.cloud_fleet(name, "0..1").await.unwrap();
}

fn has(world: &World, name: &str) -> bool {
    let tables = world.store.tables();
    tables.fleets.values().any(|fleet| fleet.name == name)
}

async fn remove(world: &World, name: &str) {
    let tables = world.store.tables();
    let mut fleet = tables
        .fleets
        .into_values()
        .find(|fleet| fleet.name == name)
        .unwrap();
    fleet.name = "another".to_owned();
    let mut changes = world.builder.changes(world.clock.now());
    changes.touch(fleet);
    world.store.commit(changes.into_commit()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_there_is_not_waited_for() {
    let world = world().await;
    add(&world, "new").await;
    let before = world.clock.now();
    world
        .until("it", SECOND, |world| has(world, "new"))
        .await
        .unwrap();
    assert_eq!(world.clock.now(), before);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_each_part_is_seen_when_it_comes() {
    let world = world().await;
    let shim = world.hosts.shim(
        &AgentAddress::Local {
            runtime: "process".to_owned(),
            host: String::new(),
            rules: HostRules::default(),
        },
        None,
    );
    let mut looks = Vec::new();
    let looking = world.throughout("it", 9 * SECOND, |world| {
        looks.push(world.clock.now());
        true
    });
    let begin = world.clock.now();
    let changes = async {
        world.pass(SECOND).await;
        add(&world, "new").await;
        world.pass(SECOND).await;
        world.clouds.offer(&["small"]);
        world.pass(SECOND).await;
        shim.health().await.unwrap();
    };
    join(looking, changes).await.0.unwrap();
    let seen: Vec<u64> = looks.iter().map(|at| at.since(begin).as_secs()).collect();
    assert_eq!(seen, [0, 1, 2, 3, 9]);
}

#[tokio::test(start_paused = true)]
async fn what_comes_too_late_fails_and_says_what_is_there() {
    let world = world().await;
    let late = async {
        world.pass(2 * SECOND).await;
        add(&world, "new").await;
    };
    let waiting = world.until("the new fleet", SECOND, |world| has(world, "new"));
    let error = join(waiting, late).await.0.unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("not within 1s: the new fleet\nThere is:\n"),
        "{text}"
    );
    assert!(text.contains("\ninstance local-0: Idle, 0 busy blocks"), "{text}");
    assert_eq!(format!("{error:?}"), text);
}

#[tokio::test(start_paused = true)]
async fn what_must_hold_all_the_time_may_not_fail_for_a_millisecond() {
    let world = world().await;
    add(&world, "new").await;
    let blink = async {
        world.pass(SECOND / 2).await;
        remove(&world, "new").await;
        world.pass(Duration::from_millis(1)).await;
        add(&world, "new").await;
    };
    let looking = world.throughout("the new fleet", SECOND, |world| has(world, "new"));
    let error = join(looking, blink).await.0.unwrap_err().to_string();
    // The commit took one.
    assert!(
        error.starts_with("no longer after 501ms: the new fleet\n"),
        "{error}"
    );
}
