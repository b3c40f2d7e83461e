//! A replica that is to end finishes the requests that it has.

use std::cell::Cell;

use dstack_plan::lifecycle::job::{REQUESTS_TIMEOUT, REQUESTS_TIMEOUT_OF_STOPPED};
use dstack_sim::services::TO_BE_HEARD;
use dstack_store::EntityRef;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Replica 1 is too many, and has a request.
async fn scaled_down(seed: u64) -> (World, Engine, RunRow, JobRow) {
    let (world, engine, run) = started_with(seed, 2, SILENT).await;
    let job = running(&world, &run).remove(1);
    world.services.begin(job.id);
    world.update(&engine, &run, &service(1, "v1")).await.unwrap();
    until_waits(&world, &run, &job).await;
    (world, engine, run, job)
}

fn now_of(world: &World, run: &RunRow, job: &JobRow) -> JobRow {
    let jobs = jobs(world, run);
    jobs.into_iter().find(|row| row.id == job.id).unwrap()
}

/// Until its requests are all that keeps it from being stopped.
async fn until_waits(world: &World, run: &RunRow, job: &JobRow) {
    let waits = |world: &World| now_of(world, run, job).waiting_for() == Some(&WaitReason::RequestsFinished);
    world.until("it finishes requests", MINUTE, waits).await.unwrap();
}

