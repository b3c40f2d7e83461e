//! Runs from submission to their end, with an engine that dies anywhere.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods
)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::Engine;
use dstack_engine::failpoint::{DieAt, NoFailpoints};
use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus};
use dstack_plan::lifecycle::WaitReason;
use dstack_sim::{Faults, Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore;
use dstack_store::rows::{JobRow, RunRow};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

async fn last_job(world: &World, run: &RunRow) -> JobRow {
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

/// The events of a run and its jobs by time, without what is in brackets.
fn story(world: &World, run: &RunRow) -> Vec<String> {
    let id = run.id.to_string();
    let mut events = world.store.tables().events;
    events.retain(|event| {
        event
            .targets
            .iter()
            .any(|target| target.run_id.as_ref() == Some(&id))
    });
    // Within one tick of the clock only the events of one commit have an order.
    events.retain(|event| event.message.contains("status changed"));
    events.sort_by_key(|event| event.recorded_at);
    let text = |message: &str| message.split(" (").next().unwrap_or_default().to_owned();
    events.iter().map(|event| text(&event.message)).collect()
}

fn lines(count: usize) -> String {
    (0..count).map(|n| format!("line {n}\n")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_task_runs_to_its_end_with_all_its_output() {
    let world = World::new(1, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let job = last_job(&world, &run).await;
    assert_eq!((job.status(), job.exit_status), (JobStatus::Done, Some(0)));
    assert_eq!(world.output.of(job.id), lines(5));
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_failing_task_fails_with_its_exit_code() {
    let world = World::new(2, 1).await.unwrap();
    world.hosts.script(
        "train",
        Script {
            exit: 3,
            ..Script::default()
        },
    );
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    let job = last_job(&world, &run).await;
    assert_eq!(
        job.termination_reason(),
        Some(JobTerminationReason::ContainerExitedWithError)
    );
    assert_eq!(job.exit_status, Some(3));
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn tasks_that_are_kept_are_ended_and_take_no_room() {
    let world = World::new(31, 1).await.unwrap();
    let keeping = || {
        let mut deps = world.deps(Arc::new(NoFailpoints));
        deps.settings.keep_tasks = true;
        Engine::start(deps)
    };
    let engine = keeping().await.unwrap();
    for name in ["first", "second"] {
        let run = world.submit(&engine, name, &json!({})).await.unwrap();
        assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
        assert_eq!(invariants::always(&world), Vec::<String>::new());
    }
    assert_eq!(world.hosts.tasks(), 2);
    engine.stop();
    // Another start finds them, and leaves them alone.
    let engine = keeping().await.unwrap();
    let both = |world: &World| world.hosts.tasks() == 2;
    world.throughout("both tasks", MINUTE, both).await.unwrap();
    engine.stop();
    // One that keeps none removes them.
    let _engine = world.start().await.unwrap();
    let at_rest = |world: &World| invariants::at_rest(world).is_empty();
    world.until("nothing is left", MINUTE, at_rest).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_run_finds_the_only_machine_busy_unless_it_retries() {
    let world = World::new(3, 1).await.unwrap();
    world.hosts.script(
        "first",
        Script {
            lines: 50,
            ..Script::default()
        },
    );
    let engine = world.start().await.unwrap();
    let first = world.submit(&engine, "first", &json!({})).await.unwrap();
    world.running(&first, MINUTE).await.unwrap();
    let refused = world.submit(&engine, "second", &json!({})).await.unwrap();
    let patient = world
        .submit(&engine, "third", &json!({"retry": true}))
        .await
        .unwrap();
    assert_eq!(world.finished(&refused, MINUTE).await.unwrap(), RunStatus::Failed);
    let job = last_job(&world, &refused).await;
    assert_eq!(
        job.termination_reason(),
        Some(JobTerminationReason::FailedToStartDueToNoCapacity)
    );
    assert!(job.termination_reason_message().unwrap().contains("is busy"));
    // Steps taken in one commit are told one by one, in their order.
    assert_eq!(
        story(&world, &refused),
        [
            "Job status changed SUBMITTED -> TERMINATING. Termination reason: FAILED_TO_START_DUE_TO_NO_CAPACITY",
            "Job status changed TERMINATING -> FAILED",
            "Run status changed SUBMITTED -> TERMINATING. Termination reason: JOB_FAILED",
            "Run status changed TERMINATING -> FAILED",
        ]
    );
    assert_eq!(world.finished(&first, MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(
        world.finished(&patient, 5 * MINUTE).await.unwrap(),
        RunStatus::Done
    );
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_may_only_reuse_instances_says_that_it_could_not() {
    let world = World::new(5, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let told = async |name: &str, more: Value| {
        let run = world.submit(&engine, name, &more).await.unwrap();
        assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
        let job = last_job(&world, &run).await;
        job.termination_reason_message().unwrap().to_owned()
    };
    let large = json!({"resources": {"gpu": 8}, "creation_policy": "reuse"});
    assert_eq!(
        told("large", large).await,
        "Could not reuse any instance for this job"
    );
    let elsewhere = json!({"fleets": ["nowhere"]});
    assert_eq!(
        told("elsewhere", elsewhere).await,
        "Failed to use specified fleets"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_graceful_and_keeps_the_output() {
    let world = World::new(4, 1).await.unwrap();
    world.hosts.script(
        "train",
        Script {
            lines: 10_000,
            ..Script::default()
        },
    );
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    let job = last_job(&world, &run).await.id;
    let prints = |world: &World| world.output.of(job).lines().count() > 10;
    world.until("it prints", MINUTE, prints).await.unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Terminated);
    let job = last_job(&world, &run).await;
    assert_eq!(job.status(), JobStatus::Terminated);
    let output = world.output.of(job.id);
    assert!(
        output.lines().count() > 10 && lines(10_000).starts_with(&output),
        "{output}"
    );
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_stop_at_any_moment_ends_the_run_and_leaves_nothing() {
    for moment in 0..60_u64 {
        for abort in [false, true] {
            let world = World::new(500 + moment, 1).await.unwrap();
            let engine = world.start().await.unwrap();
            let run = world.submit(&engine, "train", &json!({})).await.unwrap();
            world.pass(Duration::from_millis(moment * 50)).await;
            world.stop(&engine, &run, abort).await.unwrap();
            let status = world.finished(&run, 2 * MINUTE).await.unwrap();
            assert!(
                matches!(status, RunStatus::Terminated | RunStatus::Done),
                "{status:?} at {moment}"
            );
            assert_eq!(
                invariants::at_rest(&world),
                Vec::<String>::new(),
                "stopped at {moment}"
            );
            engine.stop();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_job_ends_while_the_server_is_down() {
    let world = World::new(6, 1).await.unwrap();
    world.hosts.script(
        "train",
        Script {
            lines: 100,
            exit: 7,
            ..Script::default()
        },
    );
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    engine.stop();
    world.pass(60 * MINUTE).await;
    let _engine = world.start().await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Failed);
    let job = last_job(&world, &run).await;
    assert_eq!(job.exit_status, Some(7));
    assert_eq!(world.output.of(job.id), lines(100));
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_disappears_is_noticed_and_said_so() {
    let world = World::new(7, 1).await.unwrap();
    world.hosts.script(
        "train",
        Script {
            lines: 10_000,
            ..Script::default()
        },
    );
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.hosts.cut_off(true);
    let id = last_job(&world, &run).await.id;
    let unreachable = |world: &World| {
        let job = world.store.tables().jobs.remove(&id).unwrap();
        let waits = job.waiting_for().map(ToString::to_string).unwrap_or_default();
        job.status() == JobStatus::Terminating
            && job.termination_reason() == Some(JobTerminationReason::InstanceUnreachable)
            && waits.contains("remove the job")
    };
    let within = Duration::from_secs(200);
    world.until("it is noticed", within, unreachable).await.unwrap();
    // The user is told, and a run that retries goes on elsewhere; what may still run keeps its place on the host.
    assert_eq!(world.finished(&run, 5 * MINUTE).await.unwrap(), RunStatus::Failed);
    let held = |world: &World| {
        let tables = world.store.tables();
        tables.instances.values().all(|row| row.busy_blocks == 1)
    };
    world
        .throughout("its place stays taken", 60 * MINUTE, held)
        .await
        .unwrap();
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    let next = world
        .submit(&engine, "next", &json!({"retry": true}))
        .await
        .unwrap();
    world.hosts.cut_off(false);
    assert_eq!(world.finished(&next, 5 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_short_cut_hurts_nothing() {
    let world = World::new(8, 1).await.unwrap();
    world.hosts.script(
        "train",
        Script {
            lines: 300,
            ..Script::default()
        },
    );
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.hosts.cut_off(true);
    world.pass(MINUTE).await;
    world.hosts.cut_off(false);
    assert_eq!(world.finished(&run, 3 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(world.output.of(last_job(&world, &run).await.id), lines(300));
}

/// Nobody waits for output of a container that is gone: `docker kill`, or the kernel's end of a process that wants too much.
#[tokio::test(start_paused = true)]
async fn a_job_whose_container_is_killed_ends_at_once_and_says_so() {
    let world = World::new(12, 1).await.unwrap();
    let long = Script {
        lines: 1000,
        ..Script::default()
    };
    world.hosts.script("train", long);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.pass(Duration::from_secs(5)).await;
    let job = last_job(&world, &run).await;
    world.hosts.kill_container(job.id);
    let within = Duration::from_secs(2);
    assert_eq!(world.finished(&run, within).await.unwrap(), RunStatus::Failed);
    let ended = last_job(&world, &run).await;
    let reason = JobTerminationReason::ContainerExitedWithError;
    assert_eq!(ended.termination_reason(), Some(reason));
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

/// Runs one task, killing the engine at `point`; returns the failpoints that were passed.
async fn killed_at(seed: u64, point: &str, nth: u32) -> Arc<DieAt> {
    let world = World::new(seed, 1).await.unwrap();
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    tokio::select! {
        () = engine.stopped() => {}
        _ = world.finished(&run, 2 * MINUTE) => {}
    }
    engine.stop();
    world.leases_run_out().await;
    let _engine = world.start().await.unwrap();
    let status = world
        .finished(&run, 5 * MINUTE)
        .await
        .unwrap_or_else(|stuck| panic!("killed at {point} #{nth}: {stuck}"));
    let job = last_job(&world, &run).await;
    assert_eq!(
        (status, job.exit_status),
        (RunStatus::Done, Some(0)),
        "killed at {point} #{nth}"
    );
    assert_eq!(world.output.of(job.id), lines(5), "killed at {point} #{nth}");
    assert_eq!(
        invariants::at_rest(&world),
        Vec::<String>::new(),
        "killed at {point} #{nth}"
    );
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_the_run_ends_the_same_once() {
    let points = killed_everywhere(1..=12, |point, nth| killed_at(9, point, nth)).await;
    assert!(points.len() >= 15, "{points:?}");
}

/// The seeds to run: `cargo xtask sim` names others.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| dstack_system::env::var(name).and_then(|text| text.parse().ok());
    let first = number("DSTACK_SIM_SEED").unwrap_or(100);
    first..first + number("DSTACK_SIM_COUNT").unwrap_or(40)
}

#[tokio::test(start_paused = true)]
async fn many_runs_under_faults_all_end_as_they_should() {
    for seed in seeds() {
        let world = World::new(seed, 4).await.unwrap();
        world.hosts.faults(Faults {
            lost_call: 0.15,
            lost_answer: 0.15,
            broken_stream: 0.02,
        });
        let mut engine = world.start().await.unwrap();
        let mut runs = Vec::new();
        for n in 0..12 {
            let name = format!("run-{n}");
            world.hosts.script(
                &name,
                Script {
                    lines: 20 + n,
                    exit: i32::try_from(n % 3).unwrap(),
                    ..Script::default()
                },
            );
            runs.push((
                n,
                world
                    .submit(&engine, &name, &json!({"retry": {"on_events": ["no-capacity"]}}))
                    .await
                    .unwrap(),
            ));
            let well = |world: &World| {
                assert_eq!(invariants::always(world), Vec::<String>::new(), "seed {seed}");
                true
            };
            let pause = Duration::from_secs(2);
            world.throughout("nothing is wrong", pause, well).await.unwrap();
            if n % 4 == 3 {
                engine.stop();
                world.pass(Duration::from_secs(15)).await;
                engine = world.start().await.unwrap();
            }
        }
        world.hosts.faults(Faults::default());
        for (n, run) in runs {
            let status = world
                .finished(&run, 60 * MINUTE)
                .await
                .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
            let expected = if n % 3 == 0 {
                RunStatus::Done
            } else {
                RunStatus::Failed
            };
            assert_eq!(status, expected, "seed {seed} run {n}");
            assert_eq!(
                world.output.of(last_job(&world, &run).await.id),
                lines(20 + n),
                "seed {seed} run {n}"
            );
        }
        assert_eq!(invariants::at_rest(&world), Vec::<String>::new(), "seed {seed}");
        engine.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_run_runs_each_time_its_time_comes_until_it_is_stopped() {
    let world = World::new(31, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let schedule = json!({"schedule": {"cron": "*/2 * * * *"}});
    let run = world.submit(&engine, "nightly", &schedule).await.unwrap();
    assert_eq!(world.status(run.id), Some(RunStatus::Pending));
    let three_times = |world: &World| {
        let tables = world.store.tables();
        tables.jobs.len() == 3 && tables.runs[&run.id].waiting_for() == Some(&WaitReason::Schedule)
    };
    world
        .until("the third time", 7 * MINUTE, three_times)
        .await
        .unwrap();
    let snapshot = world.store.run(run.id).await.unwrap().unwrap();
    let ends: Vec<_> = snapshot
        .jobs
        .iter()
        .map(|job| (job.submission_num, job.status()))
        .collect();
    for (number, end) in ends.iter().enumerate() {
        assert_eq!(
            *end,
            (i64::try_from(number).unwrap(), JobStatus::Done),
            "{ends:?}"
        );
    }
    assert_eq!(snapshot.run.status(), RunStatus::Pending);
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Terminated);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

/// A registry or a database that is away when the time comes is no reason to end a run: it begins once they are back.
#[tokio::test(start_paused = true)]
async fn a_scheduled_run_waits_for_a_registry_that_is_away() {
    let world = World::new(32, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let schedule = json!({"schedule": {"cron": "*/2 * * * *"}});
    let run = world.submit(&engine, "nightly", &schedule).await.unwrap();
    world.inputs.set_away(true);
    let waits = |world: &World| {
        let tables = world.store.tables();
        let row = &tables.runs[&run.id];
        let reason = row.waiting_for();
        row.status() == RunStatus::Pending && matches!(reason, Some(WaitReason::JobsMade { .. }))
    };
    world
        .until("it waits for the registry", 3 * MINUTE, waits)
        .await
        .unwrap();
    world
        .throughout("it waits for the registry", 30 * MINUTE, waits)
        .await
        .unwrap();
    world.inputs.set_away(false);
    let done = |world: &World| {
        let tables = world.store.tables();
        let waiting = tables.runs[&run.id].waiting_for() == Some(&WaitReason::Schedule);
        waiting && tables.jobs.values().any(|job| job.status() == JobStatus::Done)
    };
    world.until("it has run", 3 * MINUTE, done).await.unwrap();
    world.stop(&engine, &run, false).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Terminated);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_gpu_does_too_little_is_ended() {
    let policy = json!({"utilization_policy": {"min_gpu_utilization": 30, "time_window": "5m"}});
    for (percent, ends) in [(80, false), (10, true)] {
        let world = World::new(40, 1).await.unwrap();
        world.hosts.script(
            "train",
            Script {
                lines: 120,
                pause: Duration::from_secs(10),
                gpu: Some(percent),
                ..Script::default()
            },
        );
        let engine = world.start().await.unwrap();
        let run = world.submit(&engine, "train", &policy).await.unwrap();
        let status = world.finished(&run, 40 * MINUTE).await.unwrap();
        let job = last_job(&world, &run).await;
        let points = &world.store.tables().metrics[&job.id];
        assert!(points.len() > 20, "{} points", points.len());
        assert_eq!(points[0].gpus_util_percent, [percent]);
        match ends {
            false => assert_eq!(status, RunStatus::Done),
            true => {
                assert_eq!(
                    job.termination_reason(),
                    Some(JobTerminationReason::TerminatedDueToUtilizationPolicy)
                );
                let message = job.termination_reason_message().unwrap();
                assert_eq!(message, "The job GPU utilization below 30% for 300 seconds");
            }
        }
        assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_dev_environment_that_nobody_is_connected_to_is_ended() {
    for (alone, ends) in [(false, false), (true, true)] {
        let world = World::new(41, 1).await.unwrap();
        let idle = Script {
            lines: 3,
            pause: 10 * MINUTE,
            alone,
            ..Script::default()
        };
        world.hosts.script("dev", idle);
        let engine = world.start().await.unwrap();
        let dev = json!({"type": "dev-environment", "ide": "vscode", "inactivity_duration": "5m"});
        let run = world.submit(&engine, "dev", &dev).await.unwrap();
        let status = world.finished(&run, 40 * MINUTE).await.unwrap();
        let job = last_job(&world, &run).await;
        match ends {
            false => assert_eq!(status, RunStatus::Done),
            true => {
                assert_eq!(
                    job.termination_reason(),
                    Some(JobTerminationReason::InactivityDurationExceeded)
                );
                let message = job.termination_reason_message().unwrap();
                assert!(
                    message.ends_with("exceeding the inactivity_duration of 300 seconds"),
                    "{message}"
                );
            }
        }
        assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
    }
}

/// A job that runs for a minute, and what the engine knows of its task.
async fn running_task(world: &World) -> (Engine, RunRow, JobRow) {
    let script = Script {
        lines: 60,
        pause: Duration::from_secs(1),
        ..Script::default()
    };
    world.hosts.script("train", script);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &json!({})).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    let job = last_job(world, &run).await;
    (engine, run, job)
}

fn knows_task(engine: &Engine, job: &JobRow) -> bool {
    let seen = engine.context().seen.task(job.instance_id.unwrap(), job.id);
    matches!(seen, Some(Some(_)))
}

#[tokio::test(start_paused = true)]
async fn tasks_are_not_missing_after_the_database_was_away_when_the_shim_told_them() {
    let world = World::new(60, 1).await.unwrap();
    let (engine, run, job) = running_task(&world).await;
    world.hosts.cut_off(true);
    world.pass(Duration::from_secs(1)).await;
    world.store.fail_reads(true);
    world.hosts.cut_off(false);
    world.pass(Duration::from_secs(3)).await;
    world.store.fail_reads(false);
    let known = |_: &World| knows_task(&engine, &job);
    let long = Duration::from_secs(20);
    world.throughout("the task is known", long, known).await.unwrap();
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn tasks_that_are_told_again_to_a_slow_reader_are_not_missing() {
    let world = World::new(61, 1).await.unwrap();
    let (engine, run, job) = running_task(&world).await;
    world.hosts.lag();
    let known = |_: &World| knows_task(&engine, &job);
    let long = Duration::from_secs(20);
    world.throughout("the task is known", long, known).await.unwrap();
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}
