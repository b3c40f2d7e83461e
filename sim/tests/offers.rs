//! Which offers of clouds are tried, in which order, and how long each.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::time::Duration;

use dstack_model::instances::InstanceStatus;
use dstack_model::runs::RunStatus;
use dstack_sim::{World, invariants};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

/// A plain fleet with these fields besides.
async fn world(seed: u64, fields: Value) -> (World, dstack_engine::Engine) {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer_in(&[
        ("slow", "there", &["there-a"]),
        ("small", "here", &["here-a", "here-b"]),
        ("large", "here", &["here-b"]),
    ]);
    let engine = world.start().await.unwrap();
    let mut fleet = json!({"nodes": "0..2"});
    let all = fleet.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    world.apply_fleet(&engine, "cloud", &fleet).await.unwrap();
    (world, engine)
}

/// The next offer is asked for once nothing of the one before is left.
#[tokio::test(start_paused = true)]
async fn an_offer_that_is_not_made_in_its_time_makes_way_for_the_next() {
    let (world, engine) = world(1, json!({})).await;
    world.clouds.never_ready(&["slow"]);
    let run = world
        .submit(&engine, "train", &json!({"fleets": ["cloud"]}))
        .await
        .unwrap();
    let begun = |world: &World| world.clouds.machines().len() == 1;
    world.until("the first machine", MINUTE, begun).await.unwrap();
    let alone = |world: &World| world.clouds.asked() == ["slow"] && world.clouds.machines().len() == 1;
    world
        .throughout("it is waited for", 9 * MINUTE, alone)
        .await
        .unwrap();
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["slow", "small"]);
    let machines = world.clouds.machines();
    assert_eq!(machines.len(), 1);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
    let place = ("here".to_owned(), Some("here-a".to_owned()));
    assert_eq!(
        (machines[0].offer.as_str(), &machines[0].place),
        ("small", &place)
    );
}

#[tokio::test(start_paused = true)]
async fn offers_that_are_never_made_end_the_job_in_bounded_time() {
    let (world, engine) = world(2, json!({})).await;
    world.clouds.never_ready(&["slow", "small", "large"]);
    let run = world
        .submit(&engine, "train", &json!({"fleets": ["cloud"]}))
        .await
        .unwrap();
    assert_eq!(
        world.finished(&run, 35 * MINUTE).await.unwrap(),
        RunStatus::Failed
    );
    assert_eq!(world.clouds.asked(), ["slow", "small", "large"]);
    let nothing = |world: &World| invariants::nothing_left(world).is_empty();
    world.until("nothing is left", MINUTE, nothing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_reserved_is_made_of_the_reservation_where_clouds_can() {
    let instance = |world: &World| {
        let tables = world.store.tables();
        let mut rows = tables.instances.into_values();
        rows.find(|row| row.name == "cloud-0")
    };
    let (world_without, _engine) = world(3, json!({"nodes": 1, "reservation": "r-1"})).await;
    let over = |world: &World| instance(world).is_some_and(|row| row.status() == InstanceStatus::Terminated);
    world_without
        .until("nothing is offered", MINUTE, over)
        .await
        .unwrap();
    assert!(world_without.clouds.asked().is_empty());
    let (world, engine) = world(4, json!({"reservation": "r-1"})).await;
    world.clouds.has_reservations();
    for (name, wants) in [
        ("of-the-fleet", json!({"fleets": ["cloud"]})),
        ("of-the-run", json!({"fleets": ["cloud"], "reservation": "r-1"})),
    ] {
        let run = world.submit(&engine, name, &wants).await.unwrap();
        assert_eq!(
            world.finished(&run, 5 * MINUTE).await.unwrap(),
            RunStatus::Done,
            "{name}"
        );
    }
    let machines = world.clouds.machines();
    assert!(!machines.is_empty());
    assert!(
        machines
            .iter()
            .all(|machine| machine.reservation.as_deref() == Some("r-1"))
    );
    // A fleet of one reservation makes nothing of another.
    let (world, engine) = self::world(5, json!({"reservation": "r-1"})).await;
    world.clouds.has_reservations();
    let other = json!({"fleets": ["cloud"], "reservation": "r-2"});
    let run = world.submit(&engine, "of-another", &other).await.unwrap();
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Failed);
    assert!(world.clouds.asked().is_empty());
}
