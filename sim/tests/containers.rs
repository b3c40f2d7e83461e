//! Jobs in containers of a cloud, each made for one job, by an engine that dies anywhere, in a cloud that loses calls.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::runs::{JobTerminationReason, RunStatus};
use dstack_sim::clouds::{CONTAINER_LOST, SOLD_OUT};
use dstack_sim::{Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore;
use dstack_store::rows::{AgentAddress, InstanceRow, JobRow, RunRow};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

fn in_cloud() -> Value {
    json!({"fleets": ["cloud"]})
}

async fn world(seed: u64, offers: &[&str]) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer_containers(offers);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    world
}

/// Jobs that do not end by themselves.
const LONG: Script = Script {
    lines: 100_000,
    pause: Duration::from_millis(200),
    exit: 0,
    gpu: None,
    alone: false,
};

async fn job(world: &World, run: &RunRow) -> JobRow {
    world
        .store
        .run(run.id)
        .await
        .unwrap()
        .unwrap()
        .jobs
        .pop()
        .unwrap()
}

fn instances(world: &World) -> Vec<InstanceRow> {
    let mut rows: Vec<InstanceRow> = world.store.tables().instances.into_values().collect();
    rows.retain(|row| row.name.starts_with("cloud-"));
    rows.sort_by_key(|row| row.id);
    rows
}

