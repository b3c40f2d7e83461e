//! Volumes on their way to the instances of jobs and back, by engines that die anywhere, in a cloud that loses calls, takes its time,
//! refuses and hangs.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_compute::JobNeeds;
use dstack_engine::failpoint::DieAt;
use dstack_engine::task_config::{Access, task_config};
use dstack_engine::{Engine, Failpoints, Image, SshKeys};
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus};
use dstack_plan::lifecycle::attachment::AttachmentStatus;
use dstack_sim::clouds::Delays;
use dstack_sim::{Faults, Script, World, invariants, killed_everywhere};
use dstack_store::rows::{
    AttachmentRow, InstanceRow, JobRow, OperationRow, OperationState, RunRow, VolumeRow,
};
use dstack_store::{EngineStore, EntityRef, JobSnapshot};
use dstack_system::Secret;
use dstack_units::{Time, VolumeId};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Jobs that do not end by themselves.
const LONG: Script = Script {
    lines: 100_000,
    pause: Duration::from_secs(1),
    exit: 0,
    gpu: None,
    alone: false,
};

/// A job with these volumes, each at a mount point of its own.
fn with(volumes: &[&str]) -> Value {
    let mounts = (0..)
        .zip(volumes)
        .map(|(at, name): (usize, _)| format!("{name}:/data{at}"));
    json!({"fleets": ["cloud"], "volumes": mounts.collect::<Vec<_>>()})
}

async fn world(seed: u64) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer(&["small"]);
    world.clouds.attaching_takes(4 * SECOND);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    world
}

/// A volume that is made.
async fn volume(world: &World, engine: &Engine, name: &str) -> VolumeId {
    world.made_volume(engine, name, &json!({})).await.unwrap()
}

fn volume_row(world: &World, id: VolumeId) -> VolumeRow {
    world.store.read(|tables| tables.volumes[&id].clone())
}

fn attachments(world: &World) -> Vec<AttachmentRow> {
    world
        .store
        .read(|tables| tables.attachments.values().cloned().collect())
}

fn instances(world: &World) -> Vec<InstanceRow> {
    let mut rows: Vec<InstanceRow> = world.store.tables().instances.into_values().collect();
    rows.retain(|row| row.name.starts_with("cloud-"));
    rows.sort_by_key(|row| row.id);
    rows
}

async fn job(world: &World, run: &RunRow) -> JobRow {
    let snapshot = world.store.run(run.id).await.unwrap().unwrap();
    snapshot.jobs.last().unwrap().clone()
}

async fn ended(world: &World, run: &RunRow, within: Duration) -> (RunStatus, Option<String>) {
    let status = world.finished(run, within).await.unwrap();
    let job = job(world, run).await;
    let message = job.termination_reason_message().map(str::to_owned);
    if status == RunStatus::Failed {
        assert_eq!(
            job.termination_reason(),
            Some(JobTerminationReason::VolumeError),
            "{message:?}"
        );
    }
    (status, message)
}

/// No machine has a volume, and no row says so.
fn is_free(world: &World) -> bool {
    world.clouds.attached().is_empty() && attachments(world).is_empty()
}

