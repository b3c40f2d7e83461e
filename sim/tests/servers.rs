//! Two servers that share a database, in virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods
)] // tests

use std::time::Duration;

use dstack_engine::{EngineError, Identity};
use dstack_model::runs::RunStatus;
use dstack_sim::clouds::Delays;
use dstack_sim::{Script, Server, World, invariants};
use dstack_store::rows::RunRow;
use dstack_store::{EngineStore, EntityRef, Lease};
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);

/// How often the run reached an end.
fn ends(world: &World, run: &RunRow) -> usize {
    let told = world.messages_about(EntityRef::Run(run.id));
    let ends = |text: &&String| text.starts_with("Run status changed TERMINATING -> ");
    told.iter().filter(ends).count()
}

async fn all_done_once(world: &World, runs: &[RunRow]) {
    for run in runs {
        let status = world.finished(run, 10 * MINUTE).await.unwrap();
        assert_eq!(status, RunStatus::Done, "{}", run.run_name);
        assert_eq!(ends(world, run), 1, "{}", run.run_name);
    }
    assert_eq!(invariants::at_rest(world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn each_run_is_driven_by_one_of_them() {
    let world = World::new(31, 8).await.unwrap();
    let a = world.start_as("a").await.unwrap();
    let b = world.start_as("b").await.unwrap();
    let mut runs = Vec::new();
    for n in 0..8 {
        let engine = if n % 2 == 0 { &a } else { &b };
        let name = format!("run-{n}");
        runs.push(world.submit(engine, &name, &json!({})).await.unwrap());
    }
    all_done_once(&world, &runs).await;
}

#[tokio::test(start_paused = true)]
async fn whenever_one_is_killed_the_other_finishes_its_work() {
    for killed_after in (0..60).map(|tenths| Duration::from_millis(100 * tenths)) {
        let world = World::new(32, 8).await.unwrap();
        // The first to start drives the machine.
        let (doomed, heir) = if killed_after.as_millis().is_multiple_of(200) {
            let doomed = world.start_as("a").await.unwrap();
            (doomed, world.start_as("b").await.unwrap())
        } else {
            let heir = world.start_as("b").await.unwrap();
            (world.start_as("a").await.unwrap(), heir)
        };
        let mut runs = Vec::new();
        for (n, engine) in [&doomed, &heir, &doomed, &heir].into_iter().enumerate() {
            let name = format!("run-{n}");
            let script = Script {
                lines: 20,
                ..Script::default()
            };
            world.hosts.script(&name, script);
            runs.push(world.submit(engine, &name, &json!({})).await.unwrap());
        }
        world.pass(killed_after).await;
        doomed.stop();
        all_done_once(&world, &runs).await;
        heir.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_asked_of_one_reaches_the_run_of_the_other() {
    let world = World::new(33, 1).await.unwrap();
    let a = world.start_as("a").await.unwrap();
    let b = world.start_as("b").await.unwrap();
    let script = Script {
        lines: 10_000,
        ..Script::default()
    };
    world.hosts.script("long", script);
    let run = world.submit(&a, "long", &json!({})).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.stop(&b, &run, false).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Terminated);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

const NO_SKEW: Duration = Duration::ZERO;

/// A job that runs for so long, one line a second.
fn lasts(seconds: usize) -> Script {
    Script {
        lines: seconds,
        pause: Duration::from_secs(1),
        ..Script::default()
    }
}

fn submitted_by<'a>(servers: &[&'a Server], n: usize) -> &'a Server {
    servers[n % servers.len()]
}

async fn submit_all(world: &World, servers: &[&Server], names: &[&str], script: Script) -> Vec<RunRow> {
    let mut runs = Vec::new();
    for (n, name) in names.iter().enumerate() {
        world.hosts.script(name, script);
        let engine = &submitted_by(servers, n).engine;
        runs.push(world.submit(engine, name, &json!({})).await.unwrap());
    }
    runs
}

/// The database answers nothing about the lease for longer than it lasts, whenever that begins.
#[tokio::test(start_paused = true)]
async fn a_server_whose_renewal_hangs_acts_no_more_when_its_lease_is_over() {
    for begins_after in (0..40).map(|tenths| Duration::from_millis(500 * tenths)) {
        let world = World::new(34, 8).await.unwrap();
        let hangs = world.start_server("a", NO_SKEW).await.unwrap();
        let other = world.start_server("b", NO_SKEW).await.unwrap();
        let names = ["run-0", "run-1", "run-2", "run-3"];
        let runs = submit_all(&world, &[&hangs, &other], &names, lasts(15)).await;
        world.pass(begins_after).await;
        hangs.hang_lease(true);
        let taken_over = |world: &World| !world.store.lives("a", hangs.identity.process);
        world
            .until("the lease is over", MINUTE, |world| taken_over(world))
            .await
            .unwrap_or_else(|stuck| panic!("after {begins_after:?}: {stuck}"));
        world.pass(Duration::from_secs(10)).await;
        hangs.hang_lease(false);
        all_done_once(&world, &runs).await;
        for server in [&hangs, &other] {
            assert_eq!(
                server.trespasses(),
                Vec::<String>::new(),
                "after {begins_after:?}"
            );
        }
        // It has a lease again, and works.
        let again = submit_all(&world, &[&hangs], &["again"], lasts(1)).await;
        all_done_once(&world, &again).await;
        assert_eq!((hangs.generation(), other.generation()), (Some(2), Some(1)));
        hangs.engine.stop();
        other.engine.stop();
    }
}

/// Its lease is over for the store while it thinks that it has one, as after its machine was suspended: what it decided is
/// not written, and it finds out by that.
#[tokio::test(start_paused = true)]
async fn commits_of_a_server_that_has_lost_its_lease_without_knowing_are_refused() {
    for lost_after in (0..40).map(|tenths| Duration::from_millis(100 * tenths)) {
        let world = World::new(35, 8).await.unwrap();
        let suspended = world.start_server("a", NO_SKEW).await.unwrap();
        let other = world.start_server("b", NO_SKEW).await.unwrap();
        let names = ["run-0", "run-1", "run-2", "run-3"];
        let runs = submit_all(&world, &[&suspended, &other], &names, Script::default()).await;
        world.pass(lost_after).await;
        let lease = Lease {
            owner: "a".to_owned(),
            process: suspended.identity.process,
            generation: 1,
        };
        assert!(world.store.renew(&lease, Duration::ZERO).await.unwrap());
        all_done_once(&world, &runs).await;
        let back = |_: &World| suspended.generation() == Some(2);
        world.until("it has a lease again", MINUTE, back).await.unwrap();
        suspended.engine.stop();
        other.engine.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn servers_whose_clocks_differ_by_an_hour_leave_each_other_alone() {
    let world = World::new(36, 8).await.unwrap();
    let behind = world.start_server("a", NO_SKEW).await.unwrap();
    let ahead = world.start_server("b", 60 * MINUTE).await.unwrap();
    let names: Vec<String> = (0..8).map(|n| format!("run-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let runs = submit_all(&world, &[&behind, &ahead], &names, lasts(20)).await;
    // Longer than leases, and than the pause between two sweeps.
    world.pass(MINUTE).await;
    for (n, run) in runs.iter().enumerate() {
        let owner = world.store.owner_of(EntityRef::Run(run.id)).await.unwrap();
        let submitted_by = &submitted_by(&[&behind, &ahead], n).identity.name;
        assert_eq!(owner.as_ref(), Some(submitted_by), "{}", run.run_name);
    }
    all_done_once(&world, &runs).await;
    for server in [&behind, &ahead] {
        assert_eq!(server.trespasses(), Vec::<String>::new());
        assert_eq!(server.generation(), Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_servers_of_the_same_name_the_second_does_not_start() {
    let world = World::new(37, 8).await.unwrap();
    let first = world.start_server("web-1", NO_SKEW).await.unwrap();
    let runs = submit_all(&world, &[&first], &["run-0", "run-1"], lasts(30)).await;
    let second = world.start_server("web-1", NO_SKEW).await.map(|_| ());
    assert!(
        matches!(&second, Err(EngineError::NameTaken(name)) if name == "web-1"),
        "{second:?}"
    );
    assert_eq!(first.generation(), Some(1), "the first is not disturbed");
    all_done_once(&world, &runs).await;
    assert_eq!(first.trespasses(), Vec::<String>::new());
}

/// Started again in its directory it knows that its predecessor is dead, and goes on at once; elsewhere it waits.
#[tokio::test(start_paused = true)]
async fn a_server_that_starts_again_goes_on_as_itself() {
    for (knows, within) in [(true, Duration::ZERO), (false, Duration::from_secs(7))] {
        let world = World::new(38, 8).await.unwrap();
        let first = world.start_server("web-1", NO_SKEW).await.unwrap();
        let runs = submit_all(&world, &[&first], &["run-0"], lasts(30)).await;
        world.pass(Duration::from_secs(10)).await;
        first.engine.stop();
        let died_at = world.clock.now();
        let again = Identity {
            predecessor: knows.then_some(first.identity.process),
            ..world.identity("web-1")
        };
        let second = world.start_process(again, NO_SKEW).await.unwrap();
        let took = world.clock.now().since(died_at);
        assert!(took <= within, "{took:?}");
        all_done_once(&world, &runs).await;
        assert_eq!(second.trespasses(), Vec::<String>::new());
    }
}

/// The same for machines of clouds: whoever has no lease any more ends none, also when it decided so while it had one.
#[tokio::test(start_paused = true)]
async fn a_server_without_a_lease_orders_nothing_of_clouds() {
    for before_end in (0..20).map(|steps| Duration::from_millis(50 * steps)) {
        let world = World::new(41, 1).await.unwrap();
        world.clouds.offer(&["small"]);
        world.clouds.delays(Delays {
            lookup: Duration::from_millis(500),
            ..Delays::default()
        });
        world.cloud_fleet("cloud", "0..").await.unwrap();
        let begin = tokio::time::Instant::now();
        let hangs = world.start_server("a", Duration::ZERO).await.unwrap();
        let other = world.start_server("b", Duration::ZERO).await.unwrap();
        world.hosts.script("train", lasts(1));
        let wants = json!({"fleets": ["cloud"], "idle_duration": "1h"});
        let run = world.submit(&hangs.engine, "train", &wants).await.unwrap();
        world.finished(&run, MINUTE).await.unwrap();
        // A lease of six seconds is renewed every two: the last time at 10 s, so that it ends at 16 s.
        world
            .pass(begin + Duration::from_secs(11) - tokio::time::Instant::now())
            .await;
        hangs.hang_lease(true);
        world.pass(Duration::from_secs(5) - before_end).await;
        let fleet = world.store.read(|tables| {
            let named = tables.fleets.values().find(|fleet| fleet.name == "cloud");
            named.unwrap().id
        });
        world.end_fleet(&hangs.engine, fleet, None).await.unwrap();
        let nothing = |world: &World| invariants::nothing_left(world).is_empty();
        world
            .until("the machine is gone", 10 * MINUTE, nothing)
            .await
            .unwrap();
        for server in [&hangs, &other] {
            assert_eq!(
                server.trespasses(),
                Vec::<String>::new(),
                "{before_end:?} before its end"
            );
        }
        hangs.engine.stop();
        other.engine.stop();
    }
}
