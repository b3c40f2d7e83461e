//! Instances that are made in a cloud for jobs, by an engine that dies anywhere, in a cloud that loses calls.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::shim::TaskConfig;
use dstack_compute::{JobNeeds, MountedPath};
use dstack_engine::failpoint::DieAt;
use dstack_engine::{Engine, HostError};
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::runs::{JobProvisioningData, JobStatus, JobTerminationReason, RunStatus};
use dstack_sim::clouds::{Delays, SOLD_OUT};
use dstack_sim::{Faults, Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore;
use dstack_store::rows::{InstanceRow, JobRow, RunRow};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than an instance stays idle.
const IDLE: Duration = Duration::from_secs(6 * 60);

fn in_cloud() -> Value {
    json!({"fleets": ["cloud"]})
}

async fn world(seed: u64, offers: &[&str]) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer(offers);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    world
}

async fn jobs(world: &World, run: &RunRow) -> Vec<JobRow> {
    world.store.run(run.id).await.unwrap().unwrap().jobs
}

/// Instances of the cloud, as they were made.
fn instances(world: &World) -> Vec<InstanceRow> {
    let mut rows: Vec<InstanceRow> = world.store.tables().instances.into_values().collect();
    rows.retain(|row| row.name.starts_with("cloud-"));
    rows.sort_by_key(|row| row.id);
    rows
}

/// All instances of the cloud are over, and so are their machines.
fn all_over(world: &World) -> bool {
    let over = |row: &InstanceRow| row.status() == InstanceStatus::Terminated;
    instances(world).iter().all(over) && world.clouds.machines().is_empty()
}

