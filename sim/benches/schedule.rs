//! How long the engine takes to place many waiting jobs: with its real scheduling, on the store in memory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dstack_engine::{Failpoints, Result};
use dstack_model::instances::InstanceStatus;
use dstack_sim::World;
use dstack_store::rows::InstanceRow;
use dstack_store::{Commit, EngineStore};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;

const JOBS: usize = 10_000;
const INSTANCES: usize = 10_000;
const FLEETS: usize = 20;
/// How long a round may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Different kinds of jobs, as in the planner's own measure.
const KINDS: usize = 250;

/// Idle instances of eight sizes.
async fn add_instances(world: &World) {
    let now = world.clock.now();
    for number in 0..FLEETS {
        let mut changes = world.builder.changes(now);
        let fields = json!({"nodes": "0.."});
        let fleet = world
            .builder
            .fleet(&format!("fleet-{number}"), &fields, now)
            .unwrap();
        for at in 0..INSTANCES / FLEETS {
            let cpus = 4 << (at % 8);
            let resources = json!({"cpus": cpus, "memory_mib": cpus * 8192, "gpus": [], "spot": false, "disk": {"size_mib": 512_000}});
            let kind = json!({"name": format!("type-{cpus}"), "resources": resources});
            let offer = json!({"backend": "aws", "instance": kind, "region": "eu", "price": 1.0 + f64::from(cpus), "availability": "idle",
                "total_blocks": 1});
            let place = json!({"backend": "aws", "instance_type": kind, "instance_id": "i", "hostname": "10.0.0.1", "region": "eu",
                "price": 1.0, "username": "root", "ssh_port": 22, "dockerized": true});
            let id = world.builder.random.uuid().into();
            let mut row = InstanceRow::pending(id, &fleet, i64::try_from(at).unwrap(), now).offering(
                serde_json::from_value(offer).unwrap(),
                serde_json::from_value(place).unwrap(),
            );
            row.make_ready(InstanceStatus::Idle).unwrap();
            row.total_blocks = Some(1);
            changes.insert_silently(row);
        }
        changes.insert_silently(fleet);
        world.store.commit(changes.into_commit()).await.unwrap();
    }
}

/// The run's jobs wait for a place.
fn waiting_run(world: &World, at: usize) -> Commit {
    let kind = at % KINDS;
    let wants = json!({"max_price": 2000 + kind, "resources": {"cpu": "2..", "memory": "8GB.."}});
    let (_, commit) = world
        .builder
        .run(&format!("run-{at}"), &wants, world.clock.now())
        .unwrap();
    commit
}

/// Tells of each commit of scheduling.
#[derive(Debug, Default)]
struct Commits(Notify);

impl Failpoints for Commits {
    fn reached(&self, name: &'static str) -> Result<()> {
        if name == "schedule.commit.after" {
            self.0.notify_one();
        }
        Ok(())
    }
}

async fn all_placed(world: &World, commits: &Commits) {
    let placed = || {
        world.store.read(|tables| {
            let jobs = tables.jobs.values();
            jobs.filter(|job| job.used_instance_id.is_some()).count()
        })
    };
    while placed() < JOBS {
        commits.0.notified().await;
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut times = Vec::new();
    for seed in 0..5 {
        let world = World::new(seed, 1).await.unwrap();
        add_instances(&world).await;
        for at in 0..JOBS {
            world.store.commit(waiting_run(&world, at)).await.unwrap();
        }
        let started = Instant::now();
        let commits = Arc::new(Commits::default());
        let failpoints = Arc::clone(&commits) as Arc<dyn Failpoints>;
        let engine = world.start_with(failpoints).await.unwrap();
        let placed = timeout(TEST_TIMEOUT, all_placed(&world, &commits)).await;
        placed.expect("not every job has got a place");
        times.push(started.elapsed());
        engine.stop();
    }
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    println!(
        "{JOBS} waiting jobs placed on {INSTANCES} instances by the engine: {:.2} s",
        median.as_secs_f64()
    );
}
