//! Services whose number of replicas follows their requests.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// One that wants a replica for each request of a second, and looks back for 30 s.
fn scaling(replicas: &str) -> Value {
    let scaling =
        json!({"metric": "rps", "target": 1, "window": "30s", "scale_up_delay": 60, "scale_down_delay": 120});
    json!({"type": "service", "port": 8000, "commands": ["v1"], "replicas": replicas, "scaling": scaling})
}

/// Waits so long, at most, until so many replicas run, and no other.
pub(super) async fn until_running(
    world: &World,
    run: &RunRow,
    count: usize,
    within: Duration,
) -> Vec<JobRow> {
    let as_wanted = |world: &World| {
        let live: Vec<JobRow> = jobs(world, run)
            .into_iter()
            .filter(|job| !job.status().is_finished())
            .collect();
        let run = live.iter().all(|job| job.registered) && live.len() == count;
        run.then_some(live)
    };
    world
        .found("the replicas that are wanted", within, as_wanted)
        .await
        .unwrap()
}

pub(super) fn live(world: &World, run: &RunRow) -> usize {
    jobs(world, run)
        .iter()
        .filter(|job| !job.status().is_finished() && job.status() != JobStatus::Terminating)
        .count()
}

async fn submitted(seed: u64, replicas: &str) -> (World, Engine, RunRow) {
    submitted_to(World::new(seed, 8).await.unwrap(), &scaling(replicas)).await
}

pub(super) async fn submitted_to(world: World, service: &Value) -> (World, Engine, RunRow) {
    world.hosts.script("web", SILENT);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "web", service).await.unwrap();
    (world, engine, run)
}

fn rests(world: &World, run: &RunRow) -> bool {
    let row = row(world, run);
    row.status() == RunStatus::Pending && row.waiting_for() == Some(&WaitReason::Requests)
}

