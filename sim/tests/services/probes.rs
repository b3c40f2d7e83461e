//! Probes say which replicas are ready, and which get requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use dstack_engine::follow::probes::MAX_PROBES_OF_PROJECT;
use dstack_model::runs::ProbeSpec;
use dstack_plan::probes::MAX_FAILURES;
use dstack_sim::Answer;
use dstack_store::rows::AgentAddress;
use dstack_store::{Commit, EngineStore, EntityRef, Json, Put};
use dstack_units::{JobId, ProjectId};
use uuid::Uuid;

use super::*;

const INTERVAL: Duration = Duration::from_secs(10);
const READY: &str = "Service replica ready to receive requests";

fn probe(path: &str, ready_after: i64) -> Value {
    json!({"type": "http", "url": path, "interval": 10, "timeout": 3, "ready_after": ready_after})
}

fn probed(replicas: i64, command: &str, probes: &[Value]) -> Value {
    let mut service = service(replicas, command);
    service["probes"] = json!(probes);
    service
}

/// A service with a probe that succeeds twice before it is ready; its jobs answer so.
async fn probing(
    seed: u64,
    replicas: i64,
    answers: impl Fn(&JobRow, &ProbeSpec) -> Answer + Send + Sync + 'static,
) -> (World, Engine, RunRow) {
    let world = World::new(seed, 8).await.unwrap();
    world.hosts.script("web", SILENT);
    world.services.answer(answers);
    let engine = world.start().await.unwrap();
    let service = probed(replicas, "v1", &[probe("/health", 2)]);
    let run = world.submit(&engine, "web", &service).await.unwrap();
    (world, engine, run)
}

fn well(_: &JobRow, _: &ProbeSpec) -> Answer {
    Answer::Well
}

async fn until_registered(world: &World, run: &RunRow, replicas: &[i64]) {
    let what = format!("requests go to the replicas {replicas:?}");
    let are = |world: &World| {
        let jobs = registered(world, run);
        let numbers: Vec<i64> = jobs.iter().map(|job| job.replica_num).collect();
        numbers == replicas
    };
    world.until(&what, 10 * MINUTE, are).await.unwrap();
    assert_eq!(invariants::always(world), Vec::<String>::new());
}

fn replica(world: &World, run: &RunRow, num: i64) -> JobRow {
    let jobs = jobs(world, run);
    jobs.into_iter().rfind(|job| job.replica_num == num).unwrap()
}

fn told(world: &World, job: JobId) -> Vec<String> {
    let mut told = world.messages_about(EntityRef::Job(job));
    told.retain(|text| text.starts_with("Service replica"));
    told
}

fn awaited(job: &JobRow) -> String {
    job.waiting_for().map(ToString::to_string).unwrap_or_default()
}

/// These replicas fail their probes, all others do not.
fn fail(world: &World, replicas: &'static [i64]) {
    world
        .services
        .answer(|job, _| match replicas.contains(&job.replica_num) {
            true => Answer::Instead("status 503"),
            false => Answer::Well,
        });
}

#[tokio::test(start_paused = true)]
async fn a_replica_gets_requests_once_its_probes_have_succeeded_as_often_as_is_wanted() {
    let (world, _engine, run) = probing(301, 1, well).await;
    until(&world, &run, |jobs| jobs.len() == 1, anything).await;
    let job = replica(&world, &run, 0);
    assert!(!job.ready && !job.registered);
    until_registered(&world, &run, &[0]).await;
    let (asked, job) = (world.services.asked(job.id, "/health"), replica(&world, &run, 0));
    assert_eq!(asked.len(), 2, "at once, and once more");
    assert!(asked[0].since(job.running_at.unwrap()) < Duration::from_secs(1));
    assert_eq!(asked[1].since(asked[0]), INTERVAL);
    assert!(job.ready);
    assert_eq!(told(&world, job.id), [READY]);
    assert_eq!(awaited(&job), "the commands to end");

    // It is asked for ever, and a service that is well writes nothing.
    world.pass(Duration::from_secs(1)).await;
    let before = replica(&world, &run, 0).version;
    world.pass(60 * MINUTE).await;
    assert_eq!(replica(&world, &run, 0).version, before);
    let asked = world.services.asked(job.id, "/health").len();
    assert!((360..=363).contains(&asked), "{asked} times");
}

