//! Many jobs that wait for a place at the same time.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dstack_engine::{Engine, Failpoints, Result};
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobStatus, RunStatus};
use dstack_sim::{Script, World, invariants};
use dstack_store::{Changes, EngineStore, EventMaker, MemoryStore};
use dstack_system::Random;
use dstack_units::{JobId, RunId};
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);
/// As many as the machine has blocks.
const JOBS: usize = 8;

/// Counts the commits of scheduling. Before the first, somebody else changes the job of a run.
#[derive(Debug)]
struct Meddler {
    store: Arc<MemoryStore>,
    commits: AtomicUsize,
    victim: Mutex<Option<RunId>>,
}

impl Meddler {
    fn new(world: &World, victim: Option<RunId>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&world.store),
            commits: AtomicUsize::new(0),
            victim: Mutex::new(victim),
        })
    }
}

impl Meddler {
    /// Writes a job of the run as it is: whoever has read it before decides again.
    fn touch_job_of(&self, run: RunId) {
        let job = self
            .store
            .read(|tables| tables.jobs.values().find(|job| job.run_id == run).cloned())
            .unwrap();
        let mut changes = Changes::new(EventMaker::system(job.submitted_at, Random::seeded(1)));
        changes.touch(job);
        // The store is asynchronous, and failpoints are not.
        let commit = self.store.commit(changes.into_commit());
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().build().unwrap()
        };
        std::thread::scope(|scope| {
            scope
                .spawn(|| runtime().block_on(commit))
                .join()
                .unwrap()
                .unwrap();
        });
    }
}

impl Failpoints for Meddler {
    fn reached(&self, name: &'static str) -> Result<()> {
        if name == "schedule.commit.after" {
            self.commits.fetch_add(1, Ordering::Relaxed);
        }
        if name == "schedule.commit.before"
            && let Some(run) = self.victim.lock().unwrap().take()
        {
            self.touch_job_of(run);
        }
        Ok(())
    }
}

async fn submit(world: &World, count: usize) -> Vec<RunId> {
    let mut runs = Vec::new();
    for number in 0..count {
        let run = world
            .builder
            .run(&format!("run-{number}"), &json!({}), world.clock.now());
        let (run, commit) = run.unwrap();
        world.hosts.script(&run.run_name, long());
        world.store.commit(commit).await.unwrap();
        runs.push(run.id);
    }
    runs
}

fn long() -> Script {
    Script {
        lines: 10_000,
        ..Script::default()
    }
}

fn placed(world: &World) -> BTreeSet<JobId> {
    world.store.read(|tables| {
        let jobs = tables.jobs.values();
        let placed = jobs.filter(|job| job.status() != JobStatus::Submitted && job.instance_id.is_some());
        placed.map(|job| job.id).collect()
    })
}

/// Starts an engine, and waits until every job has a place.
async fn place_all(world: &World, meddler: &Arc<Meddler>) -> Engine {
    let failpoints = Arc::clone(meddler) as Arc<dyn Failpoints>;
    let engine = world.start_with(failpoints).await.unwrap();
    let all = |world: &World| placed(world).len() == JOBS;
    world.until("every job has a place", MINUTE, all).await.unwrap();
    engine
}

#[tokio::test(start_paused = true)]
async fn jobs_that_wait_together_are_placed_in_one_commit() {
    let world = World::new(1, 8).await.unwrap();
    submit(&world, JOBS).await;
    let meddler = Meddler::new(&world, None);
    let engine = place_all(&world, &meddler).await;
    assert_eq!(meddler.commits.load(Ordering::Relaxed), 1);
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    engine.stop();
}

/// One job that was changed meanwhile does not keep the others from their places, nor is a place given twice.
#[tokio::test(start_paused = true)]
async fn a_change_to_one_of_the_jobs_delays_none_of_them() {
    let world = World::new(2, 8).await.unwrap();
    let runs = submit(&world, JOBS).await;
    let meddler = Meddler::new(&world, runs.first().copied());
    let engine = place_all(&world, &meddler).await;
    assert!(
        meddler.commits.load(Ordering::Relaxed) > 1,
        "the first commit was refused"
    );
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    engine.stop();
}

#[tokio::test(start_paused = true)]
async fn all_nodes_of_a_replica_get_their_instances_in_one_commit() {
    let world = World::new(3, 1).await.unwrap();
    world.clouds.offer(&["small"]);
    world.cloud_fleet("cloud", "3..3").await.unwrap();
    let meddler = Meddler::new(&world, None);
    let engine = world
        .start_with(Arc::clone(&meddler) as Arc<dyn Failpoints>)
        .await
        .unwrap();
    let idle = |world: &World| {
        world.store.read(|tables| {
            let rows = tables.instances.values();
            rows.filter(|row| row.name.starts_with("cloud") && row.status() == InstanceStatus::Idle)
                .count()
                == 3
        })
    };
    world
        .until("the cluster is there", 5 * MINUTE, idle)
        .await
        .unwrap();
    let run = world
        .submit(&engine, "train", &json!({"fleets": ["cloud"], "nodes": 3}))
        .await
        .unwrap();
    let all = |world: &World| placed(world).len() == 3;
    world.until("every node has a place", MINUTE, all).await.unwrap();
    assert_eq!(meddler.commits.load(Ordering::Relaxed), 1);
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    engine.stop();
}
