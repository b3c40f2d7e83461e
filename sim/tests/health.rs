//! GPUs that fail and come back: what becomes of the instance, of its jobs, and of those that wait for a place.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods
)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_model::events::EventTargetType;
use dstack_model::health::HealthStatus;
use dstack_model::runs::{JobTerminationReason, RunStatus};
use dstack_sim::{Faults, Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore;
use dstack_store::queries::health::StoredCheck;
use dstack_store::rows::InstanceRow;
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);
/// Within this the engine asks once more, and does what follows.
const NEXT: Duration = Duration::from_secs(61);

fn machine(world: &World) -> InstanceRow {
    world.store.tables().instances.into_values().next().unwrap()
}

fn checks(world: &World) -> Vec<StoredCheck> {
    let mut checks = world.store.tables().health_checks;
    checks.remove(&machine(world).id).unwrap_or_default()
}

/// Waits until the machine is known to be so.
async fn becomes(world: &World, health: HealthStatus, within: Duration) {
    let what = format!("the machine to be {health:?}");
    let known = |world: &World| machine(world).health == health;
    world.until(&what, within, known).await.unwrap();
}

/// Waits until so many answers of the agent are kept.
async fn kept(world: &World, count: usize, within: Duration) {
    let what = format!("{count} checks");
    let there = |world: &World| checks(world).len() == count;
    world.until(&what, within, there).await.unwrap();
}

