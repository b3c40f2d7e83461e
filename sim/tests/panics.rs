//! A panic anywhere in the engine ends one step of the work, and nothing else.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_engine::{Failpoints, Result};
use dstack_model::runs::RunStatus;
use dstack_sim::{World, invariants};
use dstack_system::task;
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);

/// Panics the first times that a place is reached.
#[derive(Debug)]
struct PanicAt {
    name: &'static str,
    times: AtomicU32,
}

impl Failpoints for PanicAt {
    fn reached(&self, name: &'static str) -> Result<()> {
        if name == self.name {
            let left = self
                .times
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            assert!(left.is_err(), "on purpose");
        }
        Ok(())
    }
}

/// Runs two jobs, one on the machine and one in the cloud, to their ends.
async fn two_jobs(failpoints: Arc<dyn Failpoints>, when: &str) {
    let world = World::new(51, 1).await.unwrap();
    world.clouds.offer(&["small", "large"]);
    world.clouds.full(&["small"]);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    let mut deps = world.deps(failpoints);
    // As many panics would end all of them.
    deps.settings.workers = 2;
    let engine = dstack_engine::Engine::start(deps).await.unwrap();
    let here = world
        .submit(&engine, "here", &json!({"fleets": ["local"]}))
        .await
        .unwrap();
    let in_cloud = json!({"fleets": ["cloud"], "idle_duration": "20s"});
    let there = world.submit(&engine, "there", &in_cloud).await.unwrap();
    for run in [&here, &there] {
        let status = world.finished(run, 10 * MINUTE).await;
        let status = status.unwrap_or_else(|stuck| panic!("{when}: {stuck}"));
        assert_eq!(status, RunStatus::Done, "{when}: {}", run.run_name);
    }
    let nothing = |world: &World| invariants::nothing_left(world).is_empty();
    world
        .until(&format!("nothing is left, {when}"), 10 * MINUTE, nothing)
        .await
        .unwrap();
    engine.stop();
}

#[tokio::test(start_paused = true)]
async fn after_a_panic_at_any_failpoint_everything_goes_on() {
    let calm = Arc::new(DieAt::new("nowhere", 1));
    two_jobs(Arc::clone(&calm) as Arc<dyn Failpoints>, "calm").await;
    let points = calm.seen();
    for wanted in [
        "job.commit.before",
        "shim.submit.before",
        "output.append.before",
        "cloud.create.before",
        "operation.record.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
    // The caller's own panic is the caller's.
    for point in points.into_iter().filter(|point| !point.starts_with("api.")) {
        for times in [1, 3] {
            let before = task::panics();
            let failpoints = PanicAt {
                name: point,
                times: AtomicU32::new(times),
            };
            two_jobs(Arc::new(failpoints), &format!("{times} panics at {point}")).await;
            assert!(task::panics() > before, "{point}: panics are counted");
        }
    }
}
