//! Gateways, which no cloud of this version makes: they fail with the reason, and are gone when they are deleted.

#![allow(clippy::unwrap_used)] // tests

use std::time::Duration;

use dstack_model::gateways::GatewayStatus;
use dstack_sim::World;
use dstack_store::Commit;
use dstack_store::rows::{GatewayRow, NewGateway};
use dstack_units::GatewayId;
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);

fn row(world: &World, id: GatewayId) -> Option<GatewayRow> {
    world.store.read(|tables| tables.gateways.get(&id).cloned())
}

/// A failed gateway may be deleted at any time later: whoever drove it before still does.
#[tokio::test(start_paused = true)]
async fn a_gateway_fails_with_the_reason_and_is_gone_soon_after_its_deletion() {
    let world = World::new(1, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = world.builder.random.uuid().into();
    let configuration = json!({"type": "gateway", "name": "gate", "backend": "aws", "region": "here"});
    let new = NewGateway {
        id,
        project: world.builder.project,
        name: "gate".to_owned(),
        configuration: serde_json::from_value(configuration).unwrap(),
        backend: "b".to_owned(),
    };
    let mut changes = world.builder.changes(world.clock.now());
    changes.insert(
        GatewayRow::submitted(new, world.clock.now()),
        "Gateway created. Status: SUBMITTED",
    );
    engine.commit(Commit::from(changes)).await.unwrap();
    let failed = |world: &World| row(world, id).is_some_and(|row| row.status() == GatewayStatus::Failed);
    world.until("it has failed", SECOND, failed).await.unwrap();
    let reason = "This server version cannot create gateways yet";
    assert_eq!(row(&world, id).unwrap().status_message(), Some(reason));

    // Longer than until everything is claimed again.
    world.pass(120 * SECOND).await;
    let before = row(&world, id).unwrap();
    let mut marked = before.clone();
    marked.mark_for_deletion(world.clock.now());
    let mut changes = world.builder.changes(world.clock.now());
    changes.update(&before, marked);
    engine.commit(Commit::from(changes)).await.unwrap();
    let gone = |world: &World| row(world, id).is_none();
    world.until("it is gone", SECOND, gone).await.unwrap();
    let events = world.store.read(|tables| {
        let of_gateways = tables.events.iter();
        let of_gateways = of_gateways.filter(|event| event.message.starts_with("Gateway"));
        of_gateways.map(|event| event.message.clone()).collect::<Vec<_>>()
    });
    let failed = format!("Gateway status changed SUBMITTED -> FAILED ({reason})");
    assert_eq!(
        events,
        ["Gateway created. Status: SUBMITTED", &failed, "Gateway deleted"]
    );
}