/// Within this time there is nothing any more, in the cloud nor in the rows, and for as long nothing comes back.
async fn nothing_is_left(world: &World, within: Duration, when: &str) {
    let what = format!("nothing is left {when}");
    let nothing = |world: &World| invariants::nothing_left(world).is_empty() && all_over(world);
    world.until(&what, within, nothing).await.unwrap();
    world.throughout(&what, within, nothing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_job_gets_an_instance_that_ends_when_it_has_been_idle() {
    let world = world(1, &["small", "large"]).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"]);
    let made = instances(&world);
    assert_eq!(made.len(), 1);
    assert_eq!(
        (made[0].name.as_str(), made[0].status()),
        ("cloud-0", InstanceStatus::Idle)
    );
    // Another job finds it while it is there.
    let again = world.submit(&engine, "again", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&again, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"]);
    nothing_is_left(&world, IDLE, "").await;
    assert_eq!(
        instances(&world)[0].termination_reason(),
        Some(InstanceTerminationReason::IdleTimeout)
    );
}

#[tokio::test(start_paused = true)]
async fn offers_are_tried_from_the_cheapest_until_one_works() {
    let world = world(2, &["small", "medium", "large"]).await;
    world.clouds.full(&["small", "medium"]);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small", "medium", "large"]);
    assert_eq!(instances(&world)[0].price, Some(3.0));
}

#[tokio::test(start_paused = true)]
async fn a_job_for_which_no_offer_works_says_what_the_cloud_said() {
    let world = world(3, &[]).await;
    world.clouds.sold_out();
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    let job = jobs(&world, &run).await.pop().unwrap();
    assert_eq!(
        job.termination_reason(),
        Some(JobTerminationReason::FailedToStartDueToNoCapacity)
    );
    let message = job.termination_reason_message().unwrap();
    let begin = format!(
        "Failed to provision in fleet 'cloud': tried 2 of 2 offers, all failed.\nErrors: {SOLD_OUT}.\n"
    );
    assert!(message.starts_with(&begin), "{message}");
    assert_eq!(instances(&world)[0].status(), InstanceStatus::Terminated);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_retries_gets_an_instance_once_there_are_some() {
    let world = world(4, &["small"]).await;
    world.clouds.full(&["small"]);
    let engine = world.start().await.unwrap();
    let retry = json!({"fleets": ["cloud"], "retry": {"on_events": ["no-capacity"], "duration": "1h"}});
    let run = world.submit(&engine, "train", &retry).await.unwrap();
    let waits =
        |world: &World| world.status(run.id) == Some(RunStatus::Pending) && world.clouds.asked().len() >= 2;
    world
        .until("it waits, having been tried twice", 5 * MINUTE, waits)
        .await
        .unwrap();
    world.clouds.full(&[]);
    assert_eq!(world.finished(&run, 15 * MINUTE).await.unwrap(), RunStatus::Done);
}

#[tokio::test(start_paused = true)]
async fn a_full_fleet_gets_no_more_instances() {
    let world = World::new(5, 1).await.unwrap();
    world.clouds.offer(&["small"]);
    world.cloud_fleet("cloud", "0..1").await.unwrap();
    let long = Script {
        lines: 100,
        ..Script::default()
    };
    world.hosts.script("first", long);
    let engine = world.start().await.unwrap();
    let first = world.submit(&engine, "first", &in_cloud()).await.unwrap();
    world.pass(Duration::from_millis(1)).await; // of two that are submitted in the same moment either may be the first
    let second = world.submit(&engine, "second", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&second, MINUTE).await.unwrap(), RunStatus::Failed);
    assert_eq!(world.finished(&first, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"]);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_run_get_an_instance_each_beside_the_first() {
    let world = world(6, &["small"]).await;
    let engine = world.start().await.unwrap();
    let nodes = json!({"fleets": ["cloud"], "nodes": 3});
    let run = world.submit(&engine, "train", &nodes).await.unwrap();
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    let mut names: Vec<String> = instances(&world).into_iter().map(|row| row.name).collect();
    names.sort();
    assert_eq!(names, ["cloud-0", "cloud-1", "cloud-2"]);
    nothing_is_left(&world, IDLE, "").await;
}

/// Whenever a run is stopped, nothing of it stays in the cloud.
#[tokio::test(start_paused = true)]
async fn a_run_stopped_at_any_time_leaves_no_machine() {
    for hundreds in 0..25 {
        let world = world(7, &["small", "large"]).await;
        world.clouds.full(&["small"]);
        // Not over before it is stopped.
        let long = Script {
            lines: 1000,
            ..Script::default()
        };
        world.hosts.script("train", long);
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
        world.pass(hundreds * Duration::from_millis(100)).await;
        world.stop(&engine, &run, false).await.unwrap();
        let status = world.finished(&run, 2 * MINUTE).await.unwrap();
        assert_eq!(status, RunStatus::Terminated, "after {hundreds}");
        nothing_is_left(&world, IDLE, &format!("after {hundreds}")).await;
    }
}

/// A user may end an instance (or its whole fleet) while it is being made.
#[tokio::test(start_paused = true)]
async fn a_job_whose_instance_is_ended_while_it_is_made_ends_as_well() {
    for hundreds in 0..25 {
        let world = world(11, &["small", "large"]).await;
        world.clouds.full(&["small"]);
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
        world.pass(hundreds * Duration::from_millis(100)).await;
        for mut row in instances(&world) {
            let reason = InstanceTerminationReason::TerminatedByUser;
            row.terminate(reason, None, world.clock.now()).unwrap();
            let mut changes = world.builder.changes(world.clock.now());
            changes.touch(row);
            engine.commit(changes.into_commit()).await.unwrap();
        }
        let status = world.finished(&run, 5 * MINUTE).await;
        let status = status.unwrap_or_else(|stuck| panic!("after {hundreds}: {stuck}"));
        assert!(status.is_finished(), "after {hundreds}");
        // Tasks end with their machine: the simulated host does not know that.
        let no_machine = |world: &World| invariants::always(world).is_empty() && all_over(world);
        let what = format!("no machine is left after {hundreds}");
        world.until(&what, IDLE, no_machine).await.unwrap();
        world.throughout(&what, IDLE, no_machine).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_loses_calls_and_answers_has_no_machine_twice_or_for_nobody() {
    for seed in 0..40 {
        let world = world(seed, &["small", "medium", "large"]).await;
        world.clouds.full(&["medium"]);
        world.clouds.faults(Faults {
            lost_call: 0.3,
            lost_answer: 0.3,
            ..Faults::default()
        });
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
        let status = world.finished(&run, 15 * MINUTE).await;
        let status = status.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        assert!(
            matches!(status, RunStatus::Done | RunStatus::Failed),
            "seed {seed}: {status:?}"
        );
        assert_eq!(invariants::always(&world), Vec::<String>::new(), "seed {seed}");
        nothing_is_left(&world, 3 * IDLE, &format!("seed {seed}")).await;
    }
}

/// A machine is never given up: the row says what is waited for until the cloud has confirmed its end.
#[tokio::test(start_paused = true)]
async fn an_instance_whose_backend_is_gone_waits_for_it() {
    let world = world(8, &["small"]).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    world.clouds.gone(true);
    let waits = |world: &World| {
        let row = instances(world).pop().unwrap();
        let reason = row.waiting_for().map(ToString::to_string).unwrap_or_default();
        row.status() == InstanceStatus::Terminating && reason.contains("configure it again")
    };
    world.until("it waits for its cloud", IDLE, waits).await.unwrap();
    world
        .throughout("it waits for its cloud", 60 * MINUTE, waits)
        .await
        .unwrap();
    world.clouds.gone(false);
    nothing_is_left(&world, MINUTE, "").await;
}

/// Its instance is idle for a short time only.
fn short_lived() -> Value {
    json!({"fleets": ["cloud"], "idle_duration": "20s"})
}

/// Not to know the clouds is no reason to end anybody's job.
#[tokio::test(start_paused = true)]
async fn a_job_waits_while_the_backends_cannot_be_read() {
    let world = world(12, &["small"]).await;
    world.clouds.unreadable(true);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    let waits = |world: &World| world.status(run.id) == Some(RunStatus::Submitted);
    world.throughout("it waits", MINUTE, waits).await.unwrap();
    world.clouds.unreadable(false);
    // Read again in time for the offers, then away once more until after the instance was intended.
    let intended = |world: &World| !instances(world).is_empty();
    world.until("the instance", MINUTE, intended).await.unwrap();
    world.clouds.unreadable(true);
    world.pass(MINUTE).await;
    world.clouds.unreadable(false);
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"]);
}

/// More jobs wait for a cloud than are read in one go; a later one that needs none is not kept waiting.
#[tokio::test(start_paused = true)]
async fn a_job_behind_a_thousand_that_wait_gets_its_place() {
    let world = world(13, &["small"]).await;
    world.clouds.unreadable(true);
    let waiting = 1_100;
    let before = world.clock.now() - MINUTE;
    for number in 0..waiting {
        let name = format!("waits-{number}");
        let (_, commit) = world.builder.run(&name, &in_cloud(), before).unwrap();
        world.store.commit(commit).await.unwrap();
    }
    let engine = world.start().await.unwrap();
    let here = json!({"fleets": ["local"]});
    let run = world.submit(&engine, "here", &here).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let submitted = |row: &&RunRow| row.status() == RunStatus::Submitted;
    let left = world
        .store
        .read(|tables| tables.runs.values().filter(submitted).count());
    assert_eq!(left, waiting);
}

/// Runs a task in the cloud, killing the engine at `point`; the failpoints that were passed.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    killed_in(&world(9, &["small", "large"]).await, point, nth).await
}

/// As [`killed_at`], where the agent is brought to the machine over SSH.
async fn killed_with_bare_machines(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = world(15, &["small", "large"]).await;
    world.hosts.bare_machines();
    let die = killed_in(&world, point, nth).await;
    assert!(
        world.ssh_hosts.reached().is_empty(),
        "killed at {point} #{nth}: the way is kept open"
    );
    die
}

async fn killed_in(world: &World, point: &'static str, nth: u32) -> Arc<DieAt> {
    world.clouds.full(&["small"]);
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let run = world.submit(&engine, "train", &short_lived()).await.unwrap();
    let engine = world.after_death(engine, MINUTE).await.unwrap();
    let status = world.finished(&run, 5 * MINUTE).await;
    let status = status.unwrap_or_else(|stuck| panic!("killed at {point} #{nth}: {stuck}"));
    assert_eq!(status, RunStatus::Done, "killed at {point} #{nth}");
    nothing_is_left(world, MINUTE, &format!("killed at {point} #{nth}")).await;
    drop(engine);
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_nothing_is_made_twice_or_left() {
    let points = killed_everywhere(1..=6, killed_at).await;
    for wanted in [
        "schedule.commit.after",
        "cloud.create.before",
        "cloud.create.after",
        "cloud.remove.after",
        "instance.commit.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_a_machine_gets_its_agent() {
    let points = killed_everywhere(1..=6, killed_with_bare_machines).await;
    for wanted in [
        "cloud.create.after",
        "host.prepare.before",
        "host.prepare.after",
        "cloud.remove.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}

/// A machine that never lets anybody in ends in time, says why, and costs nothing any more.
#[tokio::test(start_paused = true)]
async fn a_machine_that_gets_no_agent_ends_with_the_reason() {
    let world = world(16, &["small"]).await;
    world.hosts.bare_machines();
    world.ssh_hosts.trouble(
        "10.0.0.1",
        Some(HostError::Transient("the key is refused".to_owned())),
    );
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(
        world.finished(&run, 20 * MINUTE).await.unwrap(),
        RunStatus::Failed
    );
    let made = instances(&world);
    assert_eq!(
        made[0].termination_reason(),
        Some(InstanceTerminationReason::ProvisioningTimeout)
    );
    let message = made[0].termination_reason_message().unwrap_or_default();
    assert!(message.ends_with("the key is refused"), "{message}");
    nothing_is_left(&world, MINUTE, "").await;
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// A job that runs for long in the cloud, and the instance that it is on.
async fn long_job(world: &World, engine: &Engine) -> (RunRow, InstanceRow) {
    let script = Script {
        lines: 10_000,
        pause: Duration::from_secs(1),
        ..Script::default()
    };
    world.hosts.script("train", script);
    let run = world.submit(engine, "train", &in_cloud()).await.unwrap();
    let is_running = |world: &World| {
        let jobs = world.store.tables().jobs;
        jobs.values().any(|job| job.status() == JobStatus::Running)
    };
    world
        .until("the job runs", 10 * MINUTE, is_running)
        .await
        .unwrap();
    let instance = instances(world).pop().unwrap();
    (run, instance)
}

/// Within a minute or two, and not only when nobody has reached the agent for twenty.
#[tokio::test(start_paused = true)]
async fn what_breaks_or_is_taken_away_ends_soon_with_the_reason() {
    for is_notice in [true, false] {
        let world = world(17, &["small"]).await;
        let engine = world.start().await.unwrap();
        let (run, instance) = long_job(&world, &engine).await;
        world.pass(2 * MINUTE).await;
        match is_notice {
            true => world.clouds.will_take(instance.id, "the price went up"),
            false => {
                world.clouds.lose(instance.id);
                world.hosts.lose(instance.id);
            }
        }
        assert_eq!(world.finished(&run, 3 * MINUTE).await.unwrap(), RunStatus::Failed);
        // What ran on the machine went with it.
        world
            .until("the machine is gone", 3 * MINUTE, all_over)
            .await
            .unwrap();
        let ended = instances(&world).pop().unwrap();
        assert_eq!(
            ended.termination_reason(),
            Some(InstanceTerminationReason::Unreachable)
        );
        let why = if is_notice {
            "the price went up"
        } else {
            "the machine is gone"
        };
        assert_eq!(ended.termination_reason_message(), Some(why));
        assert_eq!(invariants::always(&world), Vec::<String>::new());
    }
}

/// A cloud that forgets a machine whose agent answers is not believed.
#[tokio::test(start_paused = true)]
async fn a_machine_that_answers_is_not_given_up_because_its_cloud_does_not_list_it() {
    let world = world(18, &["small"]).await;
    let engine = world.start().await.unwrap();
    let (run, instance) = long_job(&world, &engine).await;
    world.clouds.lose(instance.id);
    world.pass(10 * MINUTE).await;
    assert_eq!(jobs(&world, &run).await[0].status(), JobStatus::Running);
}

/// The agent is followed where the machine is now.
#[tokio::test(start_paused = true)]
async fn a_machine_that_was_moved_is_reached_where_it_is() {
    let world = world(19, &["small"]).await;
    world.hosts.bare_machines();
    let engine = world.start().await.unwrap();
    let (run, instance) = long_job(&world, &engine).await;
    let before = instance.job_provisioning_data.as_deref().unwrap().clone();
    let place = JobProvisioningData {
        hostname: Some("10.9.9.9".to_owned()),
        internal_ip: Some("10.9.9.8".to_owned()),
        ..before
    };
    world.clouds.moved(instance.id, place.clone());
    let follows = |world: &World| {
        let row = instances(world).pop().unwrap();
        let is_known = row.job_provisioning_data.as_deref() == Some(&place);
        let agent = row.agent.as_deref().and_then(|agent| agent.reach().cloned());
        is_known && agent.is_some_and(|reach| reach.host.host == "10.9.9.9")
    };
    world.until("the row follows", 3 * MINUTE, follows).await.unwrap();
    // So does what clients are told of the job.
    let job = jobs(&world, &run).await.remove(0);
    let told = job.job_provisioning_data.as_deref().unwrap();
    assert_eq!(told.hostname.as_deref(), Some("10.9.9.9"));
    assert_eq!(told.internal_ip.as_deref(), Some("10.9.9.8"));
    assert_eq!(job.status(), JobStatus::Running);
}

/// What the type of its machine needs, a job gets without asking, beside what it asks for.
#[tokio::test(start_paused = true)]
async fn a_job_gets_what_the_type_of_its_machine_needs() {
    const NEEDS: JobNeeds = JobNeeds {
        mounts: &[MountedPath::same("/run/fast"), MountedPath::same("/dev/fast")],
        gpu_devices: &["/dev/gpu0", "/dev/gpuctl"],
        has_efa: true,
    };
    let world = world(40, &["small"]).await;
    world.clouds.needs("large", NEEDS);
    let engine = world.start().await.unwrap();
    let mounts = json!({"fleets": ["cloud"], "volumes": ["/mine:/run/fast"]});
    let submitted = async |name: &str| {
        let run = world.submit(&engine, name, &mounts).await.unwrap();
        assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
        world.hosts.submitted(jobs(&world, &run).await[0].id).unwrap()
    };
    let paths = |task: &TaskConfig| {
        let pairs = task.instance_mounts.iter();
        pairs
            .map(|mount| format!("{}:{}", mount.instance_path, mount.path))
            .collect::<Vec<_>>()
    };
    let plain = submitted("plain").await;
    assert_eq!(paths(&plain), ["/mine:/run/fast"]);
    assert_eq!(plain.gpu_devices, []);
    assert_eq!(plain.image_name, "registry.example/image");
    nothing_is_left(&world, IDLE, "").await;

    world.clouds.offer(&["large"]);
    let fast = submitted("fast").await;
    assert_eq!(paths(&fast), ["/mine:/run/fast", "/dev/fast:/dev/fast"]);
    let devices: Vec<_> = fast
        .gpu_devices
        .iter()
        .map(|gpu| (gpu.path_on_host.as_str(), gpu.path_in_container.as_str()))
        .collect();
    assert_eq!(
        devices,
        [("/dev/gpu0", "/dev/gpu0"), ("/dev/gpuctl", "/dev/gpuctl")]
    );
    assert_eq!(fast.image_name, "registry.example/image-with-efa");
    nothing_is_left(&world, IDLE, "").await;
}

/// It is the cloud that has the machine which knows its types, and not the one through which it was made.
#[tokio::test(start_paused = true)]
async fn needs_are_those_of_the_backend_behind_the_backend() {
    const NEEDS: JobNeeds = JobNeeds {
        mounts: &[MountedPath::same("/behind")],
        ..JobNeeds::NONE
    };
    let world = world(41, &["small"]).await;
    let behind = world.clouds.add(BackendType::Gcp);
    behind.needs("small", NEEDS);
    let engine = world.start().await.unwrap();
    let (run, instance) = long_job(&world, &engine).await;
    let place = JobProvisioningData {
        base_backend: Some(BackendType::Gcp),
        ..instance.job_provisioning_data.as_deref().unwrap().clone()
    };
    world.clouds.moved(instance.id, place);
    let is_known = |world: &World| {
        let row = instances(world).pop().unwrap();
        let place = row.job_provisioning_data.as_deref();
        place.and_then(|place| place.base_backend) == Some(BackendType::Gcp)
    };
    world
        .until("the row follows", 3 * MINUTE, is_known)
        .await
        .unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    world.finished(&run, 3 * MINUTE).await.unwrap();
    let again = world.submit(&engine, "again", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&again, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"], "the same machine has both jobs");
    let task = world.hosts.submitted(jobs(&world, &again).await[0].id).unwrap();
    assert_eq!(task.instance_mounts[0].instance_path, "/behind");
}

/// What the cloud takes away is known beforehand: jobs are told, and have as long as there is.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_machine_that_is_taken_away_are_told_to_stop_before_it_ends() {
    let world = world(20, &["small"]).await;
    let engine = world.start().await.unwrap();
    let (run, instance) = long_job(&world, &engine).await;
    world.pass(2 * MINUTE).await;
    let job = jobs(&world, &run).await.remove(0);
    world.clouds.will_take(instance.id, "the price went up");
    let is_told = |world: &World| world.hosts.was_stopped(job.id);
    world.until("the job is told", MINUTE, is_told).await.unwrap();
    // Its runner has ended the commands, and their last output is stored, before anything is taken from it.
    let is_ending = |world: &World| {
        instances(world)
            .iter()
            .all(|row| row.status() == InstanceStatus::Terminating)
    };
    world.until("the machine ends", MINUTE, is_ending).await.unwrap();
    let ended = jobs(&world, &run).await.remove(0);
    assert!(ended.status().is_finished(), "{:?}", ended.status());
    let reason = Some(JobTerminationReason::InstanceUnreachable);
    assert_eq!(ended.termination_reason(), reason);
    assert_eq!(ended.termination_reason_message(), Some("the price went up"));
    world.until("all is over", 3 * MINUTE, all_over).await.unwrap();
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// Its agent is cut off: nobody can be told, and the machine ends when the notice does.
#[tokio::test(start_paused = true)]
async fn a_machine_that_is_taken_away_ends_in_time_whatever_its_jobs_do() {
    let world = world(21, &["small"]).await;
    let engine = world.start().await.unwrap();
    let (_, instance) = long_job(&world, &engine).await;
    world.pass(2 * MINUTE).await;
    world.hosts.cut_off(true);
    world.clouds.will_take(instance.id, "the price went up");
    // Noticed within half a minute, and a minute for the jobs.
    let is_ending = |world: &World| {
        instances(world)
            .iter()
            .all(|row| row.status() == InstanceStatus::Terminating)
    };
    world
        .until("the machine ends", 100 * Duration::from_secs(1), is_ending)
        .await
        .unwrap();
}

/// What is in a region that does not answer is not lost, and not well either: it goes on until the region tells.
#[tokio::test(start_paused = true)]
async fn what_is_in_a_region_that_is_away_goes_on() {
    let world = world(23, &["small"]).await;
    let engine = world.start().await.unwrap();
    let (run, instance) = long_job(&world, &engine).await;
    let region = instance.job_provisioning_data.as_deref().unwrap().region.clone();
    world.pass(2 * MINUTE).await;
    world.clouds.take_region_away(&region, true);
    world.clouds.lose(instance.id);
    world.hosts.lose(instance.id);
    let is_there = |world: &World| instances(world).pop().unwrap().termination_reason().is_none();
    world
        .throughout("nobody knows that it is gone", MINUTE, is_there)
        .await
        .unwrap();
    world.clouds.take_region_away(&region, false);
    assert_eq!(world.finished(&run, 3 * MINUTE).await.unwrap(), RunStatus::Failed);
    let ended = instances(&world).pop().unwrap();
    assert_eq!(ended.termination_reason_message(), Some("the machine is gone"));
}

/// That a cloud does not tell just now takes nothing back that it has said.
#[tokio::test(start_paused = true)]
async fn a_notice_stands_while_the_cloud_does_not_tell() {
    let world = world(22, &["small"]).await;
    let engine = world.start().await.unwrap();
    let (_, instance) = long_job(&world, &engine).await;
    world.pass(2 * MINUTE).await;
    // Nobody can be told.
    world.hosts.cut_off(true);
    let at = world.clock.now() + 3 * MINUTE;
    world
        .clouds
        .will_take_at(instance.id, Some(at), "the price went up");
    let is_noted = |world: &World| {
        let row = instances(world).pop().unwrap();
        row.leaving_because.as_deref() == Some("the price went up") && row.leaving_at == Some(at)
    };
    world
        .until("the notice is written down", MINUTE, is_noted)
        .await
        .unwrap();
    world.clouds.unreadable(true);
    world
        .throughout("the notice stands", MINUTE, is_noted)
        .await
        .unwrap();
    let is_ending = |world: &World| instances(world).pop().unwrap().status() == InstanceStatus::Terminating;
    world
        .until("the machine ends", 2 * MINUTE, is_ending)
        .await
        .unwrap();
    drop(engine);
}

/// Its instance takes jobs again.
#[tokio::test(start_paused = true)]
async fn a_notice_that_the_cloud_takes_back_is_forgotten() {
    let world = world(23, &["small"]).await;
    let engine = world.start().await.unwrap();
    let (run, instance) = long_job(&world, &engine).await;
    world.pass(2 * MINUTE).await;
    // Nobody can be told.
    world.hosts.cut_off(true);
    let at = world.clock.now() + 4 * MINUTE;
    world
        .clouds
        .will_take_at(instance.id, Some(at), "the price went up");
    let is_noted = |world: &World| instances(world).pop().unwrap().leaving_because.is_some();
    world
        .until("the notice is written down", MINUTE, is_noted)
        .await
        .unwrap();
    world.clouds.takes_nothing();
    let is_forgotten = |world: &World| !is_noted(world);
    world
        .until("the notice is forgotten", MINUTE, is_forgotten)
        .await
        .unwrap();
    world.hosts.cut_off(false);
    world.finished(&run, 3 * MINUTE).await.unwrap();
    let is_idle = |world: &World| {
        let row = instances(world).pop().unwrap();
        row.status() == InstanceStatus::Idle && !row.unreachable && row.busy_blocks == 0
    };
    world.until("it is idle", MINUTE, is_idle).await.unwrap();
    let again = world.submit(&engine, "again", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&again, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"]);
}

/// What a call has made is looked for until the cloud has said it, however often the server dies meanwhile.
#[tokio::test(start_paused = true)]
async fn killed_again_while_it_looks_for_what_was_made() {
    let world = world(10, &["small", "large"]).await;
    // Before it is noted what the first call has made, and twice before it is noted what is found of it.
    let deaths = [2, 1, 1];
    let mut run = None;
    for nth in deaths {
        let die = Arc::new(DieAt::new("operation.record.before", nth));
        let engine = world.start_dying(&die).await.unwrap();
        if run.is_none() {
            run = Some(world.submit(&engine, "train", &in_cloud()).await.unwrap());
        }
        engine.stopped().await;
        assert!(die.fired());
        assert_eq!(world.clouds.asked(), ["small"]);
        world.leases_run_out().await;
    }
    let _engine = world.start().await.unwrap();
    let status = world.finished(&run.unwrap(), 5 * MINUTE).await.unwrap();
    assert_eq!(status, RunStatus::Done);
    assert_eq!(world.clouds.asked(), ["small"]);
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// Calls take effect after their errors, and what was made is not listed at once.
fn late() -> Delays {
    Delays {
        late: 0.5,
        late_by: Duration::from_secs(100),
        unlisted: Duration::from_secs(30),
        ..Delays::default()
    }
}

/// That a cloud does not list a machine says nothing while a call may still be under way in it.
#[tokio::test(start_paused = true)]
async fn what_a_cloud_makes_late_is_not_made_twice_nor_left() {
    for seed in 0..40 {
        let world = world(seed, &["small", "large"]).await;
        world.clouds.delays(late());
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &short_lived()).await.unwrap();
        if seed % 2 == 1 {
            // Ended by its user while the cloud is at it.
            world.pass(Duration::from_secs(2 * seed)).await;
            world.stop(&engine, &run, false).await.unwrap();
        }
        let status = world.finished(&run, 20 * MINUTE).await;
        let status = status.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        assert!(status.is_finished(), "seed {seed}: {status:?}");
        assert_eq!(invariants::always(&world), Vec::<String>::new(), "seed {seed}");
        nothing_is_left(&world, IDLE, &format!("seed {seed}")).await;
        assert_eq!(invariants::always(&world), Vec::<String>::new(), "seed {seed}");
        engine.stop();
    }
}

/// A server dies in the middle of a call, which takes effect after another has taken over.
#[tokio::test(start_paused = true)]
async fn what_a_dead_server_asked_for_is_found_by_the_next_however_late_it_comes() {
    for tenths in 1..30 {
        let world = world(14, &["small", "large"]).await;
        world.clouds.delays(Delays { late: 1.0, ..late() });
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &short_lived()).await.unwrap();
        world.pass(tenths * Duration::from_millis(100)).await;
        engine.stop();
        world.leases_run_out().await;
        // The next answers in time again.
        world.clouds.delays(Delays { late: 0.0, ..late() });
        let engine = world.start().await.unwrap();
        let status = world.finished(&run, 10 * MINUTE).await;
        let status = status.unwrap_or_else(|stuck| panic!("after {tenths}: {stuck}"));
        assert_eq!(status, RunStatus::Done, "after {tenths}");
        assert_eq!(invariants::always(&world), Vec::<String>::new(), "after {tenths}");
        nothing_is_left(&world, IDLE, &format!("after {tenths}")).await;
        engine.stop();
    }
}
