//! Services whose requests go to a router, which passes them on to its workers.

use dstack_engine::services::Worker;
use dstack_units::JobId;

use super::*;

fn routed(kind: &str, command: &str) -> Value {
    json!({"type": "service", "port": 8000, "commands": null, "groups": [
        {"name": "router", "replicas": 1, "commands": ["route"], "router": {"type": kind}},
        {"name": "worker", "replicas": 1, "commands": [command]},
    ]})
}

async fn submitted(seed: u64, kind: &str) -> (World, Engine, RunRow) {
    let world = World::new(seed, 8).await.unwrap();
    world.hosts.script("web", SERVES);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "web", &routed(kind, "v1")).await.unwrap();
    until(&world, &run, |jobs| jobs.len() == 2, anything).await;
    (world, engine, run)
}

/// The workers that run.
fn workers(world: &World, run: &RunRow) -> Vec<JobRow> {
    let mut jobs = running(world, run);
    jobs.retain(|job| job.job_spec.replica_group == "worker");
    jobs
}

fn awaited(job: &JobRow) -> Option<&WaitReason> {
    job.waiting_for()
}

#[tokio::test(start_paused = true)]
async fn the_router_alone_gets_requests_and_a_worker_says_what_keeps_it_from_the_router() {
    let (world, _engine, run) = submitted(70, "smg").await;
    let registered = registered(&world, &run);
    assert_eq!(registered.len(), 1);
    assert_eq!(registered[0].job_spec.replica_group, "router");
    let worker = workers(&world, &run)[0].id;
    let why = || Some("it still loads".to_owned());
    world
        .services
        .workers(run.id, &[worker], move |_| Worker::Missing(why()));
    let says = |wanted: Option<WaitReason>| {
        let run = run.clone();
        move |world: &World| awaited(&workers(world, &run)[0]).cloned() == wanted
    };
    let waits = WaitReason::WorkerAdded { error: why() };
    world
        .until("it is told", MINUTE, says(Some(waits)))
        .await
        .unwrap();
    world.services.workers(run.id, &[worker], |_| Worker::Added);
    let well = says(Some(WaitReason::Commands));
    world.until("it is well", MINUTE, well).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_update_keeps_a_worker_until_its_router_has_the_next_one() {
    let (world, engine, run) = submitted(71, "smg").await;
    let first = workers(&world, &run)[0].id;
    let has = move |job: JobId| match job == first {
        true => Worker::Added,
        false => Worker::Missing(None),
    };
    world.services.workers(run.id, &[], has);
    world.update(&engine, &run, &routed("smg", "v2")).await.unwrap();
    let both = |world: &World| workers(world, &run).len() == 2;
    world
        .until("the next worker runs", 2 * MINUTE, both)
        .await
        .unwrap();
    tokio::time::sleep(5 * MINUTE).await;
    assert!(both(&world), "{:#?}", jobs(&world, &run));
    let next = workers(&world, &run).into_iter().find(|job| job.id != first);
    let next = next.unwrap().id;
    world.services.workers(run.id, &[next], |_| Worker::Added);
    let replaced = |world: &World| workers(world, &run).iter().all(|job| job.id == next);
    world.until("it is replaced", 2 * MINUTE, replaced).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_router_that_is_silent_for_long_holds_up_no_update() {
    let (world, engine, run) = submitted(72, "smg").await;
    let first = workers(&world, &run)[0].id;
    world
        .services
        .workers(run.id, &[], |_| Worker::Unknown(Some("silent".to_owned())));
    world.update(&engine, &run, &routed("smg", "v2")).await.unwrap();
    let replaced = |world: &World| {
        let workers = workers(world, &run);
        workers.len() == 1 && workers[0].id != first
    };
    world.until("it is replaced", 5 * MINUTE, replaced).await.unwrap();
}