async fn nothing_is_left(world: &World, engine: &Engine, volumes: &[&str], when: &str) {
    let what = format!("every volume is free {when}");
    world.until(&what, 60 * MINUTE, is_free).await.unwrap();
    for name in volumes {
        world.delete_volume(engine, name).await.unwrap();
    }
    let what = format!("nothing is left {when}");
    let over = |row: &InstanceRow| row.status() == InstanceStatus::Terminated;
    let nothing =
        |world: &World| invariants::nothing_left(world).is_empty() && instances(world).iter().all(over);
    if let Err(unmet) = world.until(&what, 200 * MINUTE, nothing).await {
        panic!("{unmet}: {:?}", invariants::nothing_left(world));
    }
    world.throughout(&what, 2 * MINUTE, nothing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_comes_before_the_task_and_leaves_with_the_job() {
    let world = world(1).await;
    let engine = world.start().await.unwrap();
    let id = volume(&world, &engine, "data").await;
    let unused = volume_row(&world, id).last_job_processed_at;
    world.hosts.script("train", LONG);
    let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    assert_eq!(world.hosts.mounted(), ["vol-1"]);
    let row = attachments(&world).pop().unwrap();
    assert_eq!(row.status(), AttachmentStatus::Attached);
    assert_eq!(
        row.data.as_ref().unwrap().device_name.as_deref(),
        Some("/dev/sdf")
    );
    let runtime = job(&world, &run).await.job_runtime_data.unwrap();
    assert_eq!(runtime.volume_names, Some(vec!["data".to_owned()]));
    let refused = world.delete_volume(&engine, "data").await.unwrap_err();
    let refused = std::error::Error::source(&refused).unwrap().to_string();
    assert_eq!(refused, "Failed to delete volume data. Volume is in use.");
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Terminated);
    assert!(is_free(&world), "it was waited for");
    assert_eq!(world.clouds.attachments_made(), (1, 0));
    assert!(unused.is_none() && volume_row(&world, id).last_job_processed_at.is_some());
    nothing_is_left(&world, &engine, &["data"], "").await;
    let told = world.messages_about(EntityRef::Volume(id));
    assert_eq!(
        told[2..4],
        ["Volume attached to instance", "Volume detached from instance"]
    );
}

/// The machine that was made for the first job is there already for the second.
#[tokio::test(start_paused = true)]
async fn a_machine_that_is_there_gets_the_volume_as_well() {
    let world = world(2).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    for name in ["one", "two"] {
        let run = world.submit(&engine, name, &with(&["data"])).await.unwrap();
        assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Done);
    }
    assert_eq!(
        (instances(&world).len(), world.clouds.attachments_made()),
        (1, (2, 0))
    );
    nothing_is_left(&world, &engine, &["data"], "").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_with_one_machine_at_a_time() {
    let world = world(3).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    world.hosts.script("first", LONG);
    let first = world.submit(&engine, "first", &with(&["data"])).await.unwrap();
    world.running(&first, 10 * MINUTE).await.unwrap();
    let second = world.submit(&engine, "second", &with(&["data"])).await.unwrap();
    let (status, message) = ended(&world, &second, MINUTE).await;
    assert_eq!(status, RunStatus::Failed);
    assert_eq!(
        message.as_deref(),
        Some("Failed to attach volume: data: it is attached to cloud-0, where first-0-0 uses it")
    );
    assert_eq!(instances(&world).len(), 1, "no machine is made for nothing");
    // Once the first ends, the next one waits for its volume.
    world.clouds.attaching_takes(30 * SECOND);
    world.stop(&engine, &first, false).await.unwrap();
    let ends = |world: &World| {
        let jobs = world.store.tables().jobs;
        jobs.values().any(|job| job.status() == JobStatus::Terminating)
    };
    world.until("the first ends", MINUTE, ends).await.unwrap();
    let third = world.submit(&engine, "third", &with(&["data"])).await.unwrap();
    assert_eq!(ended(&world, &third, 10 * MINUTE).await.0, RunStatus::Done);
    assert_eq!(world.clouds.attachments_made(), (2, 0));
    nothing_is_left(&world, &engine, &["data"], "").await;
}

#[tokio::test(start_paused = true)]
async fn jobs_that_name_several_volumes_get_one_each_and_nodes_their_own() {
    let world = world(4).await;
    let engine = world.start().await.unwrap();
    for name in ["data-0", "data-1"] {
        volume(&world, &engine, name).await;
    }
    let any = json!({"fleets": ["cloud"], "volumes": [{"name": ["data-0", "data-1"], "path": "/data"}]});
    let mut runs = Vec::new();
    for name in ["one", "two"] {
        world.hosts.script(name, LONG);
        let run = world.submit(&engine, name, &any).await.unwrap();
        world.running(&run, 10 * MINUTE).await.unwrap();
        runs.push(run);
    }
    let mut mounted = world.hosts.mounted();
    mounted.sort();
    assert_eq!(mounted, ["vol-1", "vol-2"]);
    for run in &runs {
        world.stop(&engine, run, false).await.unwrap();
        assert_eq!(ended(&world, run, 10 * MINUTE).await.0, RunStatus::Terminated);
    }
    let mut own = with(&["data-${{ dstack.node_rank }}"]);
    own["nodes"] = json!(2);
    world.hosts.script("nodes", Script { lines: 60, ..LONG });
    let nodes = world.submit(&engine, "nodes", &own).await.unwrap();
    world.running(&nodes, 10 * MINUTE).await.unwrap();
    let both = |world: &World| world.hosts.mounted().len() == 2;
    world.until("both nodes have theirs", MINUTE, both).await.unwrap();
    let mut names: Vec<(String, String)> = attachments(&world)
        .into_iter()
        .map(|row| (row.instance_name, row.name))
        .collect();
    names.sort();
    names.dedup_by_key(|(instance, _)| instance.clone());
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(ended(&world, &nodes, 10 * MINUTE).await.0, RunStatus::Done);
    nothing_is_left(&world, &engine, &["data-0", "data-1"], "").await;
}

#[tokio::test(start_paused = true)]
async fn what_a_cloud_refuses_or_does_not_do_ends_the_job_with_the_reason() {
    let world = world(5).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    world
        .clouds
        .refuse_attachments(Some("the machine has no slot left"));
    let run = world.submit(&engine, "full", &with(&["data"])).await.unwrap();
    let (status, message) = ended(&world, &run, 10 * MINUTE).await;
    assert_eq!(status, RunStatus::Failed);
    let message = message.unwrap();
    assert!(
        message.starts_with("Failed to attach volume: data: "),
        "{message}"
    );
    assert!(message.contains("the machine has no slot left"), "{message}");
    world.clouds.refuse_attachments(None);
    world.clouds.attaching_takes(60 * MINUTE);
    let run = world.submit(&engine, "slow", &with(&["data"])).await.unwrap();
    let (_, message) = ended(&world, &run, 20 * MINUTE).await;
    let message = message.unwrap();
    assert!(message.contains("not attached within 10 minutes"), "{message}");
    world.clouds.attaching_takes(SECOND);
    let run = world.submit(&engine, "none", &with(&["none"])).await.unwrap();
    let (_, message) = ended(&world, &run, MINUTE).await;
    assert_eq!(message.as_deref(), Some("Volume ['none'] not found"));
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// By force after the `stop_duration`, or after a minute where the run was aborted.
#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_let_go_of_a_volume_loses_it() {
    for (abort, expected) in [(false, 5 * MINUTE), (true, MINUTE)] {
        let world = world(6).await;
        let engine = world.start().await.unwrap();
        volume(&world, &engine, "data").await;
        world.hosts.script("train", LONG);
        let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
        world.running(&run, 10 * MINUTE).await.unwrap();
        world.clouds.detaching_hangs(true);
        world.stop(&engine, &run, abort).await.unwrap();
        let began = world.clock.now();
        assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Terminated);
        let took = world.clock.now().since(began);
        assert!(took >= expected && took < expected + MINUTE, "{took:?}");
        assert_eq!(world.clouds.attachments_made(), (1, 1));
        nothing_is_left(&world, &engine, &["data"], "").await;
    }
}

