//! Services: their replicas come and go while they run, and what is healthy stays so.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods
)] // tests

mod draining;
mod probes;
mod rollouts;
mod routers;
mod scaling;
mod signals;

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_engine::{Engine, Failpoints};
use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus};
use dstack_plan::lifecycle::WaitReason;
use dstack_sim::{Faults, Script, World, invariants, killed_everywhere, killed_where};
use dstack_store::rows::{JobRow, RunRow};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

/// At which passing of a failpoint a server is killed.
const PASSINGS: [u32; 8] = [1, 2, 3, 4, 6, 8, 10, 12];

/// Whether who gets requests changes here. How replicas start and are taken off under kills is told by the deployment without load.
fn moves_requests(point: &str) -> bool {
    let points = ["api.", "job.", "run.", "schedule.", "runner.stop."];
    points.iter().any(|prefix| point.starts_with(prefix))
}

/// It prints now and then, and ends only when it is stopped.
const SERVES: Script = Script {
    lines: 1_000_000,
    pause: Duration::from_secs(5),
    exit: 0,
    gpu: None,
    alone: false,
};

/// It prints nothing, so that nothing of it is written.
const SILENT: Script = Script {
    lines: 1,
    pause: Duration::from_secs(24 * 60 * 60),
    ..SERVES
};

const CRASHES: Script = Script {
    lines: 1,
    pause: Duration::from_millis(200),
    exit: 1,
    gpu: None,
    alone: false,
};

fn service(replicas: i64, command: &str) -> Value {
    json!({"type": "service", "port": 8000, "commands": [command], "replicas": replicas})
}

fn row(world: &World, run: &RunRow) -> RunRow {
    world.store.read(|tables| tables.runs[&run.id].clone())
}

fn jobs(world: &World, run: &RunRow) -> Vec<JobRow> {
    let mut jobs: Vec<JobRow> = world.store.read(|tables| {
        let jobs = tables.jobs.values().filter(|job| job.run_id == run.id);
        jobs.cloned().collect()
    });
    jobs.sort_by_key(|job| (job.replica_num, job.job_num, job.submission_num));
    jobs
}

fn running(world: &World, run: &RunRow) -> Vec<JobRow> {
    let mut jobs = jobs(world, run);
    jobs.retain(|job| job.status() == JobStatus::Running);
    jobs
}

/// Those that get requests.
fn registered(world: &World, run: &RunRow) -> Vec<JobRow> {
    let mut jobs = running(world, run);
    jobs.retain(|job| job.registered);
    jobs
}

fn is_second(job: &JobRow) -> bool {
    job.job_spec.commands.iter().any(|command| command.contains("v2"))
}

/// Waits until the service is as `wanted`; `check` must hold all the time.
async fn until(
    world: &World,
    run: &RunRow,
    wanted: impl Fn(&[JobRow]) -> bool,
    check: impl Fn(&[JobRow]) -> bool,
) -> Vec<JobRow> {
    let settled = |world: &World| {
        let running = running(world, run);
        assert!(check(&running), "{running:#?}");
        assert_eq!(invariants::always(world), Vec::<String>::new());
        let ending = |job: &JobRow| job.status() == JobStatus::Terminating;
        (wanted(&running) && !jobs(world, run).iter().any(ending)).then_some(running)
    };
    world
        .found("the replicas that are wanted", 10 * MINUTE, settled)
        .await
        .unwrap()
}

/// Waits until two replicas are all of the wanted kind; there must never be fewer.
async fn until_both(world: &World, run: &RunRow, wanted: impl Fn(&JobRow) -> bool) -> Vec<JobRow> {
    let all = |jobs: &[JobRow]| jobs.len() == 2 && jobs.iter().all(&wanted);
    until(world, run, all, |jobs| jobs.len() >= 2).await
}

fn anything(_: &[JobRow]) -> bool {
    true
}

async fn started(seed: u64, replicas: i64) -> (World, Engine, RunRow) {
    started_with(seed, replicas, SERVES).await
}

async fn started_with(seed: u64, replicas: i64, script: Script) -> (World, Engine, RunRow) {
    let world = World::new(seed, 8).await.unwrap();
    world.hosts.script("web", script);
    let (engine, run) = started_in(&world, replicas).await;
    (world, engine, run)
}