/// How long after it began to end it was asked to stop.
async fn asked_after(world: &World, run: &RunRow, job: &JobRow) -> Duration {
    let asked = world
        .found("it is asked to stop", 10 * MINUTE, |world| {
            world.hosts.stopped_at(job.id)
        })
        .await
        .unwrap();
    assert_eq!(invariants::always(world), Vec::<String>::new());
    asked.since(now_of(world, run, job).ending_since.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_replica_too_many_is_asked_to_stop_once_its_requests_are_finished() {
    let (world, _engine, run, job) = scaled_down(401).await;
    let ending = now_of(&world, &run, &job);
    assert_eq!(
        ending.deadline_at(),
        ending.ending_since.map(|since| since + REQUESTS_TIMEOUT)
    );
    assert!(!ending.registered);
    world.pass(40 * SECOND).await;
    assert!(!world.hosts.was_stopped(job.id));
    world.services.end(job.id);
    let after = asked_after(&world, &run, &job).await;
    assert!((40 * SECOND..42 * SECOND).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_do_not_end_are_cut_off_after_a_minute() {
    let (world, _engine, run, job) = scaled_down(402).await;
    let after = asked_after(&world, &run, &job).await;
    assert!(
        (REQUESTS_TIMEOUT..REQUESTS_TIMEOUT + SECOND).contains(&after),
        "{after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_requests_is_asked_to_stop_once_all_servers_have_heard() {
    for (alone, heard) in [(true, Duration::ZERO), (false, TO_BE_HEARD)] {
        let world = match alone {
            true => World::of_one_server(403, 8).await.unwrap(),
            false => World::new(403, 8).await.unwrap(),
        };
        world.hosts.script("web", SILENT);
        let (engine, run) = started_in(&world, 2).await;
        let job = running(&world, &run).remove(1);
        world.update(&engine, &run, &service(1, "v1")).await.unwrap();
        let after = asked_after(&world, &run, &job).await;
        assert!((heard..heard + SECOND).contains(&after), "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_looked_at_again_and_again_while_it_drains_is_withdrawn_once() {
    let (world, engine, _run, job) = scaled_down(409).await;
    world.pass(SECOND).await;
    let before = world.services.withdrawals(job.id);
    for _ in 0..5 {
        engine.wake(EntityRef::Job(job.id));
        world.pass(SECOND).await;
    }
    assert!(!world.hosts.was_stopped(job.id));
    assert_eq!(world.services.withdrawals(job.id), before);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_stopped_finishes_what_takes_seconds_and_one_that_is_aborted_nothing() {
    let (world, engine, run) = started_with(404, 1, SILENT).await;
    let job = running(&world, &run).remove(0);
    world.services.begin(job.id);
    world.stop(&engine, &run, false).await.unwrap();
    until_waits(&world, &run, &job).await;
    let after = asked_after(&world, &run, &job).await;
    let limit = REQUESTS_TIMEOUT_OF_STOPPED;
    assert!((limit..limit + SECOND).contains(&after), "{after:?}");
    assert_eq!(
        world.finished(&run, 10 * MINUTE).await.unwrap(),
        RunStatus::Terminated
    );

    let (world, engine, run) = started_with(405, 1, SILENT).await;
    let job = running(&world, &run).remove(0);
    world.services.begin(job.id);
    world.stop(&engine, &run, true).await.unwrap();
    world.finished(&run, 3 * SECOND).await.unwrap();
    assert_eq!(now_of(&world, &run, &job).status(), JobStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_crashes_meanwhile_is_not_waited_for() {
    let (world, _engine, run, job) = scaled_down(406).await;
    world.hosts.kill_container(job.id);
    let over = |world: &World| now_of(world, &run, &job).status().is_finished();
    world.until("it is over", 40 * SECOND, over).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_end_with_the_server_they_came_through_and_another_one_waits_for_none() {
    let (world, engine, run, job) = scaled_down(407).await;
    let _other = world.start_as("other").await.unwrap();
    world.pass(10 * SECOND).await;
    assert!(!world.hosts.was_stopped(job.id));
    engine.stop();
    world.leases_run_out().await;
    let after = asked_after(&world, &run, &job).await;
    assert!((10 * SECOND..20 * SECOND).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn the_server_that_drives_a_replica_waits_for_its_own_requests_and_lets_others_hear() {
    for own in [true, false] {
        let (world, engine, run) = started_with(410, 2, SILENT).await;
        let job = running(&world, &run).remove(1);
        if own {
            world.services.begin(job.id);
        }
        let _other = world.start_as("other").await.unwrap();
        world.services.begin(job.id);
        world.update(&engine, &run, &service(1, "v1")).await.unwrap();
        let after = asked_after(&world, &run, &job).await;
        let expected = if own { REQUESTS_TIMEOUT } else { TO_BE_HEARD };
        assert!((expected..expected + SECOND).contains(&after), "{after:?}");
    }
}

/// A deployment under load, with an engine that dies at the `nth` passing of a failpoint: each replica has a request all the time,
/// which it finishes 20 seconds after it began to end. What dies with the engine is asked for again through the next one, where
/// requests go by then.
async fn deployed_under_load(point: &'static str, nth: u32) -> Arc<DieAt> {
    let (world, engine, run) = started_with(408, 2, SILENT).await;
    engine.stop();
    let death = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&death).await.unwrap();
    for job in running(&world, &run) {
        world.services.begin(job.id);
    }
    let finishes = async {
        let mut finished = Vec::new();
        loop {
            let next = |world: &World| {
                let mut jobs = jobs(world, &run).into_iter();
                jobs.find(|job| job.status() == JobStatus::Terminating && !finished.contains(&job.id))
            };
            let job = world.found("a replica ends", 20 * MINUTE, next).await.unwrap();
            world.pass(20 * SECOND).await;
            world.services.end(job.id);
            finished.push(job.id);
        }
    };
    let asked_again = Cell::new(None);
    let story = async {
        world.update(&engine, &run, &service(2, "v2")).await.unwrap();
        until_both(&world, &run, is_second).await;
        let ended = jobs(&world, &run);
        let replaced: Vec<&JobRow> = ended.iter().filter(|job| !is_second(job)).collect();
        assert_eq!(replaced.len(), 2);
        for job in replaced {
            let after = asked_after(&world, &run, job).await;
            let had_some = asked_again
                .get()
                .is_none_or(|again| job.ending_since > Some(again));
            assert!(!had_some || after >= 20 * SECOND, "{point} {nth}: {after:?}");
        }
    };
    let next_engine = async {
        engine.stopped().await;
        let _engine = world.start().await.unwrap();
        asked_again.set(Some(world.clock.now()));
        for job in registered(&world, &run) {
            world.services.begin(job.id);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = story => {}
        () = next_engine => {}
        () = finishes => {}
    }
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{point} {nth}");
    death
}

#[tokio::test(start_paused = true)]
async fn killed_wherever_requests_move_a_deployment_cuts_no_request_short() {
    let points = killed_where(moves_requests, PASSINGS, deployed_under_load).await;
    assert!(points.len() >= 10, "{points:?}");
}