/// A job does not stay for ever for a cloud that does not answer; its volume is not forgotten.
#[tokio::test(start_paused = true)]
async fn a_cloud_that_does_not_detach_holds_up_the_volume_and_no_job() {
    let world = world(7).await;
    let engine = world.start().await.unwrap();
    let id = volume(&world, &engine, "data").await;
    world.hosts.script("train", LONG);
    let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    world.clouds.gone(true);
    world.stop(&engine, &run, false).await.unwrap();
    let waits = |world: &World| {
        let jobs = world.store.tables().jobs;
        let reasons = jobs
            .values()
            .filter_map(|job| job.waiting_for().map(ToString::to_string));
        let mut about = reasons.filter(|reason| reason.contains("detach volume data from cloud-0"));
        about.any(|reason| reason.contains("configure it again"))
    };
    world
        .until("the job says what it waits for", 5 * MINUTE, waits)
        .await
        .unwrap();
    assert_eq!(ended(&world, &run, 15 * MINUTE).await.0, RunStatus::Terminated);
    assert_eq!(attachments(&world).len(), 1);
    let kept = |world: &World| !volume_row(world, id).to_be_deleted && world.clouds.attached().len() == 1;
    world
        .throughout("it is not forgotten", 30 * MINUTE, kept)
        .await
        .unwrap();
    world.clouds.gone(false);
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// What ran there may still run, as far as anybody knows: the volume goes on with the cloud's word only.
#[tokio::test(start_paused = true)]
async fn the_volume_of_a_machine_that_breaks_goes_to_the_next() {
    let world = world(8).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    world.hosts.script("train", LONG);
    let mut retried = with(&["data"]);
    retried["retry"] = json!({"on_events": ["error", "interruption"], "duration": "1h"});
    let run = world.submit(&engine, "train", &retried).await.unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    let broken = instances(&world).pop().unwrap();
    world.hosts.lose(broken.id);
    let moved = |world: &World| {
        let of_next =
            |row: &AttachmentRow| row.instance_id != broken.id && row.status() == AttachmentStatus::Attached;
        attachments(world).iter().any(of_next)
    };
    world
        .until("another machine has it", 60 * MINUTE, moved)
        .await
        .unwrap();
    assert_eq!(world.clouds.attached_wrongly(), Vec::<String>::new());
    world.stop(&engine, &run, false).await.unwrap();
    world.finished(&run, 10 * MINUTE).await.unwrap();
    world.until("it is free", 10 * MINUTE, is_free).await.unwrap();
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_used_is_not_cleaned_up_and_idle_counts_from_its_last_use() {
    let world = world(9).await;
    let engine = world.start().await.unwrap();
    let cleaned = json!({"auto_cleanup_duration": "1h"});
    let id = world.made_volume(&engine, "data", &cleaned).await.unwrap();
    world.hosts.script("train", LONG);
    let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    let kept = |world: &World| !volume_row(world, id).to_be_deleted;
    world.throughout("it is used", 120 * MINUTE, kept).await.unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Terminated);
    world.throughout("it was used", 55 * MINUTE, kept).await.unwrap();
    let deleted = |world: &World| volume_row(world, id).deleted;
    world
        .until("it is cleaned up", 10 * MINUTE, deleted)
        .await
        .unwrap();
}

/// Volumes that containers are made with are in use as long as these exist.
#[tokio::test(start_paused = true)]
async fn a_volume_that_a_container_is_made_with_is_free_when_that_is_gone() {
    let world = world(10).await;
    world.clouds.offer_containers(&["small"]);
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    let mut runs = Vec::new();
    // As many as want to.
    for name in ["one", "two"] {
        world.hosts.script(&format!("cloud-{}", runs.len()), LONG);
        let run = world.submit(&engine, name, &with(&["data"])).await.unwrap();
        world.running(&run, 10 * MINUTE).await.unwrap();
        runs.push(run);
    }
    let rows = attachments(&world);
    assert!(rows.len() == 2 && rows.iter().all(|row| row.handed_over));
    assert_eq!(world.clouds.attachments_made(), (0, 0), "there is no call");
    assert!(world.delete_volume(&engine, "data").await.is_err());
    for run in &runs {
        world.stop(&engine, run, false).await.unwrap();
        world.finished(run, 10 * MINUTE).await.unwrap();
    }
    nothing_is_left(&world, &engine, &["data"], "").await;
}

#[tokio::test(start_paused = true)]
async fn in_a_cloud_that_loses_calls_and_answers_late_volumes_are_attached_once() {
    let mut done = 0;
    for seed in 0..15 {
        let world = world(seed).await;
        let engine = world.start().await.unwrap();
        volume(&world, &engine, "data").await;
        // There is a machine already, as nothing else is of interest.
        let idle = json!({"fleets": ["cloud"], "idle_duration": "30m"});
        let warm = world.submit(&engine, "warm", &idle).await.unwrap();
        assert_eq!(world.finished(&warm, 10 * MINUTE).await.unwrap(), RunStatus::Done);
        world.clouds.faults(Faults {
            lost_call: 0.2,
            lost_answer: 0.2,
            ..Faults::default()
        });
        world.clouds.delays(Delays {
            late: 0.2,
            late_by: 20 * SECOND,
            unlisted: 10 * SECOND,
            ..Delays::default()
        });
        for name in ["one", "two"] {
            let run = world.submit(&engine, name, &with(&["data"])).await.unwrap();
            let status = world.finished(&run, 90 * MINUTE).await.unwrap();
            done += usize::from(status == RunStatus::Done);
            if status == RunStatus::Failed {
                // A cloud that loses every other call may not do it in time.
                let message = ended(&world, &run, MINUTE).await.1.unwrap();
                let is_known = message.contains("within 10 minutes") || message.contains("did not make it");
                assert!(is_known, "{message} (seed {seed})");
            }
        }
        nothing_is_left(&world, &engine, &["data"], &format!("(seed {seed})")).await;
    }
    assert!(done >= 25, "{done} of 30 got their volumes");
}

/// A job gets its volume and ends, by an engine that is killed at a failpoint, and another that goes on.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = world(11).await;
    let die = Arc::new(DieAt::new(point, nth));
    let first = world.start().await.unwrap();
    volume(&world, &first, "data").await;
    first.stop();
    world.leases_run_out().await;
    let mut engine = {
        let failpoints = Arc::clone(&die) as Arc<dyn Failpoints>;
        world.start_with(failpoints).await.unwrap()
    };
    let mut more = with(&["data"]);
    more["idle_duration"] = json!("30s");
    world.hosts.script("train", Script { lines: 3, ..LONG });
    let when = format!("killed at {point} #{nth}");
    let (run, killed) = tokio::select! {
        run = world.submit(&engine, "train", &more) => (run.unwrap(), false),
        () = engine.stopped() => {
            engine = restart(&world).await;
            (world.submit(&engine, "train", &more).await.unwrap(), true)
        }
    };
    if !killed {
        tokio::select! {
            () = engine.stopped() => engine = restart(&world).await,
            () = world.pass(MINUTE) => {} // the whole story but for the end of the machine
        }
    }
    let status = world.finished(&run, 30 * MINUTE).await;
    let status = status.unwrap_or_else(|stuck| panic!("{when}: {stuck}"));
    assert_eq!(status, RunStatus::Done, "{when}");
    engine.stop();
    let engine = restart(&world).await;
    nothing_is_left(&world, &engine, &["data"], &when).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{when}");
    die
}