async fn started_in(world: &World, replicas: i64) -> (Engine, RunRow) {
    let engine = world.start().await.unwrap();
    let run = world
        .submit(&engine, "web", &service(replicas, "v1"))
        .await
        .unwrap();
    let wanted = usize::try_from(replicas).unwrap();
    until(world, &run, |jobs| jobs.len() == wanted, anything).await;
    (engine, run)
}

#[tokio::test(start_paused = true)]
async fn replicas_run_until_the_service_is_stopped() {
    let (world, engine, run) = started(1, 3).await;
    assert_eq!(row(&world, &run).status(), RunStatus::Running);
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(
        world.finished(&run, 10 * MINUTE).await.unwrap(),
        RunStatus::Terminated
    );
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_service_grows_and_shrinks_without_touching_the_others() {
    let (world, engine, run) = started(2, 2).await;
    let before = running(&world, &run);
    world.update(&engine, &run, &service(4, "v1")).await.unwrap();
    let grown = until(&world, &run, |jobs| jobs.len() == 4, |jobs| jobs.len() >= 2).await;
    assert_eq!(
        (grown[0].id, grown[1].id),
        (before[0].id, before[1].id),
        "they went on"
    );
    assert!(grown.iter().all(|job| job.deployment_num == 1));
    assert_eq!(row(&world, &run).desired_replica_count, 4);

    let run = row(&world, &run);
    world.update(&engine, &run, &service(1, "v1")).await.unwrap();
    let shrunk = until(&world, &run, |jobs| jobs.len() == 1, |jobs| !jobs.is_empty()).await;
    assert_eq!(shrunk[0].id, before[0].id);
    let ended = jobs(&world, &run);
    let reasons = ended
        .iter()
        .filter_map(dstack_store::rows::JobRow::termination_reason);
    assert_eq!(reasons.collect::<Vec<_>>(), [JobTerminationReason::ScaledDown; 3]);
    assert_eq!(row(&world, &run).status(), RunStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn a_service_without_replicas_waits_for_an_update() {
    let world = World::new(3, 8).await.unwrap();
    world.hosts.script("web", SERVES);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "web", &service(0, "v1")).await.unwrap();
    let waits = |world: &World| {
        let row = row(world, &run);
        let reason = row.waiting_for();
        row.status() == RunStatus::Pending && reason == Some(&WaitReason::Replicas)
    };
    world.until("it waits", MINUTE, waits).await.unwrap();
    world.throughout("it waits", 5 * MINUTE, waits).await.unwrap();
    world.update(&engine, &run, &service(1, "v1")).await.unwrap();
    until(&world, &run, |jobs| jobs.len() == 1, anything).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_deployment_replaces_the_old_one_without_a_gap() {
    let (world, engine, run) = started(4, 3).await;
    world.update(&engine, &run, &service(3, "v2")).await.unwrap();
    let after = until(
        &world,
        &run,
        |jobs| jobs.len() == 3 && jobs.iter().all(is_second),
        |jobs| jobs.len() >= 3,
    )
    .await;
    assert!(after.iter().all(|job| job.deployment_num == 1));
    let run = row(&world, &run);
    assert_eq!((run.status(), run.deployment_num), (RunStatus::Running, 1));
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_fails_costs_no_replica_that_serves() {
    let (world, engine, run) = started(5, 2).await;
    world.hosts.script("web", CRASHES);
    world.update(&engine, &run, &service(2, "v2")).await.unwrap();
    let both_serve = |world: &World| running(world, &run).iter().filter(|job| !is_second(job)).count() == 2;
    world
        .throughout("both replicas serve", 30 * MINUTE, both_serve)
        .await
        .unwrap();
    // It was tried once, not again and again.
    let failed = jobs(&world, &run);
    let failed: Vec<_> = failed
        .iter()
        .filter(|job| job.status() == JobStatus::Failed)
        .collect();
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert_eq!(row(&world, &run).status(), RunStatus::Running);

    world.hosts.script("web", SERVES);
    let run = row(&world, &run);
    world
        .update(&engine, &run, &service(2, "v2 mended"))
        .await
        .unwrap();
    until_both(&world, &run, is_second).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_none_of_whose_replicas_works_fails() {
    let world = World::new(6, 8).await.unwrap();
    world.hosts.script("web", CRASHES);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "web", &service(2, "v1")).await.unwrap();
    assert_eq!(
        world.finished(&run, 10 * MINUTE).await.unwrap(),
        RunStatus::Failed
    );
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_done_is_started_again_later() {
    let (world, engine, run) = started(7, 1).await;
    // The second one is done after a second, the first goes on.
    world.hosts.script("web", Script::default());
    world.update(&engine, &run, &service(2, "v1")).await.unwrap();
    let done = |jobs: &[JobRow]| jobs.iter().filter(|job| job.status() == JobStatus::Done).count();
    world.pass(2 * MINUTE).await;
    let number = done(&jobs(&world, &run));
    assert!((2..=5).contains(&number), "{number} times in two minutes");
    assert_eq!(row(&world, &run).status(), RunStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn jobs_that_cannot_be_made_are_tried_again_now_and_then() {
    let (world, engine, run) = started(9, 1).await;
    world.inputs.set_away(true);
    world.update(&engine, &run, &service(1, "v2")).await.unwrap();
    world.pass(5 * MINUTE).await;
    let waits = row(&world, &run);
    let reason = waits.waiting_for();
    assert!(matches!(reason, Some(WaitReason::JobsMade { .. })), "{reason:?}");
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    world.inputs.set_away(false);
    until(
        &world,
        &run,
        |jobs| jobs.len() == 1 && is_second(&jobs[0]),
        anything,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_a_place_is_tried_again_after_pauses_that_grow() {
    let world = World::new(10, 1).await.unwrap();
    world.hosts.script("web", SERVES);
    let engine = world.start().await.unwrap();
    let replicas = |count| {
        let mut service = service(count, "v1");
        service["retry"] = json!(true);
        service
    };
    let run = world.submit(&engine, "web", &replicas(1)).await.unwrap();
    until(&world, &run, |jobs| jobs.len() == 1, anything).await;
    world.update(&engine, &run, &replicas(2)).await.unwrap();
    world.pass(10 * MINUTE).await;
    // After 15, 30, 60, 120 and 300 seconds.
    let submissions = jobs(&world, &run)
        .iter()
        .filter(|job| job.replica_num == 1)
        .count();
    assert!((4..=7).contains(&submissions), "{submissions} submissions");
    assert_eq!(row(&world, &run).status(), RunStatus::Running);
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// A deployment with an engine that dies at the `nth` passing of a failpoint.
async fn deployed_with_death_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let (world, engine, run) = started(8, 2).await;
    engine.stop();
    let death = Arc::new(DieAt::new(point, nth));
    let failpoints = Arc::clone(&death) as Arc<dyn Failpoints>;
    let engine = world.start_with(failpoints).await.unwrap();
    let story = async {
        world.update(&engine, &run, &service(2, "v2")).await.unwrap();
        until_both(&world, &run, is_second).await;
        world.stop(&engine, &run, false).await.unwrap();
        let ended = world.finished(&run, 10 * MINUTE).await;
        assert_eq!(ended.unwrap(), RunStatus::Terminated, "{point} {nth}");
    };
    until_told(&world, &engine, story).await;
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new(), "{point} {nth}");
    death
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_a_deployment_arrives_without_a_gap() {
    let points = killed_everywhere(PASSINGS, deployed_with_death_at).await;
    assert!(points.len() >= 10, "{points:?}");
}

#[tokio::test(start_paused = true)]
async fn deployments_arrive_over_a_bad_line() {
    for seed in 200..215 {
        let (world, engine, mut run) = started(seed, 2).await;
        world.hosts.faults(Faults {
            lost_call: 0.15,
            lost_answer: 0.15,
            broken_stream: 0.02,
        });
        for deployment in 1..=3 {
            let command = format!("deployment {deployment}");
            world.update(&engine, &run, &service(2, &command)).await.unwrap();
            until_both(&world, &run, |job| job.deployment_num == deployment).await;
            run = row(&world, &run);
        }
        world.stop(&engine, &run, false).await.unwrap();
        world.finished(&run, 60 * MINUTE).await.unwrap();
        assert_eq!(invariants::at_rest(&world), Vec::<String>::new(), "seed {seed}");
    }
}

/// Tells a story to its end; an engine that is killed meanwhile is followed by the next one.
async fn until_told(world: &World, engine: &Engine, story: impl Future<Output = ()>) {
    let next_engine = async {
        engine.stopped().await;
        let _engine = world.start().await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = story => {}
        () = next_engine => {}
    }
}