#[tokio::test(start_paused = true)]
async fn a_job_without_probes_gets_requests_as_soon_as_it_runs() {
    let (world, engine, run) = started(302, 1).await;
    let job = replica(&world, &run, 0);
    assert!(job.ready && job.registered);
    assert_eq!(told(&world, job.id), [READY]);
    world.stop(&engine, &run, false).await.unwrap();
    world.finished(&run, 10 * MINUTE).await.unwrap();
    let job = replica(&world, &run, 0);
    assert!(!job.registered);
    assert_eq!(told(&world, job.id), [READY], "its end says enough");
    let task = world.submit(&engine, "task", &json!({})).await.unwrap();
    world.finished(&task, 10 * MINUTE).await.unwrap();
    let task = replica(&world, &task, 0);
    assert!(!task.ready && task.probes.is_none(), "no requests go to tasks");
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_never_gets_ready_costs_no_replica_and_says_which_probe_fails() {
    let (world, engine, run) = probing(303, 2, |job, _| match is_second(job) {
        true => Answer::Instead("status 503"),
        false => Answer::Well,
    })
    .await;
    until_registered(&world, &run, &[0, 1]).await;
    let second = |command| probed(2, command, &[probe("/health", 2)]);
    world.update(&engine, &run, &second("v2")).await.unwrap();
    let both_serve = |world: &World| registered(world, &run).len() == 2;
    world
        .throughout("both replicas get requests", 60 * MINUTE, both_serve)
        .await
        .unwrap();
    let new: Vec<JobRow> = running(&world, &run).into_iter().filter(is_second).collect();
    assert_eq!(new.len(), 1, "{new:#?}");
    assert_eq!(
        awaited(&new[0]),
        "its probe GET /health to succeed (last attempt: status 503)"
    );
    assert!(!new[0].ready && told(&world, new[0].id).is_empty());
    assert_eq!(
        registered(&world, &run)
            .iter()
            .filter(|job| is_second(job))
            .count(),
        0
    );

    // What is mended arrives, and is never less than there was.
    world.services.answer(well);
    let arrives = |world: &World| {
        let jobs = registered(world, &run);
        assert!(jobs.len() >= 2, "{jobs:#?}");
        assert_eq!(invariants::always(world), Vec::<String>::new());
        let alive = running(world, &run);
        alive.len() == 2 && alive.iter().all(is_second)
    };
    world.until("the deployment", 10 * MINUTE, arrives).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_fails_later_gets_no_requests_until_it_is_well_again_and_never_the_last() {
    let (world, _engine, run) = probing(304, 3, well).await;
    until_registered(&world, &run, &[0, 1, 2]).await;
    let ejected = replica(&world, &run, 1).id;
    fail(&world, &[1]);
    let before = world.clock.now();
    until_registered(&world, &run, &[0, 2]).await;
    let failures = world.services.asked(ejected, "/health");
    let failures = failures.iter().filter(|at| **at > before).count();
    assert_eq!(i64::try_from(failures).unwrap(), MAX_FAILURES);
    let job = replica(&world, &run, 1);
    assert!(job.ready && job.status() == JobStatus::Running, "it goes on");
    let no_more = "Service replica receives no requests: a probe fails (GET /health: status 503)";
    assert_eq!(told(&world, ejected), [READY, no_more]);
    assert!(
        awaited(&job).ends_with("(last attempt: status 503)"),
        "{}",
        awaited(&job)
    );

    fail(&world, &[0, 1, 2]);
    let somebody = |world: &World| !registered(world, &run).is_empty();
    world
        .throughout("somebody gets requests", 30 * MINUTE, somebody)
        .await
        .unwrap();

    fail(&world, &[0, 2]);
    until_registered(&world, &run, &[1]).await;
    let again = "Service replica receives requests again";
    assert_eq!(told(&world, ejected), [READY, no_more, again]);
    fail(&world, &[]);
    until_registered(&world, &run, &[0, 1, 2]).await;
    assert_eq!(row(&world, &run).status(), RunStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn the_way_of_requests_is_told_of_each_change() {
    let (world, engine, run) = probing(312, 2, well).await;
    let knows = async |replicas: &[i64]| {
        until_registered(&world, &run, replicas).await;
        let right = |world: &World| {
            let jobs = registered(world, &run).into_iter().map(|job| job.id);
            world.services.routed() == jobs.collect()
        };
        world
            .until("the server knows it", Duration::from_secs(1), right)
            .await
            .unwrap();
    };
    knows(&[0, 1]).await;
    fail(&world, &[1]);
    knows(&[0]).await;
    fail(&world, &[]);
    knows(&[0, 1]).await;
    world.hosts.kill_container(replica(&world, &run, 0).id);
    knows(&[1]).await;
    world.stop(&engine, &run, false).await.unwrap();
    knows(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn when_the_last_one_ends_those_that_fail_get_requests_again() {
    let (world, _engine, run) = probing(305, 2, well).await;
    until_registered(&world, &run, &[0, 1]).await;
    fail(&world, &[1]);
    until_registered(&world, &run, &[0]).await;
    world.hosts.kill_container(replica(&world, &run, 0).id);
    until_registered(&world, &run, &[1]).await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_now_and_then_takes_no_requests_and_makes_nothing_ready() {
    let count = AtomicUsize::new(0);
    let (world, _engine, run) = probing(306, 1, well).await;
    until_registered(&world, &run, &[0]).await;
    // Two of three fail.
    world
        .services
        .answer(move |_, _| match count.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => Answer::Well,
            1 => Answer::Instead("status 500"),
            _ => Answer::Never,
        });
    let serves = |world: &World| registered(world, &run).len() == 1;
    world.throughout("it serves", 30 * MINUTE, serves).await.unwrap();
    assert_eq!(told(&world, replica(&world, &run, 0).id), [READY]);
    let texts = awaited(&replica(&world, &run, 0));
    let errors = [
        "",
        " (last attempt: status 500)",
        " (last attempt: no answer within 3s)",
    ];
    let expected = errors.map(|error| format!("its probe GET /health to succeed{error}"));
    assert!(expected.contains(&texts), "{texts}");
    world.services.answer(well);

    let other = World::new(307, 8).await.unwrap();
    other.hosts.script("web", SILENT);
    let count = AtomicUsize::new(0);
    other
        .services
        .answer(move |_, _| match count.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Answer::Well,
            _ => Answer::Instead("status 500"),
        });
    let engine = other.start().await.unwrap();
    let service = probed(1, "v1", &[probe("/health", 2)]);
    let run = other.submit(&engine, "web", &service).await.unwrap();
    other.running(&run, MINUTE).await.unwrap();
    other
        .throughout("it is not ready", 30 * MINUTE, |world| {
            registered(world, &run).is_empty()
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn probes_of_a_job_are_asked_side_by_side_and_those_until_ready_no_longer() {
    let world = World::new(308, 8).await.unwrap();
    world.hosts.script("web", SILENT);
    world.services.answer(|_, probe| match probe.url.as_str() {
        "/mute" => Answer::Never,
        _ => Answer::Well,
    });
    let engine = world.start().await.unwrap();
    let mut once = probe("/once", 3);
    once["until_ready"] = json!(true);
    let probes = [once, probe("/mute", 1), probe("/health", 1)];
    let run = world
        .submit(&engine, "web", &probed(1, "v1", &probes))
        .await
        .unwrap();
    world.running(&run, MINUTE).await.unwrap();
    let job = replica(&world, &run, 0).id;
    world.pass(10 * MINUTE).await;
    assert_eq!(world.services.asked(job, "/once").len(), 3);
    let mute = world.services.asked(job, "/mute");
    assert!(
        (46..=48).contains(&mute.len()),
        "every 13 seconds: {}",
        mute.len()
    );
    assert!((60..=61).contains(&world.services.asked(job, "/health").len()));
    let job = replica(&world, &run, 0);
    assert_eq!(
        awaited(&job),
        "its probe GET /mute to succeed (last attempt: no answer within 3s)"
    );
    assert!(!job.registered);

    // None is asked once the job does not run any more.
    world.stop(&engine, &run, false).await.unwrap();
    world.finished(&run, 10 * MINUTE).await.unwrap();
    let asked = world.services.asked(job.id, "/health").len();
    world.pass(10 * MINUTE).await;
    assert_eq!(world.services.asked(job.id, "/health").len(), asked);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_once_ends_no_probe_for_ever() {
    let world = World::new(314, 8).await.unwrap();
    world.hosts.script("web", SILENT);
    world.services.answer(|_, probe| match probe.url.as_str() {
        "/sick" => Answer::Instead("status 503"),
        _ => Answer::Well,
    });
    let engine = world.start().await.unwrap();
    let service = probed(1, "v1", &[probe("/health", 1), probe("/sick", 1)]);
    let run = world.submit(&engine, "web", &service).await.unwrap();
    world.running(&run, MINUTE).await.unwrap();
    world.pass(MINUTE).await;
    world.store.fail_reads(true);
    world.pass(2 * INTERVAL).await;
    world.store.fail_reads(false);
    world.services.answer(well);
    until_registered(&world, &run, &[0]).await;
}

#[tokio::test(start_paused = true)]
async fn more_probes_than_the_server_allows_or_longer_ones_are_refused() {
    let world = World::new(315, 8).await.unwrap();
    let refused = |probes: &[Value]| {
        let spec = world.builder.spec("web", &probed(1, "v1", probes));
        spec.map_or_else(|error| error.to_string(), |_| String::new())
    };
    let many = |count: usize| -> Vec<Value> { (0..count).map(|num| probe(&format!("/{num}"), 1)).collect() };
    assert_eq!(refused(&many(10)), "");
    assert_eq!(refused(&many(11)), "Cannot configure more than 10 probes");
    let mut long = probe("/", 1);
    long["timeout"] = json!(300);
    assert_eq!(refused(&[long.clone()]), "");
    long["timeout"] = json!(301);
    assert_eq!(refused(&[long]), "Probe timeout cannot be longer than 300s");
}

#[tokio::test(start_paused = true)]
async fn the_way_of_requests_follows_an_instance_to_another_address() {
    let (world, engine, run) = probing(316, 1, well).await;
    until_registered(&world, &run, &[0]).await;
    let job = replica(&world, &run, 0);
    let mut instance = world
        .store
        .read(|tables| tables.instances[&job.instance_id.unwrap()].clone());
    let elsewhere = AgentAddress::Local {
        runtime: "process".to_owned(),
        host: "elsewhere".to_owned(),
        rules: Default::default(),
    };
    instance.agent = Some(Json::new(elsewhere.clone()));
    let moved = Commit::unchecked(vec![Put::Instance(instance)], Vec::new());
    engine.commit(moved).await.unwrap();
    assert_eq!(world.services.routes()[&job.id], Some(elsewhere));
}

#[tokio::test(start_paused = true)]
async fn only_so_many_probes_of_a_project_are_under_way_and_each_has_its_turn() {
    let mut world = World::new(313, 40).await.unwrap();
    world.hosts.script("web", SILENT);
    world.hosts.script("other", SILENT);
    world.services.answer(|_, _| Answer::Never);
    let engine = world.start().await.unwrap();
    let probes: Vec<Value> = (0..10).map(|num| probe(&format!("/{num}"), 1)).collect();
    let mut wide = probed(30, "v1", &probes);
    wide["resources"] = json!({"cpu": "0..", "memory": "1GB.."});
    let run = world.submit(&engine, "web", &wide).await.unwrap();
    until(&world, &run, |jobs| jobs.len() == 30, anything).await;
    world.pass(3 * MINUTE).await;
    assert_eq!(world.services.most_probes(), MAX_PROBES_OF_PROJECT);
    for job in running(&world, &run) {
        for num in 0..10 {
            let asked = world.services.asked(job.id, &format!("/{num}")).len();
            assert!(asked >= 2, "{num} of {}: {asked} times", job.job_name);
        }
    }

    // Another project is not held up.
    world
        .services
        .answer(|job, _| match job.job_name.starts_with("other") {
            true => Answer::Well,
            false => Answer::Never,
        });
    world.builder.project = ProjectId::from(Uuid::from_u128(2));
    let machine = world.builder.machine(1, world.clock.now()).unwrap();
    engine.commit(machine).await.unwrap();
    let service = probed(1, "v1", &[probe("/health", 2)]);
    let other = world.submit(&engine, "other", &service).await.unwrap();
    world.running(&other, MINUTE).await.unwrap();
    let job = replica(&world, &other, 0).id;
    world.pass(MINUTE).await;
    let asked = world.services.asked(job, "/health");
    assert!(asked.len() >= 6, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn successes_in_a_row_go_on_after_a_restart_also_at_another_server() {
    for another in [false, true] {
        let world = World::new(309, 8).await.unwrap();
        world.hosts.script("web", SILENT);
        let first = world.start_as("a").await.unwrap();
        let service = probed(1, "v1", &[probe("/health", 5)]);
        let run = world.submit(&first, "web", &service).await.unwrap();
        let three = |world: &World| {
            let jobs = running(world, &run);
            let states = jobs.first().and_then(|job| job.probes.clone());
            states.is_some_and(|states| states.of(0).streak == 3)
        };
        world.until("three successes", 10 * MINUTE, three).await.unwrap();
        let _second = match another {
            true => {
                let second = world.start_as("b").await.unwrap();
                first.stop();
                second
            }
            false => {
                first.stop();
                world.leases_run_out().await;
                world.start_as("a").await.unwrap()
            }
        };
        until_registered(&world, &run, &[0]).await;
        let job = replica(&world, &run, 0);
        assert_eq!(world.services.asked(job.id, "/health").len(), 5, "{another}");
        assert_eq!(told(&world, job.id), [READY]);
        fail(&world, &[0]);
        let fails = |world: &World| awaited(&replica(world, &run, 0)).ends_with("status 503)");
        world.until("its probe fails", 10 * MINUTE, fails).await.unwrap();
    }
}

/// A job as it was left by a version that asked no probes.
async fn as_before(world: &World, run: &RunRow) {
    for mut job in running(world, run) {
        (job.ready, job.registered, job.probes) = (false, false, None);
        world
            .store
            .commit(Commit::unchecked(vec![Put::Job(job)], Vec::new()))
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_version_without_probes_has_started_serves_until_its_probes_say_otherwise() {
    let (world, engine, run) = probing(310, 2, well).await;
    until_registered(&world, &run, &[0, 1]).await;
    let fails = |job: &JobRow| job.replica_num == 1 || is_second(job);
    world.services.answer(move |job, _| match fails(job) {
        true => Answer::Instead("status 404"),
        false => Answer::Well,
    });
    // It is in the middle of a deployment that never gets ready.
    let second = probed(2, "v2", &[probe("/health", 2)]);
    world.update(&engine, &run, &second).await.unwrap();
    let started = |world: &World| running(world, &run).iter().any(is_second);
    world.until("a new replica", MINUTE, started).await.unwrap();
    engine.stop();
    world.leases_run_out().await;
    let before: Vec<JobId> = running(&world, &run)
        .iter()
        .filter(|job| !is_second(job))
        .map(|job| job.id)
        .collect();
    as_before(&world, &run).await;
    let _engine = world.start().await.unwrap();
    let served = |world: &World| registered(world, &run).len() >= 2;
    world.until("they serve", MINUTE, served).await.unwrap();
    world.pass(30 * MINUTE).await;
    let left = running(&world, &run);
    assert!(
        left.iter().any(|job| job.id == before[0] && job.registered),
        "{left:#?}"
    );
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

/// A story of probes with an engine that dies at the `nth` passing of a failpoint.
async fn probed_with_death_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let (world, engine, run) = probing(311, 2, well).await;
    until_registered(&world, &run, &[0, 1]).await;
    engine.stop();
    let death = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&death).await.unwrap();
    let somebody = |world: &World| {
        assert!(!registered(world, &run).is_empty(), "{point} {nth}");
        assert_eq!(invariants::always(world), Vec::<String>::new(), "{point} {nth}");
    };
    let until_are = |replicas: &'static [i64], all: fn(&JobRow) -> bool| {
        let (world, run) = (&world, &run);
        async move {
            let are = |world: &World| {
                somebody(world);
                let jobs = registered(world, run);
                let numbers: Vec<i64> = jobs.iter().map(|job| job.replica_num).collect();
                numbers == replicas && jobs.iter().all(all)
            };
            let what = format!("{replicas:?}, {point} {nth}");
            world.until(&what, 20 * MINUTE, are).await.unwrap();
        }
    };
    let story = async {
        fail(&world, &[1]);
        until_are(&[0], |_| true).await;
        fail(&world, &[]);
        until_are(&[0, 1], |_| true).await;
        let second = probed(2, "v2", &[probe("/health", 2)]);
        world.update(&engine, &run, &second).await.unwrap();
        let arrives = |world: &World| {
            let jobs = registered(world, &run);
            assert!(jobs.len() >= 2, "{point} {nth}: {jobs:#?}");
            jobs.len() == 2 && jobs.iter().all(is_second)
        };
        world.until("v2", 20 * MINUTE, arrives).await.unwrap();
    };
    until_told(&world, &engine, story).await;
    for job in jobs(&world, &run) {
        let ready = told(&world, job.id).iter().filter(|text| *text == READY).count();
        assert!(ready <= 1, "{point} {nth}: {:?}", told(&world, job.id));
    }
    death
}

#[tokio::test(start_paused = true)]
async fn killed_wherever_requests_move_somebody_gets_requests() {
    let points = killed_where(moves_requests, PASSINGS, probed_with_death_at).await;
    assert!(points.len() >= 10, "{points:?}");
}

#[tokio::test(start_paused = true)]
async fn a_canary_whose_probes_fail_gets_no_requests_and_is_not_followed() {
    let (world, engine, run) = probing(399, 2, well).await;
    until_registered(&world, &run, &[0, 1]).await;
    let mut canary = probed(2, "v2", &[probe("/health", 2)]);
    canary["rollout"] = json!({"strategy": "canary", "duration": "10m"});
    world.update(&engine, &run, &canary).await.unwrap();
    until_registered(&world, &run, &[0, 1, 2]).await;
    fail(&world, &[2]);
    until_registered(&world, &run, &[0, 1]).await;
    let without = |world: &World| registered(world, &run).len() == 2;
    world
        .throughout("it gets none, nor is it followed", 30 * MINUTE, without)
        .await
        .unwrap();
    fail(&world, &[]);
    until_registered(&world, &run, &[0, 1, 2]).await;
}