async fn restart(world: &World) -> Engine {
    world.leases_run_out().await;
    world.start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_no_volume_is_attached_twice_or_left_attached() {
    let points = killed_everywhere(1..=3, killed_at).await;
    for wanted in [
        "attachment.commit.before",
        "attachment.commit.after",
        "job.commit.after",
        "schedule.commit.after",
        "instance.commit.after",
        "cloud.create.before",
        "cloud.create.after",
        "cloud.remove.before",
        "cloud.remove.after",
        "operation.record.before",
        "shim.submit.before",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}

/// Each drives what it was asked for; either may be killed at any time.
#[tokio::test(start_paused = true)]
async fn of_two_servers_one_attaches_and_whoever_is_left_finishes() {
    for tenths in (0..400).step_by(10) {
        let world = world(12).await;
        let doomed = world.start_as("a").await.unwrap();
        let heir = world.start_as("b").await.unwrap();
        volume(&world, &doomed, "data").await;
        let run = world.submit(&doomed, "one", &with(&["data"])).await.unwrap();
        world.pass(Duration::from_millis(100 * tenths)).await;
        doomed.stop();
        assert_eq!(ended(&world, &run, 30 * MINUTE).await.0, RunStatus::Done);
        let next = world.submit(&heir, "two", &with(&["data"])).await.unwrap();
        assert_eq!(ended(&world, &next, 30 * MINUTE).await.0, RunStatus::Done);
        nothing_is_left(&world, &heir, &["data"], &format!("after {tenths}")).await;
        heir.stop();
    }
}

/// Two servers that place jobs at the same moment do not both give the volume away.
#[tokio::test(start_paused = true)]
async fn of_two_jobs_placed_at_once_by_two_servers_one_gets_the_volume() {
    for seed in 0..20 {
        let world = world(seed).await;
        let servers = [
            world.start_as("a").await.unwrap(),
            world.start_as("b").await.unwrap(),
        ];
        volume(&world, &servers[0], "data").await;
        let mut runs = Vec::new();
        for (name, server) in ["one", "two"].into_iter().zip(&servers) {
            world.hosts.script(name, Script { lines: 300, ..LONG });
            runs.push(world.submit(server, name, &with(&["data"])).await.unwrap());
        }
        let mut done = 0;
        for run in &runs {
            done += usize::from(ended(&world, run, 60 * MINUTE).await.0 == RunStatus::Done);
        }
        assert_eq!(done, 1, "(seed {seed})");
        assert_eq!(
            world.clouds.asked().len(),
            1,
            "no machine for the other (seed {seed})"
        );
        nothing_is_left(&world, &servers[0], &["data"], &format!("(seed {seed})")).await;
    }
}

/// Whether a job has asked for a machine, or for a container, that is begun with.
fn is_begun(world: &World) -> bool {
    !world.clouds.machines().is_empty() || !world.clouds.containers().is_empty()
}

/// Before its machine is there a job has its volume for itself: it is neither cleaned up, nor deleted, nor anybody else's.
#[tokio::test(start_paused = true)]
async fn a_volume_is_kept_for_a_job_whose_machine_takes_its_time() {
    let world = world(13).await;
    let engine = world.start().await.unwrap();
    let cleaned = json!({"auto_cleanup_duration": "1h"});
    let id = world.made_volume(&engine, "data", &cleaned).await.unwrap();
    world.pass(55 * MINUTE).await;
    world.clouds.never_ready(&["small"]);
    let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
    world.until("it is begun", MINUTE, is_begun).await.unwrap();
    let other = world.submit(&engine, "other", &with(&["data"])).await.unwrap();
    let (status, message) = ended(&world, &other, MINUTE).await;
    assert_eq!(status, RunStatus::Failed);
    assert_eq!(
        message.as_deref(),
        Some("Failed to attach volume: data: it is attached to cloud-0, where train-0-0 uses it")
    );
    assert_eq!(instances(&world).len(), 1, "no machine is made for nothing");
    assert!(world.delete_volume(&engine, "data").await.is_err());
    let kept = |world: &World| !volume_row(world, id).to_be_deleted;
    world
        .throughout("it is kept for the job", 8 * MINUTE, kept)
        .await
        .unwrap();
    world.clouds.never_ready(&[]);
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Done);
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// However the wait for a machine ends, the volume is free for the next job.
#[tokio::test(start_paused = true)]
async fn a_volume_is_free_when_no_machine_is_made_for_its_job() {
    let world = world(14).await;
    let engine = world.start().await.unwrap();
    let id = volume(&world, &engine, "data").await;
    world.clouds.full(&["small"]);
    let run = world.submit(&engine, "full", &with(&["data"])).await.unwrap();
    assert_eq!(
        world.finished(&run, 10 * MINUTE).await.unwrap(),
        RunStatus::Failed
    );
    assert!(is_free(&world), "no offer worked");
    world.clouds.full(&[]);
    world.clouds.never_ready(&["small"]);
    for abort in [false, true] {
        let name = format!("stopped-{abort}");
        let run = world.submit(&engine, &name, &with(&["data"])).await.unwrap();
        world.until("it is begun", MINUTE, is_begun).await.unwrap();
        world.pass(2 * MINUTE).await;
        assert!(!is_free(&world));
        world.stop(&engine, &run, abort).await.unwrap();
        let stopped = world.clock.now();
        world.finished(&run, 10 * MINUTE).await.unwrap();
        world.until("it is free", MINUTE, is_free).await.unwrap();
        let used = volume_row(&world, id).last_job_processed_at;
        assert!(used >= Some(stopped), "it was kept until then");
        let gone = |world: &World| !is_begun(world);
        world.until("the machine is gone", MINUTE, gone).await.unwrap();
    }
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// Also of one that is stopped before it is there: its container has the volume until it is gone.
#[tokio::test(start_paused = true)]
async fn a_volume_is_in_use_as_long_as_a_container_that_is_begun_with_it() {
    let world = world(15).await;
    world.clouds.offer_containers(&["small"]);
    world.clouds.never_ready(&["small"]);
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
    world.until("it is begun", MINUTE, is_begun).await.unwrap();
    assert_eq!(world.clouds.workload().unwrap().volumes[0].name, "data");
    assert!(world.delete_volume(&engine, "data").await.is_err());
    world.stop(&engine, &run, false).await.unwrap();
    let in_use = |world: &World| !is_begun(world) || !attachments(world).is_empty();
    world
        .throughout("it is in use while the container is there", 5 * MINUTE, in_use)
        .await
        .unwrap();
    assert!(!is_begun(&world));
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// Of several volumes the first that any offer can have counts, and then only offers that can have it.
#[tokio::test(start_paused = true)]
async fn a_machine_is_made_where_the_volumes_are_that_were_chosen_for_it() {
    let world = world(16).await;
    world
        .clouds
        .offer_in(&[("small", "here", &["a", "b"]), ("large", "here", &["a", "b"])]);
    let engine = world.start().await.unwrap();
    for (name, zone) in [("in-b", "b"), ("in-a", "a")] {
        let there = json!({"availability_zone": zone});
        world.made_volume(&engine, name, &there).await.unwrap();
    }
    world.clouds.full(&["small"]);
    let any = json!({"fleets": ["cloud"], "volumes": [{"name": ["in-b", "in-a"], "path": "/data"}]});
    world.hosts.script("train", LONG);
    let run = world.submit(&engine, "train", &any).await.unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    assert_eq!(world.clouds.asked(), ["small", "large"]);
    assert_eq!(attachments(&world)[0].name, "in-b");
    let place = instances(&world)[0].job_provisioning_data.clone().unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("b"));
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Terminated);
    nothing_is_left(&world, &engine, &["in-a", "in-b"], "").await;
}

/// The first node's volume takes its time; the other node's is refused meanwhile, which is not waited with.
#[tokio::test(start_paused = true)]
async fn a_node_whose_volume_is_refused_does_not_wait_for_other_nodes_to_fail() {
    let world = world(17).await;
    let engine = world.start().await.unwrap();
    for name in ["data-0", "data-1"] {
        volume(&world, &engine, name).await;
    }
    world.clouds.attaching_takes(5 * MINUTE);
    let mut own = with(&["data-${{ dstack.node_rank }}"]);
    own["nodes"] = json!(2);
    own["startup_order"] = json!("master-first");
    let run = world.submit(&engine, "nodes", &own).await.unwrap();
    let first = |world: &World| world.clouds.attached().len() == 1;
    world
        .until("the first is being attached", 5 * MINUTE, first)
        .await
        .unwrap();
    world
        .clouds
        .refuse_attachments(Some("the machine has no slot left"));
    let failed = |world: &World| {
        let mut jobs = world.store.tables().jobs.into_values();
        jobs.any(|job| job.termination_reason() == Some(JobTerminationReason::VolumeError))
    };
    world.until("the other ends", 2 * MINUTE, failed).await.unwrap();
    world.finished(&run, 20 * MINUTE).await.unwrap();
    nothing_is_left(&world, &engine, &["data-0", "data-1"], "").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_could_not_be_attached_is_free() {
    let world = world(18).await;
    let engine = world.start().await.unwrap();
    let id = volume(&world, &engine, "data").await;
    // Its job has not taken note yet.
    let row = volume_row(&world, id);
    let fleet = world.store.tables().fleets.into_values().next().unwrap();
    let now = world.clock.now();
    let instance = InstanceRow::pending(world.builder.random.uuid().into(), &fleet, 9, now);
    let made = row.provisioning_data.clone().unwrap();
    let (key, job) = (
        world.builder.random.uuid().into(),
        world.builder.random.uuid().into(),
    );
    let mut failed = AttachmentRow::wanted(key, (&row, &made), (&instance, job), false, now);
    failed.begun = true;
    let long_ago = Time::from_millis(now.as_millis() - 15 * 60 * 1000);
    failed.give_up("it took too long".to_owned(), long_ago).unwrap();
    failed.fail("no slot left".to_owned(), now).unwrap();
    let mut changes = world.builder.changes(now);
    changes.insert_silently(failed);
    world.store.commit(changes.into_commit()).await.unwrap();
    let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Done);
    assert_eq!(attachments(&world).len(), 1);
    world.delete_volume(&engine, "data").await.unwrap();
    let deleted = |world: &World| volume_row(world, id).deleted;
    world.until("it is deleted", 5 * MINUTE, deleted).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_machine_is_made_where_not_all_volumes_are_that_are_free() {
    let world = world(19).await;
    world.clouds.offer_in(&[("small", "here", &["a", "b"])]);
    let engine = world.start().await.unwrap();
    for (name, zone) in [("in-a", "a"), ("in-b", "b"), ("more-b", "b")] {
        let there = json!({"availability_zone": zone});
        world.made_volume(&engine, name, &there).await.unwrap();
    }
    world.hosts.script("first", LONG);
    let first = world.submit(&engine, "first", &with(&["in-b"])).await.unwrap();
    world.running(&first, 10 * MINUTE).await.unwrap();
    let both = json!({"fleets": ["cloud"], "volumes": [
        {"name": ["in-b", "in-a"], "path": "/data"}, {"name": ["more-b"], "path": "/more"},
    ]});
    let run = world.submit(&engine, "both", &both).await.unwrap();
    let (status, message) = ended(&world, &run, 5 * MINUTE).await;
    assert_eq!(status, RunStatus::Failed);
    let message = message.unwrap();
    assert!(
        message.ends_with("are in different availability zones"),
        "{message}"
    );
    assert!(message.contains("no other job uses"), "{message}");
    assert_eq!(instances(&world).len(), 1);
    world.stop(&engine, &first, false).await.unwrap();
    assert_eq!(ended(&world, &first, 10 * MINUTE).await.0, RunStatus::Terminated);
    nothing_is_left(&world, &engine, &["in-a", "in-b", "more-b"], "").await;
}

/// A volume that its last machine does not let go of costs no machine for each job that wants it next.
#[tokio::test(start_paused = true)]
async fn a_job_waits_without_a_machine_for_a_volume_that_is_not_let_go_of() {
    let world = world(20).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    let mut held = with(&["data"]);
    held["stop_duration"] = json!("off");
    held["idle_duration"] = json!("10s");
    let mut kept = Vec::new();
    for name in ["first", "second"] {
        world.hosts.script(name, LONG);
        let run = world.submit(&engine, name, &held).await.unwrap();
        world.running(&run, 10 * MINUTE).await.unwrap();
        world.clouds.detaching_hangs(true);
        world.stop(&engine, &run, false).await.unwrap();
        world.pass(2 * MINUTE).await;
        kept.push(run);
        if name == "first" {
            let next = world.submit(&engine, "next", &with(&["data"])).await.unwrap();
            let waits = |world: &World| {
                world.status(next.id) == Some(RunStatus::Submitted) && world.clouds.machines().len() == 1
            };
            world
                .throughout("it waits, and costs nothing", 3 * MINUTE, waits)
                .await
                .unwrap();
            world.clouds.detaching_hangs(false);
            assert_eq!(ended(&world, &next, 5 * MINUTE).await.0, RunStatus::Done);
        }
    }
    // Neither does it wait for ever.
    let late = world.submit(&engine, "late", &with(&["data"])).await.unwrap();
    let (status, message) = ended(&world, &late, 9 * MINUTE).await;
    assert_eq!(status, RunStatus::Failed);
    let message = message.unwrap();
    let expected = "Failed to attach volume: data: cloud-0 has not let go of it for 10 minutes";
    assert!(message.starts_with(expected), "{message}");
    let asked = world.clouds.asked().len();
    let later = world.submit(&engine, "later", &with(&["data"])).await.unwrap();
    assert_eq!(ended(&world, &later, MINUTE).await.0, RunStatus::Failed);
    assert_eq!(world.clouds.asked().len(), asked);
    world.clouds.detaching_hangs(false);
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// The disk that was attached is not at the machine any more, which lives.
async fn is_detached(world: &World, what: &str) {
    world.until(what, 5 * MINUTE, is_free).await.unwrap();
    assert_eq!(world.clouds.machines().len(), 1, "{what}");
    assert_eq!(invariants::always(world), Vec::<String>::new(), "{what}");
}

/// What the cloud said of an attached volume may be noted in a form that an earlier version cannot read: that is not waited with for ever,
/// and the volume is detached all the same.
#[tokio::test(start_paused = true)]
async fn a_job_does_not_wait_for_ever_for_notes_that_cannot_be_read() {
    let changes: [fn(&mut Value); 2] = [
        |notes| notes["of_a_later_version"] = json!(1),
        |notes| *notes = json!({"parts": notes["pieces"]}),
    ];
    let mut seen = 0;
    for nth in 1..60 {
        let world = world(21).await;
        let die = Arc::new(DieAt::new("attachment.commit.before", nth / 2 + 1));
        let first = world.start().await.unwrap();
        volume(&world, &first, "data").await;
        first.stop();
        world.leases_run_out().await;
        let engine = world.start_dying(&die).await.unwrap();
        let mut lasting = with(&["data"]);
        lasting["idle_duration"] = json!("1h");
        let run = world.submit(&engine, "train", &lasting).await.unwrap();
        tokio::select! {
            () = engine.stopped() => {}
            () = world.pass(5 * MINUTE) => break,
        }
        let Some(row) = attachments(&world).pop() else {
            continue;
        };
        let subject = EntityRef::Attachment(row.id);
        let is_done = |row: OperationRow| row.state == OperationState::Done;
        let is_attached = world.creation_of(subject).is_some_and(is_done);
        if !is_attached || row.status() != AttachmentStatus::Attaching {
            continue;
        }
        seen += 1;
        world.leases_run_out().await;
        let change = changes[nth as usize % 2];
        world.change_notes_of_creation(subject, change).await.unwrap();
        let engine = world.start().await.unwrap();
        let (status, message) = ended(&world, &run, 15 * MINUTE).await;
        assert_eq!(status, RunStatus::Failed);
        let message = message.unwrap();
        assert!(message.contains("cannot read"), "{message}");
        is_detached(&world, "it is detached").await;
        nothing_is_left(&world, &engine, &["data"], "").await;
    }
    assert!(seen >= 2);
}

/// Nobody knows then whether it is attached: the cloud is asked when it is not wanted any more.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_being_attached_with_notes_that_cannot_be_read_is_detached() {
    let changes: [fn(&mut Value); 2] = [
        |notes| *notes = json!({"parts": notes["pieces"]}),
        // What the backend has noted, too, may be of a later version.
        |notes| notes["pieces"] = json!({"attachment": {"of_a_later_version": 1}}),
    ];
    for change in changes {
        let world = world(24).await;
        world.clouds.attaching_takes(5 * MINUTE);
        let engine = world.start().await.unwrap();
        volume(&world, &engine, "data").await;
        let mut lasting = with(&["data"]);
        lasting["idle_duration"] = json!("1h");
        let run = world.submit(&engine, "train", &lasting).await.unwrap();
        let is_asked = |world: &World| world.clouds.attached().len() == 1;
        world
            .until("it is asked for", 5 * MINUTE, is_asked)
            .await
            .unwrap();
        world.pass(SECOND).await;
        let subject = EntityRef::Attachment(attachments(&world)[0].id);
        world.change_notes_of_creation(subject, change).await.unwrap();
        let is_told = |world: &World| {
            let reasons = attachments(world).into_iter();
            let mut reasons = reasons.filter_map(|row| row.waiting_for().map(ToString::to_string));
            reasons.any(|reason| reason.contains("start the version that made it"))
        };
        world.until("people see why", 2 * MINUTE, is_told).await.unwrap();
        let (_, message) = ended(&world, &run, 15 * MINUTE).await;
        let message = message.unwrap();
        assert!(message.contains("not attached within 10 minutes"), "{message}");
        world.clouds.attaching_takes(SECOND);
        is_detached(&world, "it is detached").await;
        nothing_is_left(&world, &engine, &["data"], "").await;
    }
}

/// The server that drives the job is gone when another gives up to attach its volume.
#[tokio::test(start_paused = true)]
async fn a_job_is_told_why_its_volume_was_given_up_however_late_it_looks() {
    for tenths in (1..60).step_by(4) {
        let world = world(22).await;
        let (one, other) = (
            world.start_as("a").await.unwrap(),
            world.start_as("b").await.unwrap(),
        );
        volume(&world, &one, "data").await;
        let idle = json!({"fleets": ["cloud"], "idle_duration": "30m"});
        let warm = world.submit(&other, "warm", &idle).await.unwrap();
        assert_eq!(world.finished(&warm, 10 * MINUTE).await.unwrap(), RunStatus::Done);
        world.pass(Duration::from_millis(100 * tenths)).await;
        world.clouds.attaching_takes(60 * MINUTE);
        // The job goes to the server that drives the machine; who has placed it attaches the volume.
        let run = world.submit(&one, "train", &with(&["data"])).await.unwrap();
        let is_asked = |world: &World| world.clouds.attached().len() == 1;
        world.until("it is asked for", MINUTE, is_asked).await.unwrap();
        let until = attachments(&world)[0].deadline_at().unwrap();
        let left = until.since(world.clock.now());
        world.pass(left.saturating_sub(Duration::from_millis(10))).await;
        other.stop();
        world.clouds.attaching_takes(Duration::ZERO);
        let message = ended(&world, &run, 10 * MINUTE).await.1.unwrap();
        assert!(
            message.contains("not attached within 10 minutes"),
            "{message} (after {tenths})"
        );
        nothing_is_left(&world, &one, &["data"], "").await;
    }
}

/// Instances without network volumes cost no question about these.
#[tokio::test(start_paused = true)]
async fn nobody_asks_for_the_volumes_of_instances_that_have_none() {
    let world = world(23).await;
    let server = world.start_server("a", Duration::ZERO).await.unwrap();
    let without = json!({"fleets": ["cloud"], "idle_duration": "10s"});
    let run = world.submit(&server.engine, "train", &without).await.unwrap();
    assert_eq!(world.finished(&run, 10 * MINUTE).await.unwrap(), RunStatus::Done);
    let over = |world: &World| {
        let mut rows = instances(world).into_iter();
        rows.all(|row| row.status() == InstanceStatus::Terminated)
    };
    world
        .until("the machine is gone", 10 * MINUTE, over)
        .await
        .unwrap();
    assert_eq!(server.attachments_asked(), 0);
}

/// Volumes in two zones, of which a job wants any.
async fn in_two_zones(world: &World, engine: &Engine) -> Value {
    for (name, zone) in [("in-b", "b"), ("in-a", "a")] {
        let there = json!({"availability_zone": zone});
        world.made_volume(engine, name, &there).await.unwrap();
    }
    json!({"fleets": ["cloud"], "volumes": [{"name": ["in-b", "in-a"], "path": "/data"}]})
}

#[tokio::test(start_paused = true)]
async fn where_the_zone_of_a_volume_is_full_the_next_volume_is_taken() {
    let world = world(25).await;
    world
        .clouds
        .offer_in(&[("small", "here", &["a", "b"]), ("large", "here", &["b"])]);
    let engine = world.start().await.unwrap();
    let any = in_two_zones(&world, &engine).await;
    world.clouds.full(&["small in b", "large"]);
    world.hosts.script("train", LONG);
    let run = world.submit(&engine, "train", &any).await.unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    assert_eq!(world.clouds.asked(), ["small", "large", "small"]);
    let names: Vec<String> = attachments(&world).into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["in-a"], "the other is free again");
    let place = instances(&world)[0].job_provisioning_data.clone().unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("a"));
    world.delete_volume(&engine, "in-b").await.unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Terminated);
    nothing_is_left(&world, &engine, &["in-a"], "").await;
}