#[tokio::test(start_paused = true)]
async fn a_service_starts_with_its_first_request_and_rests_after_its_last() {
    let (world, _engine, run) = submitted(501, "0..2").await;
    world
        .until("it rests", MINUTE, |world| rests(world, &run))
        .await
        .unwrap();
    world
        .throughout("it rests", 10 * MINUTE, |world| {
            rests(world, &run) && jobs(world, &run).is_empty()
        })
        .await
        .unwrap();
    for _ in 0..2 {
        let asked = world.clock.now();
        world.services.load(run.id, Some(1));
        world.services.await_replica(run.id);
        let started = until_running(&world, &run, 1, 20 * SECOND).await;
        assert!(!world.services.is_awaited(run.id));
        assert!(started[0].submitted_at.since(asked) < SECOND, "at once");
        world.running(&run, SECOND).await.unwrap();
        world
            .throughout("it goes on as long as it is asked", 10 * MINUTE, |world| {
                live(world, &run) == 1
            })
            .await
            .unwrap();
        world.services.load(run.id, Some(0));
        world
            .until("it rests again", 2 * MINUTE, |world| rests(world, &run))
            .await
            .unwrap();
        assert_eq!(row(&world, &run).desired_replica_count, 0);
        assert_eq!(invariants::always(&world), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_while_the_last_replica_ends_gets_another_one() {
    let (world, _engine, run) = submitted(502, "0..1").await;
    world.services.load(run.id, Some(1));
    world.services.await_replica(run.id);
    let first = until_running(&world, &run, 1, MINUTE).await.remove(0);
    // It takes long to finish what it has.
    world.services.begin(first.id);
    world.services.load(run.id, Some(0));
    world
        .until("it ends", 3 * MINUTE, |world| live(world, &run) == 0)
        .await
        .unwrap();
    world.services.load(run.id, Some(1));
    world.services.await_replica(run.id);
    let is_second = |world: &World| registered(world, &run).iter().any(|job| job.id != first.id);
    world
        .until("another one starts meanwhile", 20 * SECOND, is_second)
        .await
        .unwrap();
    assert!(
        !world.hosts.was_stopped(first.id),
        "its requests are finished first"
    );
    world.services.end(first.id);
    until_running(&world, &run, 1, MINUTE).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// Where there is room for one only.
#[tokio::test(start_paused = true)]
async fn who_waits_while_the_last_replica_keeps_its_place_gets_another_one_afterwards() {
    let small = World::new(510, 1).await.unwrap();
    let (world, _engine, run) = submitted_to(small, &scaling("0..1")).await;
    world.services.load(run.id, Some(1));
    world.services.await_replica(run.id);
    let first = until_running(&world, &run, 1, MINUTE).await.remove(0);
    world.services.begin(first.id);
    world.services.load(run.id, Some(0));
    world
        .until("it ends", 3 * MINUTE, |world| live(world, &run) == 0)
        .await
        .unwrap();
    world.services.load(run.id, Some(1));
    world.services.await_replica(run.id);
    let is_refused = |world: &World| no_place(world, &run) > 0;
    world
        .until("there is no place", MINUTE, is_refused)
        .await
        .unwrap();
    assert!(!world.hosts.was_stopped(first.id));
    world.services.end(first.id);
    until_running(&world, &run, 1, MINUTE).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

fn no_place(world: &World, run: &RunRow) -> usize {
    let refused = Some(JobTerminationReason::FailedToStartDueToNoCapacity);
    let jobs = jobs(world, run);
    let ended = jobs.iter().filter(|job| job.status().is_finished());
    ended.filter(|job| job.termination_reason() == refused).count()
}

/// As long as somebody waits for it, however long it has rested, and whatever its `retry` says.
async fn tried_while_it_is_awaited(seed: u64, retry: &Value) {
    let mut service = scaling("0..1");
    service["retry"] = retry.clone();
    let small = World::new(seed, 1).await.unwrap();
    small.hosts.script("busy", SILENT);
    let (world, engine, run) = submitted_to(small, &service).await;
    let task = json!({"type": "task", "commands": ["busy"]});
    let busy = world.submit(&engine, "busy", &task).await.unwrap();
    world.running(&busy, MINUTE).await.unwrap();
    world.pass(120 * MINUTE).await;
    world.services.load(run.id, Some(0));
    world.services.await_replica(run.id);
    world.pass(2 * MINUTE).await;
    // At once, and after 15, 30 and 60 s.
    assert_eq!(no_place(&world, &run), 4);
    world.services.give_up(run.id);
    world
        .until("it rests", 3 * MINUTE, |world| rests(world, &run))
        .await
        .unwrap();
    world
        .throughout("it rests", 30 * MINUTE, |world| no_place(world, &run) == 4)
        .await
        .unwrap();
    world.services.await_replica(run.id);
    world.pass(SECOND).await;
    world.stop(&engine, &busy, false).await.unwrap();
    until_running(&world, &run, 1, MINUTE).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_service_at_rest_that_finds_no_place_is_tried_again_while_somebody_waits() {
    tried_while_it_is_awaited(511, &json!(false)).await;
}

#[tokio::test(start_paused = true)]
async fn so_is_one_that_is_retried() {
    tried_while_it_is_awaited(512, &json!(true)).await;
}

#[tokio::test(start_paused = true)]
async fn replicas_come_and_go_with_the_requests_after_their_delays() {
    let (world, _engine, run) = submitted(503, "1..3").await;
    let first = until_running(&world, &run, 1, MINUTE).await;
    let began = first[0].submitted_at;
    world.services.load(run.id, Some(75));
    let grown = until_running(&world, &run, 3, 2 * MINUTE).await;
    let after = grown[2].submitted_at.since(began);
    assert!((60 * SECOND..75 * SECOND).contains(&after), "{after:?}");
    assert_eq!(row(&world, &run).desired_replica_count, 3);

    world.services.load(run.id, Some(15));
    let shrunk = until_running(&world, &run, 1, 4 * MINUTE).await;
    assert_eq!(shrunk[0].id, first[0].id, "the oldest stays");
    let ended = jobs(&world, &run).into_iter().filter_map(|job| job.ending_since);
    for after in ended.map(|ended| ended.since(grown[2].submitted_at)) {
        assert!((120 * SECOND..135 * SECOND).contains(&after), "{after:?}");
    }
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    // Never below the least.
    world.services.load(run.id, Some(0));
    world
        .throughout("one stays", 10 * MINUTE, |world| {
            registered(world, &run).len() == 1
        })
        .await
        .unwrap();
}

/// However often its number was used before.
#[tokio::test(start_paused = true)]
async fn a_replica_that_finds_no_place_for_the_first_time_is_soon_tried_again() {
    let small = World::new(513, 2).await.unwrap();
    small.hosts.script("busy", SILENT);
    let (world, engine, run) = submitted_to(small, &scaling("1..2")).await;
    for _ in 0..4 {
        world.services.load(run.id, Some(60));
        until_running(&world, &run, 2, 5 * MINUTE).await;
        world.services.load(run.id, Some(0));
        until_running(&world, &run, 1, 5 * MINUTE).await;
    }
    let task = json!({"type": "task", "commands": ["busy"]});
    let busy = world.submit(&engine, "busy", &task).await.unwrap();
    world.running(&busy, MINUTE).await.unwrap();
    world.services.load(run.id, Some(60));
    let is_refused = |world: &World| no_place(world, &run) > 0;
    world
        .until("there is no place", 3 * MINUTE, is_refused)
        .await
        .unwrap();
    world.pass(50 * SECOND).await;
    // After 15 and 30 s.
    assert_eq!(no_place(&world, &run), 3);
}

#[tokio::test(start_paused = true)]
async fn requests_that_nobody_knows_of_change_nothing() {
    let (world, _engine, run) = submitted(504, "1..3").await;
    world.services.load(run.id, Some(60));
    until_running(&world, &run, 2, 3 * MINUTE).await;
    world.services.load(run.id, None);
    world
        .throughout("both go on", 20 * MINUTE, |world| live(world, &run) == 2)
        .await
        .unwrap();
}

/// Between two changes nothing is written, however often requests are looked at.
#[tokio::test(start_paused = true)]
async fn a_service_that_stays_as_it_is_writes_nothing() {
    let (world, _engine, run) = submitted(505, "1..3").await;
    world.services.load(run.id, Some(30));
    until_running(&world, &run, 1, MINUTE).await;
    world.pass(5 * MINUTE).await;
    let version = row(&world, &run).version;
    world.pass(10 * MINUTE).await;
    assert_eq!(row(&world, &run).version, version);
}

#[tokio::test(start_paused = true)]
async fn a_deployment_keeps_as_many_replicas_as_requests_want() {
    let (world, engine, run) = submitted(506, "1..3").await;
    world.services.load(run.id, Some(60));
    until_running(&world, &run, 2, 3 * MINUTE).await;
    world.pass(10 * MINUTE).await;
    let updated = world.clock.now();
    let mut second = scaling("1..3");
    second["commands"] = json!(["v2"]);
    world.update(&engine, &run, &second).await.unwrap();
    until_both(&world, &run, is_second).await;
    let row = row(&world, &run);
    assert_eq!(row.desired_replica_count, 2);
    let scales = row.desired_replica_counts.unwrap();
    let at = scales["0"].at.unwrap();
    assert!(at >= updated, "a deployment counts as a change");
}

/// What is left of it is not needed any more, which is no failure.
#[tokio::test(start_paused = true)]
async fn a_service_of_which_a_replica_has_failed_rests_like_others_and_starts_again() {
    let (world, _engine, run) = submitted(509, "0..2").await;
    world.services.load(run.id, Some(60));
    let both = until_running(&world, &run, 2, MINUTE).await;
    world.hosts.kill_container(both[1].id);
    let failed = |world: &World| {
        jobs(world, &run)
            .iter()
            .any(|job| job.status() == JobStatus::Failed)
    };
    world.until("one fails", MINUTE, failed).await.unwrap();
    world.services.load(run.id, Some(0));
    world
        .until("it rests", 5 * MINUTE, |world| rests(world, &run))
        .await
        .unwrap();
    world.services.load(run.id, Some(1));
    world.services.await_replica(run.id);
    until_running(&world, &run, 1, MINUTE).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// Requests come to a service at rest, more and more, and less, and none, with an engine that dies at the `nth` passing of a
/// failpoint. Clients ask the next server again.
async fn scaled_with_death_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let (world, engine, run) = submitted(507, "0..2").await;
    world
        .until("it rests", MINUTE, |world| rests(world, &run))
        .await
        .unwrap();
    engine.stop();
    let death = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&death).await.unwrap();
    let story = async {
        world.services.load(run.id, Some(1));
        world.services.await_replica(run.id);
        let first = until_running(&world, &run, 1, 5 * MINUTE).await.remove(0);
        world.services.load(run.id, Some(60));
        until_running(&world, &run, 2, 5 * MINUTE).await;
        world.services.load(run.id, Some(1));
        let left = until_running(&world, &run, 1, 5 * MINUTE).await.remove(0);
        assert_eq!(left.id, first.id, "{point} {nth}");
        world.services.load(run.id, Some(0));
        world
            .until("it rests again", 5 * MINUTE, |world| rests(world, &run))
            .await
            .unwrap();
    };
    until_told(&world, &engine, story).await;
    // Nothing was started that nobody wanted.
    assert_eq!(jobs(&world, &run).len(), 2, "{point} {nth}");
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{point} {nth}");
    death
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_a_service_follows_its_requests() {
    let points = killed_everywhere(PASSINGS, scaled_with_death_at).await;
    assert!(points.len() >= 10, "{points:?}");
}

/// Who drives a service looks at it also when nobody tells it to.
#[tokio::test(start_paused = true)]
async fn requests_that_were_counted_elsewhere_start_a_service_as_well() {
    let (world, _engine, run) = submitted(508, "0..1").await;
    world
        .until("it rests", MINUTE, |world| rests(world, &run))
        .await
        .unwrap();
    world.services.load(run.id, Some(1));
    until_running(&world, &run, 1, MINUTE).await;
}
