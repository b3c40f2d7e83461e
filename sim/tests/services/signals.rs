//! Services whose number of replicas follows other signals than requests per second.

use dstack_engine::services::Measured;
use dstack_plan::services::pages::Told;
use dstack_plan::services::signals::{Observed, Times};

use super::scaling::{live, submitted_to, until_running};
use super::*;

/// Adds after a minute, and takes away after two.
fn service(replicas: &str, signals: &Value) -> Value {
    let scaling = json!({"signals": signals, "window": "30s", "scale_up_delay": 60, "scale_down_delay": 120});
    json!({"type": "service", "port": 8000, "commands": ["v1"], "replicas": replicas, "scaling": scaling})
}

async fn submitted(seed: u64, replicas: &str, signals: &Value) -> (World, Engine, RunRow) {
    submitted_to(World::new(seed, 8).await.unwrap(), &service(replicas, signals)).await
}

fn queue(waiting: f64) -> Told {
    Told {
        queue: Observed::Is(waiting),
        ..Told::default()
    }
}

fn under_way(requests: f64) -> Measured {
    Measured {
        concurrency: Observed::Is(requests),
        ..Measured::default()
    }
}

fn events(world: &World) -> Vec<String> {
    world.store.read(|tables| {
        let scaled = tables.events.iter().map(|event| event.message.clone());
        scaled
            .filter(|message| message.starts_with("Replicas of group"))
            .collect()
    })
}

#[tokio::test(start_paused = true)]
async fn replicas_follow_their_queues_in_steps_and_stay_while_those_are_unknown() {
    let (world, _engine, run) =
        submitted(521, "1..4", &json!([{"metric": "queue_length", "target": 2}])).await;
    world.services.load(run.id, Some(30));
    until_running(&world, &run, 1, MINUTE).await;
    world.services.tell(queue(100.0));
    let began = world.clock.now();
    until_running(&world, &run, 2, 2 * MINUTE).await;
    until_running(&world, &run, 4, 2 * MINUTE).await;
    assert!(
        world.clock.now().since(began) >= MINUTE,
        "each step waits for its delay"
    );
    world.services.tell(Told::default());
    world
        .throughout("nothing is known", 10 * MINUTE, |world| live(world, &run) == 4)
        .await
        .unwrap();
    world.services.tell(queue(0.0));
    for fewer in [3, 2, 1] {
        until_running(&world, &run, fewer, 3 * MINUTE).await;
    }
    assert_eq!(
        events(&world),
        [
            "Replicas of group 0 changed 1 -> 2 (queue_length)",
            "Replicas of group 0 changed 2 -> 4 (queue_length)",
            "Replicas of group 0 changed 4 -> 3 (queue_length)",
            "Replicas of group 0 changed 3 -> 2 (queue_length)",
            "Replicas of group 0 changed 2 -> 1 (requests)",
        ]
    );
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn replicas_follow_the_requests_under_way_and_how_long_clients_wait() {
    let signals = json!([
        {"metric": "concurrency", "target": 8},
        {"metric": "time_to_first_token", "target": "2s"},
    ]);
    let (world, _engine, run) = submitted(522, "1..4", &signals).await;
    world.services.load(run.id, Some(30));
    until_running(&world, &run, 1, MINUTE).await;
    let waited = |seconds: f64| {
        Some(Times {
            count: 10,
            seconds: seconds * 10.0,
        })
    };
    world.services.measure(
        run.id,
        Measured {
            first_pieces: waited(1.0),
            ..under_way(20.0)
        },
    );
    until_running(&world, &run, 3, 2 * MINUTE).await;
    // What replicas say of themselves counts more.
    world.services.tell(Told {
        first_tokens: waited(2.5),
        ..Told::default()
    });
    until_running(&world, &run, 4, 2 * MINUTE).await;
    world.services.load(run.id, Some(0));
    world.services.measure(run.id, under_way(0.0));
    until_running(&world, &run, 1, 10 * MINUTE).await;
    assert_eq!(
        events(&world)[..2],
        [
            "Replicas of group 0 changed 1 -> 3 (concurrency)",
            "Replicas of group 0 changed 3 -> 4 (time_to_first_token)",
        ]
    );
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// Who has no replicas has no page, either.
#[tokio::test(start_paused = true)]
async fn a_service_with_signals_only_starts_with_its_first_request_and_rests_after_its_last() {
    let (world, _engine, run) =
        submitted(523, "0..2", &json!([{"metric": "queue_length", "target": 2}])).await;
    world.pass(10 * MINUTE).await;
    assert_eq!(live(&world, &run), 0);
    world.services.load(run.id, Some(1));
    world.services.await_replica(run.id);
    until_running(&world, &run, 1, MINUTE).await;
    world.services.tell(queue(0.0));
    world
        .throughout("it is asked", 10 * MINUTE, |world| live(world, &run) == 1)
        .await
        .unwrap();
    world.services.load(run.id, Some(0));
    world
        .throughout("a stream may be under way", 10 * MINUTE, |world| {
            live(world, &run) == 1
        })
        .await
        .unwrap();
    world.services.measure(run.id, under_way(0.0));
    until_running(&world, &run, 0, 3 * MINUTE).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}