#[tokio::test(start_paused = true)]
async fn where_all_zones_are_full_all_are_told_and_each_attempt_tries_all() {
    let world = world(26).await;
    world.clouds.offer_in(&[("small", "here", &["a", "b"])]);
    let engine = world.start().await.unwrap();
    let mut any = in_two_zones(&world, &engine).await;
    world.clouds.full(&["small"]);
    let run = world.submit(&engine, "once", &any).await.unwrap();
    let status = world.finished(&run, 10 * MINUTE).await.unwrap();
    assert_eq!(status, RunStatus::Failed);
    let message = job(&world, &run).await;
    let message = message.termination_reason_message().unwrap().to_owned();
    assert!(message.contains("tried 2 of 2 offers, all failed"), "{message}");
    assert!(is_free(&world));
    any["retry"] = json!({"on_events": ["no-capacity"], "duration": "1h"});
    world.hosts.script("again", LONG);
    let run = world.submit(&engine, "again", &any).await.unwrap();
    let tried = |world: &World| world.clouds.asked().len() >= 6;
    world.until("two attempts", 30 * MINUTE, tried).await.unwrap();
    world.clouds.full(&["small in b"]);
    world.running(&run, 30 * MINUTE).await.unwrap();
    assert_eq!(attachments(&world)[0].name, "in-a");
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Terminated);
    nothing_is_left(&world, &engine, &["in-a", "in-b"], "").await;
}