/// Within this time there is nothing any more, in the cloud nor in the rows, and for as long nothing comes back.
async fn nothing_is_left(world: &World, within: Duration, when: &str) {
    let what = format!("nothing is left {when}");
    let over = |row: &InstanceRow| row.status() == InstanceStatus::Terminated;
    let nothing =
        |world: &World| invariants::nothing_left(world).is_empty() && instances(world).iter().all(over);
    world.until(&what, within, nothing).await.unwrap();
    world.throughout(&what, within, nothing).await.unwrap();
    assert!(
        world.ssh_hosts.reached().is_empty(),
        "{when}: the way is kept open"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_in_a_container_that_ends_with_it() {
    let world = world(1, &["small", "large"]).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"]);
    let job = job(&world, &run).await;
    assert_eq!(
        world.output.of(job.id),
        "line 0\nline 1\nline 2\nline 3\nline 4\n"
    );
    let place = job.job_provisioning_data.as_deref().unwrap();
    assert!(!place.dockerized);
    assert_eq!(
        place.ssh_port,
        Some(22),
        "clients go where the cloud says that SSH is"
    );
    let made = instances(&world).pop().unwrap();
    assert!(
        matches!(made.agent.as_deref(), Some(AgentAddress::Container { job: of, .. }) if *of == job.id),
        "{:?}",
        made.agent
    );
    // At once: nobody else may have it.
    nothing_is_left(&world, MINUTE, "").await;
    assert_eq!(
        instances(&world)[0].termination_reason(),
        Some(InstanceTerminationReason::JobFinished)
    );
}

/// What runs in it is put together when the cloud is called, and stands in no row.
#[tokio::test(start_paused = true)]
async fn a_container_is_made_with_all_that_its_job_needs() {
    let world = world(2, &["small"]).await;
    let engine = world.start().await.unwrap();
    let more = json!({"fleets": ["cloud"], "privileged": true, "resources": {"shm_size": "2GB"},
        "volumes": ["/mnt/data:/data"]});
    let run = world.submit(&engine, "train", &more).await.unwrap();
    let status = world.finished(&run, MINUTE).await.unwrap();
    assert_eq!(status, RunStatus::Done, "{:?}", job(&world, &run).await);
    let workload = world.clouds.workload().unwrap();
    assert!(workload.script.contains("sshd") && workload.script.contains("ssh-ed25519 AAAA"));
    assert_eq!(workload.authorized_keys, ["ssh-ed25519 AAAA"]);
    assert_eq!(workload.image, "registry.example/image");
    let login = workload.registry.unwrap();
    assert_eq!(
        (login.username.as_str(), login.password.expose()),
        ("somebody", "the password of the registry")
    );
    assert!(workload.privileged);
    assert_eq!(workload.shm_mib, Some(2048));
    let folders: Vec<_> = workload
        .folders
        .iter()
        .map(|folder| (folder.node_path.as_str(), folder.path.as_str()))
        .collect();
    assert_eq!(folders, [("/mnt/data", "/data")]);
    let rows = format!("{:?}", world.store.tables());
    assert!(!rows.contains("the password of the registry"));
    let operations = world.store.tables().operations;
    for operation in operations.values() {
        let notes = operation
            .notes
            .as_deref()
            .map(Value::to_string)
            .unwrap_or_default();
        for secret in ["password", "token of"] {
            assert!(!notes.contains(secret), "{notes}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_is_made_with_the_volumes_of_its_job_or_not_at_all() {
    let world = world(12, &["small"]).await;
    let engine = world.start().await.unwrap();
    world.made_volume(&engine, "data", &json!({})).await.unwrap();
    let with = |name: &str| json!({"fleets": ["cloud"], "volumes": [format!("{name}:/data")]});
    let run = world.submit(&engine, "train", &with("data")).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let mounted = world.clouds.workload().unwrap().volumes;
    let mounted: Vec<_> = mounted
        .iter()
        .map(|one| {
            (
                one.name.as_str(),
                one.volume.volume_id.as_str(),
                one.path.as_str(),
            )
        })
        .collect();
    assert_eq!(mounted, [("data", "vol-1", "/data")]);
    let run = world.submit(&engine, "lost", &with("none")).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    assert_eq!(world.clouds.asked(), ["small"]);
}

/// A container whose job has ended is idle for a moment: nobody gets it.
#[tokio::test(start_paused = true)]
async fn each_job_gets_a_container_of_its_own() {
    let world = world(3, &["small"]).await;
    let engine = world.start().await.unwrap();
    let mut runs = Vec::new();
    for name in ["one", "two", "three", "four", "five", "six"] {
        let retry = json!({"fleets": ["cloud"], "retry": {"on_events": ["no-capacity"], "duration": "1h"}});
        runs.push(world.submit(&engine, name, &retry).await.unwrap());
    }
    for run in runs {
        assert_eq!(world.finished(&run, 15 * MINUTE).await.unwrap(), RunStatus::Done);
    }
    assert_eq!(world.clouds.asked().len(), 6);
    nothing_is_left(&world, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn offers_are_tried_until_one_works() {
    let world = world(4, &["small", "medium", "large"]).await;
    world.clouds.full(&["small", "medium"]);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small", "medium", "large"]);
    nothing_is_left(&world, MINUTE, "").await;
    world.clouds.offer_containers(&["small", "large"]);
    world.clouds.full(&["small", "large"]);
    let run = world.submit(&engine, "none", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    let message = job(&world, &run)
        .await
        .termination_reason_message()
        .unwrap()
        .to_owned();
    assert!(message.contains(SOLD_OUT), "{message}");
}

#[tokio::test(start_paused = true)]
async fn the_job_of_a_container_that_dies_is_told_why() {
    let world = world(5, &["small"]).await;
    world.hosts.script("cloud-0", LONG);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.clouds.lose(instances(&world)[0].id);
    // Before it would be given up for being out of reach.
    assert_eq!(
        world.finished(&run, 100 * Duration::from_secs(1)).await.unwrap(),
        RunStatus::Failed
    );
    assert_eq!(
        job(&world, &run).await.termination_reason(),
        Some(JobTerminationReason::InstanceUnreachable)
    );
    assert_eq!(
        instances(&world)[0].termination_reason_message(),
        Some(CONTAINER_LOST)
    );
    nothing_is_left(&world, MINUTE, "").await;
}

/// What ran in it is gone, although the container is there.
#[tokio::test(start_paused = true)]
async fn the_job_of_a_container_that_was_started_again_is_told() {
    let world = world(6, &["small"]).await;
    world.hosts.script("cloud-0", LONG);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.hosts.restart_container("10.0.0.1");
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    let job = job(&world, &run).await;
    let message = job.termination_reason_message().unwrap();
    assert!(message.contains("the container was started again"), "{message}");
    nothing_is_left(&world, MINUTE, "").await;
}

/// As on hosts: a container that is out of reach for a while is waited for.
#[tokio::test(start_paused = true)]
async fn a_job_goes_on_while_its_container_is_out_of_reach() {
    let world = world(7, &["small"]).await;
    let script = Script { lines: 600, ..LONG };
    world.hosts.script("cloud-0", script);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.hosts.cut_off(true);
    world.pass(MINUTE).await;
    assert!(instances(&world)[0].unreachable);
    world.hosts.cut_off(false);
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    let output = world.output.of(job(&world, &run).await.id);
    assert_eq!(output.lines().count(), 600);
    nothing_is_left(&world, MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_stays_out_of_reach_is_given_up_and_ended() {
    let world = world(8, &["small"]).await;
    world.hosts.script("cloud-0", LONG);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.hosts.cut_off(true);
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Failed);
    assert_eq!(
        job(&world, &run).await.termination_reason(),
        Some(JobTerminationReason::InstanceUnreachable)
    );
    nothing_is_left(&world, 2 * MINUTE, "").await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_run_get_a_container_each_and_know_one_another() {
    let world = world(9, &["small"]).await;
    let engine = world.start().await.unwrap();
    let nodes = json!({"fleets": ["cloud"], "nodes": 2});
    let run = world.submit(&engine, "train", &nodes).await.unwrap();
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    let jobs = world.store.run(run.id).await.unwrap().unwrap().jobs;
    assert_eq!((jobs.len(), instances(&world).len()), (2, 2));
    for job in &jobs {
        let told = world.hosts.told(job.id).unwrap().cluster_info;
        assert_eq!(told.job_ips, ["10.0.0.1", "10.0.0.2"]);
    }
    nothing_is_left(&world, MINUTE, "").await;
}

/// Whenever a run is stopped, nothing of it stays in the cloud.
#[tokio::test(start_paused = true)]
async fn a_run_stopped_at_any_time_leaves_no_container() {
    for hundreds in 0..25 {
        let world = world(10, &["small", "large"]).await;
        world.clouds.full(&["small"]);
        world.hosts.script("cloud-0", LONG);
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
        world.pass(hundreds * Duration::from_millis(100)).await;
        world.stop(&engine, &run, false).await.unwrap();
        let status = world.finished(&run, 2 * MINUTE).await.unwrap();
        assert_eq!(status, RunStatus::Terminated, "after {hundreds}");
        nothing_is_left(&world, MINUTE, &format!("after {hundreds}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_is_late_and_loses_answers_has_no_container_twice_or_for_nobody() {
    for seed in 0..30 {
        let world = world(seed, &["small", "medium", "large"]).await;
        world.clouds.full(&["medium"]);
        world.clouds.be_unreliable();
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
        let status = world.finished(&run, 20 * MINUTE).await;
        let status = status.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        assert!(status.is_finished(), "seed {seed}: {status:?}");
        assert_eq!(invariants::always(&world), Vec::<String>::new(), "seed {seed}");
        nothing_is_left(&world, 6 * MINUTE, &format!("seed {seed}")).await;
    }
}

/// Runs a task in a container, killing the engine at `point`; the failpoints that were passed.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = world(11, &["small", "large"]).await;
    world.clouds.full(&["small"]);
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    let engine = world.after_death(engine, MINUTE).await.unwrap();
    let status = world.finished(&run, 5 * MINUTE).await;
    let status = status.unwrap_or_else(|stuck| panic!("killed at {point} #{nth}: {stuck}"));
    assert_eq!(status, RunStatus::Done, "killed at {point} #{nth}");
    assert_eq!(
        world.output.of(job(&world, &run).await.id).lines().count(),
        5,
        "killed at {point} #{nth}"
    );
    nothing_is_left(&world, MINUTE, &format!("killed at {point} #{nth}")).await;
    drop(engine);
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_nothing_is_made_twice_or_left() {
    let points = killed_everywhere(1..=6, killed_at).await;
    for wanted in [
        "cloud.create.before",
        "cloud.create.after",
        "container.prepare.before",
        "container.prepare.after",
        "shim.submit.after",
        "runner.run.before",
        "shim.remove.after",
        "cloud.remove.after",
        "instance.commit.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}
