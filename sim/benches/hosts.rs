//! How long the engine takes for a run of many nodes on hosts that are ready, and for the loss of many hosts at once: with its real
//! decisions, on simulated hosts and the store in memory.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::indexing_slicing
)]

use std::time::{Duration, Instant};

use dstack_engine::Engine;
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::JobStatus;
use dstack_sim::ssh_hosts::KEY;
use dstack_sim::{Script, World};
use dstack_store::rows::JobRow;
use dstack_units::FleetId;
use serde_json::json;

/// Nodes of the run.
const NODES: usize = 200;
/// Hosts that are lost; there are as many others.
const LOST: usize = 100;
const ROUNDS: u64 = 5;
/// How long a step of a round may take, in the time of its world.
const STEP_TIMEOUT: Duration = Duration::from_secs(1200);

/// A world whose fleet `lab` has so many idle hosts. Jobs run until they are stopped.
async fn with_hosts(seed: u64, count: usize, run: &str) -> (World, Engine, FleetId) {
    let world = World::new(seed, 1).await.unwrap();
    let for_ever = Script {
        lines: usize::MAX,
        pause: Duration::from_secs(3600),
        ..Script::default()
    };
    world.hosts.script(run, for_ever);
    let engine = world.start().await.unwrap();
    let names: Vec<String> = (0..count).map(|number| format!("host-{number}")).collect();
    let key = json!({"public": "", "private": KEY});
    let fields =
        json!({"placement": "cluster", "ssh_config": {"user": "me", "ssh_key": key, "hosts": names}});
    let fleet = world.apply_fleet(&engine, "lab", &fields).await.unwrap();
    let idle = |world: &World| instances(world, fleet, |status, _| status == InstanceStatus::Idle) == count;
    world.until("all hosts idle", STEP_TIMEOUT, idle).await.unwrap();
    (world, engine, fleet)
}

/// Of the fleet's instances, those of which it holds: their status, and whether they are unreachable.
fn instances(world: &World, fleet: FleetId, holds: impl Fn(InstanceStatus, bool) -> bool) -> usize {
    world.store.read(|tables| {
        let rows = tables.instances.values();
        rows.filter(|row| row.fleet_id == Some(fleet) && holds(row.status(), row.unreachable))
            .count()
    })
}

fn running(world: &World) -> Vec<JobRow> {
    world.store.read(|tables| {
        let jobs = tables.jobs.values();
        jobs.filter(|job| job.status() == JobStatus::Running)
            .cloned()
            .collect()
    })
}

async fn until_running(world: &World, count: usize) {
    let run = |world: &World| running(world).len() == count;
    world.until("all jobs running", STEP_TIMEOUT, run).await.unwrap();
}

/// From the submission of a run until all its nodes run.
async fn nodes(seed: u64) -> Duration {
    let (world, engine, _) = with_hosts(seed, NODES, "train").await;
    let submitted = Instant::now();
    let wants = json!({"fleets": ["lab"], "nodes": NODES});
    world.submit(&engine, "train", &wants).await.unwrap();
    until_running(&world, NODES).await;
    let took = submitted.elapsed();
    engine.stop();
    took
}

/// Runs on half of the hosts, which are then lost: a world of its own, and when.
async fn losing(seed: u64) -> (World, Engine, FleetId) {
    let (world, engine, fleet) = with_hosts(seed, 2 * LOST, "train").await;
    let wants = json!({"fleets": ["lab"], "nodes": LOST, "retry": true});
    world.submit(&engine, "train", &wants).await.unwrap();
    until_running(&world, LOST).await;
    let hosts: Vec<String> = running(&world)
        .iter()
        .map(|job| {
            job.job_provisioning_data
                .as_deref()
                .unwrap()
                .hostname
                .clone()
                .unwrap()
        })
        .collect();
    world.hosts.lose_hosts(&hosts);
    (world, engine, fleet)
}

/// From the loss, of which streams tell at once, until all hosts are shown as unreachable.
async fn shown(seed: u64) -> Duration {
    let (world, engine, fleet) = losing(seed).await;
    let lost = Instant::now();
    let all = |world: &World| instances(world, fleet, |_, unreachable| unreachable) == LOST;
    world
        .until("all are unreachable", STEP_TIMEOUT, all)
        .await
        .unwrap();
    let took = lost.elapsed();
    engine.stop();
    took
}

/// What all of it takes until the run runs on the other hosts: the work alone, as time passes at once when there is none.
async fn replaced(seed: u64) -> (Duration, Duration) {
    let (world, engine, fleet) = losing(seed).await;
    let (lost, lost_there) = (Instant::now(), tokio::time::Instant::now());
    let all = |world: &World| {
        running(world).len() == LOST && running(world).iter().all(|job| job.submission_num > 0)
    };
    world.until("all run elsewhere", STEP_TIMEOUT, all).await.unwrap();
    let took = (lost.elapsed(), lost_there.elapsed());
    assert_eq!(instances(&world, fleet, |_, unreachable| unreachable), LOST);
    engine.stop();
    took
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn main() {
    let real = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let times = (0..ROUNDS).map(|seed| real.block_on(nodes(seed))).collect();
    println!(
        "a run of {NODES} nodes on hosts that are ready, submitted → all run (each container takes 0.8 s, 1.6 s at most): {:.2} s",
        median(times)
    );
    let times = (0..ROUNDS).map(|seed| real.block_on(shown(seed))).collect();
    println!(
        "{LOST} of {} hosts lost at once, until all are shown as unreachable: {:.2} s",
        2 * LOST,
        median(times)
    );
    let times: Vec<(Duration, Duration)> = (0..ROUNDS)
        .map(|seed| {
            let paused = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .unwrap();
            paused.block_on(replaced(seed))
        })
        .collect();
    let (work, waits): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    println!(
        "their {LOST} jobs ended, and all running elsewhere: {:.2} s of work, within {:.0} s",
        median(work),
        median(waits)
    );
}