/// A job takes other volumes, by an engine that is killed at a failpoint, and another that goes on.
async fn killed_while_others_are_taken(point: &'static str, nth: u32) -> Arc<DieAt> {
    let when = format!("killed at {point} #{nth}");
    let world = world(27).await;
    world.clouds.offer_in(&[("small", "here", &["a", "b"])]);
    let first = world.start().await.unwrap();
    let mut any = in_two_zones(&world, &first).await;
    any["idle_duration"] = json!("30s");
    first.stop();
    world.leases_run_out().await;
    world.clouds.full(&["small in b"]);
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let run = world.submit(&engine, "train", &any).await.unwrap();
    let engine = world.after_death(engine, MINUTE).await.unwrap();
    let status = world.finished(&run, 30 * MINUTE).await.unwrap();
    assert_eq!(status, RunStatus::Done, "{when}");
    assert_eq!(world.clouds.attachments_made(), (1, 0), "{when}");
    nothing_is_left(&world, &engine, &["in-a", "in-b"], &when).await;
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_one_volume_or_the_other_is_taken_and_neither_is_left() {
    let points = killed_everywhere(1..=2, killed_while_others_are_taken).await;
    for wanted in ["claims.commit.before", "claims.commit.after"] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}

/// However long it was waited for a machine or for the volume, that was a use of it.
#[tokio::test(start_paused = true)]
async fn a_volume_is_unused_since_its_job_did_not_get_it() {
    let world = world(28).await;
    let engine = world.start().await.unwrap();
    let id = volume(&world, &engine, "data").await;
    world.clouds.never_ready(&["small"]);
    let run = world.submit(&engine, "late", &with(&["data"])).await.unwrap();
    let status = world.finished(&run, 30 * MINUTE).await.unwrap();
    assert_eq!(status, RunStatus::Failed);
    let used = |world: &World| volume_row(world, id).last_job_processed_at.unwrap();
    let now = world.clock.now();
    assert!(used(&world) + MINUTE > now, "no machine was made");
    world.clouds.never_ready(&[]);
    world.clouds.refuse_attachments(Some("no slot left"));
    world.clouds.delays(Delays {
        lookup: 90 * SECOND,
        ..Delays::default()
    });
    let run = world.submit(&engine, "full", &with(&["data"])).await.unwrap();
    let failed = |world: &World| {
        let failed = |row: &AttachmentRow| row.status() == AttachmentStatus::Failed;
        attachments(world).iter().any(failed) || world.status(run.id) == Some(RunStatus::Failed)
    };
    world.until("it is refused", 30 * MINUTE, failed).await.unwrap();
    let now = world.clock.now();
    assert!(used(&world) + 30 * SECOND > now, "it was not attached");
    world.clouds.delays(Delays::default());
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Failed);
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// Servers before this one took the volumes of a job when its machine was there, and chose those of a container when it was asked for.
#[tokio::test(start_paused = true)]
async fn a_job_that_waits_since_before_an_upgrade_gets_its_volumes() {
    for in_container in [false, true] {
        let world = world(29).await;
        if in_container {
            world.clouds.offer_containers(&["small"]);
        }
        world.clouds.never_ready(&["small"]);
        let engine = world.start().await.unwrap();
        volume(&world, &engine, "data").await;
        let script = if in_container { "cloud-0" } else { "train" };
        world.hosts.script(script, LONG);
        let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
        world.until("it is begun", MINUTE, is_begun).await.unwrap();
        engine.stop();
        world.leases_run_out().await;
        let mut changes = world.builder.changes(world.clock.now());
        for row in attachments(&world) {
            changes.remove_silently(row);
        }
        world.store.commit(changes.into_commit()).await.unwrap();
        world.clouds.never_ready(&[]);
        let engine = world.start().await.unwrap();
        world.running(&run, 10 * MINUTE).await.unwrap();
        let rows = attachments(&world);
        assert_eq!((rows.len(), rows[0].handed_over), (1, in_container));
        world.stop(&engine, &run, false).await.unwrap();
        world.finished(&run, 10 * MINUTE).await.unwrap();
        nothing_is_left(&world, &engine, &["data"], "").await;
    }
}

/// How long the next job waits counts from when the one that has the volume began to end, not from when it lets go.
#[tokio::test(start_paused = true)]
async fn no_machine_is_made_for_the_volume_of_a_job_that_takes_its_time_to_end() {
    let world = world(30).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    world.hosts.script("first", LONG);
    let first = world.submit(&engine, "first", &with(&["data"])).await.unwrap();
    world.running(&first, 10 * MINUTE).await.unwrap();
    world.hosts.cut_off(true);
    world.stop(&engine, &first, false).await.unwrap();
    world.pass(2 * MINUTE).await;
    let is_attached = |row: &AttachmentRow| row.status() == AttachmentStatus::Attached;
    assert!(
        attachments(&world).iter().all(is_attached),
        "nobody can be asked to end it"
    );
    let next = world.submit(&engine, "next", &with(&["data"])).await.unwrap();
    let waits = |world: &World| world.clouds.asked().len() == 1;
    world
        .throughout("it costs nothing", 2 * MINUTE, waits)
        .await
        .unwrap();
    world.hosts.cut_off(false);
    assert_eq!(ended(&world, &next, 20 * MINUTE).await.0, RunStatus::Done);
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// Ten minutes, however much of that the job took until it let go, and although its cloud does not do it at all.
#[tokio::test(start_paused = true)]
async fn the_wait_for_a_volume_is_bounded_from_when_the_job_began_to_end_that_has_it() {
    let world = world(34).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    let mut held = with(&["data"]);
    held["stop_duration"] = json!("off");
    world.hosts.script("first", LONG);
    let first = world.submit(&engine, "first", &held).await.unwrap();
    world.running(&first, 10 * MINUTE).await.unwrap();
    world.clouds.detaching_hangs(true);
    world.hosts.cut_off(true);
    world.stop(&engine, &first, false).await.unwrap();
    let began = world.clock.now();
    world.pass(4 * MINUTE).await;
    world.hosts.cut_off(false);
    world.pass(MINUTE).await;
    let next = world.submit(&engine, "next", &with(&["data"])).await.unwrap();
    let (status, message) = ended(&world, &next, 20 * MINUTE).await;
    assert_eq!(status, RunStatus::Failed);
    let message = message.unwrap();
    let expected = "Failed to attach volume: data: cloud-0 has not let go of it for 10 minutes";
    assert!(message.starts_with(expected), "{message}");
    let took = world.clock.now().since(began);
    assert!(
        took >= 10 * MINUTE && took < 10 * MINUTE + 30 * SECOND,
        "{took:?}"
    );
    assert_eq!(world.clouds.asked().len(), 1, "it has cost nothing");
    world.clouds.detaching_hangs(false);
    nothing_is_left(&world, &engine, &["data"], "").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_on_its_way_to_a_job_that_is_over_turns_back() {
    let world = world(31).await;
    let engine = world.start().await.unwrap();
    let id = volume(&world, &engine, "data").await;
    let idle = json!({"fleets": ["cloud"], "idle_duration": "1h"});
    let warm = world.submit(&engine, "warm", &idle).await.unwrap();
    assert_eq!(world.finished(&warm, 10 * MINUTE).await.unwrap(), RunStatus::Done);
    engine.stop();
    world.leases_run_out().await;
    let (row, now) = (volume_row(&world, id), world.clock.now());
    let made = row.provisioning_data.clone().unwrap();
    let (instance, job) = (instances(&world).pop().unwrap(), job(&world, &warm).await);
    let key = world.builder.random.uuid().into();
    let late = AttachmentRow::wanted(key, (&row, &made), (&instance, job.id), false, now);
    let mut changes = world.builder.changes(now);
    changes.insert_silently(late);
    world.store.commit(changes.into_commit()).await.unwrap();
    let engine = world.start().await.unwrap();
    is_detached(&world, "it is free").await;
    assert_eq!(world.clouds.attachments_made(), (0, 0));
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// It is woken when the machine is there: nothing is written meanwhile.
#[tokio::test(start_paused = true)]
async fn a_volume_that_waits_for_a_machine_is_not_looked_at_again_and_again() {
    let world = world(32).await;
    let engine = world.start().await.unwrap();
    volume(&world, &engine, "data").await;
    world.clouds.never_ready(&["small"]);
    world.hosts.script("train", LONG);
    let run = world.submit(&engine, "train", &with(&["data"])).await.unwrap();
    world.until("it is begun", MINUTE, is_begun).await.unwrap();
    world.pass(8 * MINUTE).await;
    let looks = attachments(&world)[0].version;
    assert!(looks <= 4, "{looks}");
    world.clouds.never_ready(&[]);
    world.running(&run, MINUTE).await.unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(ended(&world, &run, 10 * MINUTE).await.0, RunStatus::Terminated);
    nothing_is_left(&world, &engine, &["data"], "").await;
}

/// A host is given no task of which a mount point has no volume.
#[tokio::test(start_paused = true)]
async fn a_task_without_one_of_its_volumes_is_refused() {
    let world = world(33).await;
    let engine = world.start().await.unwrap();
    for name in ["data", "more"] {
        volume(&world, &engine, name).await;
    }
    world.hosts.script("train", LONG);
    let run = world
        .submit(&engine, "train", &with(&["data", "more"]))
        .await
        .unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    let id = job(&world, &run).await.id;
    let mut snapshot = world.store.job(id).await.unwrap().unwrap();
    let of = |snapshot: &JobSnapshot| {
        let image = Image {
            name: "image".to_owned(),
            credentials: None,
            are_credentials_servers: false,
        };
        let access = Access {
            ssh_keys: SshKeys::default(),
            runner_token: Secret::from("token".to_owned()),
        };
        task_config(snapshot, image, access, JobNeeds::NONE)
    };
    let task = of(&snapshot).unwrap();
    let mounts: Vec<_> = task
        .volume_mounts
        .iter()
        .map(|mount| (mount.name.as_str(), mount.path.as_str()))
        .collect();
    assert_eq!(mounts, [("data", "/data0"), ("more", "/data1")]);
    assert_eq!(task.volumes.len(), 2);
    snapshot.attachments.retain(|row| row.name != "more");
    assert_eq!(
        of(&snapshot).unwrap_err(),
        "Failed to attach volume: more was not kept for the job"
    );
}