/// The events of the machine about its health.
fn story(world: &World) -> Vec<String> {
    let id = machine(world).id.to_string();
    let mut events = world.store.tables().events;
    events.retain(|event| {
        let about_it = event
            .targets
            .iter()
            .all(|target| target.entity_type == EventTargetType::Instance && target.entity_id == id);
        about_it && event.message.contains("health")
    });
    events.into_iter().map(|event| event.message).collect()
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_gpus_failed_keeps_its_jobs_and_gets_no_new_ones_until_they_are_well() {
    let world = World::new(50, 2).await.unwrap();
    world.hosts.health(Some(0));
    let engine = world.start().await.unwrap();
    let script = Script {
        lines: 600,
        pause: Duration::from_secs(1),
        ..Script::default()
    };
    world.hosts.script("first", script);
    let first = world.submit(&engine, "first", &json!({})).await.unwrap();
    world.running(&first, NEXT).await.unwrap();
    let nothing = |world: &World| story(world).is_empty();
    world.throughout("nothing is told", NEXT, nothing).await.unwrap();

    world.hosts.health(Some(20));
    becomes(&world, HealthStatus::Failure, NEXT).await;
    let told_once = |world: &World| {
        story(world) == ["Instance health changed HEALTHY -> FAILURE"]
            && machine(world).health == HealthStatus::Failure
            && world.status(first.id) == Some(RunStatus::Running)
    };
    world
        .throughout("it is told once", 2 * NEXT, told_once)
        .await
        .unwrap();
    let second = world.submit(&engine, "second", &json!({})).await.unwrap();
    let patient = json!({"retry": true});
    let patient = world.submit(&engine, "patient", &patient).await.unwrap();
    assert_eq!(world.finished(&second, MINUTE).await.unwrap(), RunStatus::Failed);
    let job = world.store.run(second.id).await.unwrap().unwrap().jobs[0].clone();
    let reason = JobTerminationReason::FailedToStartDueToNoCapacity;
    assert_eq!(job.termination_reason(), Some(reason));
    let waits = |world: &World| world.status(patient.id) == Some(RunStatus::Pending);
    world.until("the patient run waits", MINUTE, waits).await.unwrap();

    world.hosts.health(Some(0));
    becomes(&world, HealthStatus::Healthy, NEXT).await;
    let both = [
        "Instance health changed HEALTHY -> FAILURE",
        "Instance health changed FAILURE -> HEALTHY",
    ];
    assert_eq!(story(&world), both);
    let third = world.submit(&engine, "third", &json!({})).await.unwrap();
    assert_eq!(world.finished(&third, MINUTE).await.unwrap(), RunStatus::Done);
    for run in [&patient, &first] {
        assert_eq!(world.finished(run, 30 * MINUTE).await.unwrap(), RunStatus::Done);
    }
    assert_eq!(story(&world), both);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_the_agent_said_is_kept_as_it_said_it() {
    let world = World::new(51, 1).await.unwrap();
    world.hosts.health(Some(10));
    let engine = world.start().await.unwrap();
    kept(&world, 2, NEXT).await;
    let checks = checks(&world);
    assert_eq!(checks[1].collected_at.since(checks[0].collected_at), MINUTE);
    for check in checks {
        assert_eq!(check.status, HealthStatus::Warning);
        let said: serde_json::Value = serde_json::from_str(&check.response).unwrap();
        let incident = json!({"system": 0, "health": 10, "error_message": "GPU 0 is not well", "error_code": 0,
            "entity_group_id": 0, "entity_id": 0});
        assert_eq!(
            said,
            json!({"dcgm": {"overall_health": 10, "incidents": [incident]}})
        );
    }
    // A warning stops nothing.
    assert_eq!(story(&world), ["Instance health changed HEALTHY -> WARNING"]);
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_dcgm_leaves_no_checks_and_complains_of_nothing() {
    let world = World::new(52, 1).await.unwrap();
    let _engine = world.start().await.unwrap();
    world.pass(3 * NEXT).await;
    assert!(world.hosts.health_asked() >= 3);
    assert_eq!((checks(&world), story(&world)), (vec![], vec![]));

    // DCGM was there, and is gone: nothing is wrong any more, as for dstack 0.22.5.
    world.hosts.health(Some(20));
    kept(&world, 1, NEXT).await;
    becomes(&world, HealthStatus::Failure, NEXT).await;
    world.hosts.health(None);
    becomes(&world, HealthStatus::Healthy, NEXT).await;
    world.pass(NEXT).await;
    assert_eq!(machine(&world).health, HealthStatus::Healthy);
    assert_eq!(checks(&world).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_understands_changes_nothing() {
    let world = World::new(53, 1).await.unwrap();
    world.hosts.health(Some(10));
    let _engine = world.start().await.unwrap();
    kept(&world, 1, NEXT).await;
    becomes(&world, HealthStatus::Warning, NEXT).await;
    world.hosts.health(Some(15));
    let asked = world.hosts.health_asked();
    let same = |world: &World| machine(world).health == HealthStatus::Warning && checks(world).len() == 1;
    world.throughout("nothing changes", 3 * NEXT, same).await.unwrap();
    assert!(world.hosts.health_asked() >= asked + 3);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_cut_off_is_as_it_was_and_is_not_asked_more_often() {
    let world = World::new(54, 1).await.unwrap();
    world.hosts.health(Some(20));
    let _engine = world.start().await.unwrap();
    kept(&world, 1, Duration::from_secs(5)).await;
    becomes(&world, HealthStatus::Failure, Duration::from_secs(5)).await;
    assert_eq!(world.hosts.health_asked(), 1);
    for _ in 0..10 {
        world.hosts.cut_off(true);
        world.pass(Duration::from_secs(2)).await;
        world.hosts.cut_off(false);
        world.pass(Duration::from_secs(2)).await;
    }
    assert_eq!(machine(&world).health, HealthStatus::Failure);
    assert_eq!(
        world.hosts.health_asked(),
        1,
        "its stream broke ten times within a minute"
    );
    world.pass(NEXT).await; // once more, and no more
    assert_eq!(world.hosts.health_asked(), 2);
    assert_eq!(story(&world), ["Instance health changed HEALTHY -> FAILURE"]);
}

/// The GPUs fail and come back while the way to the agents is bad, and the engine dies at `point`.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = World::new(55, 1).await.unwrap();
    world.hosts.faults(Faults {
        lost_answer: 0.2,
        ..Faults::default()
    });
    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    for (code, health) in [(20, HealthStatus::Failure), (0, HealthStatus::Healthy)] {
        world.hosts.health(Some(code));
        tokio::select! {
            () = engine.stopped() => {
                world.leases_run_out().await;
                engine = world.start().await.unwrap();
            }
            () = world.pass(10 * MINUTE) => {}
        }
        becomes(&world, health, 10 * MINUTE).await;
        world.pass(10 * MINUTE).await; // it is told once
    }
    assert_eq!(
        story(&world),
        [
            "Instance health changed HEALTHY -> FAILURE",
            "Instance health changed FAILURE -> HEALTHY"
        ],
        "killed at {point} #{nth}"
    );
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_each_change_is_told_once() {
    let points = killed_everywhere(1..=6, killed_at).await;
    assert!(points.contains("instance.commit.before"), "{points:?}");
}
