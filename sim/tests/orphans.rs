//! What clouds have of ours that belongs to nobody: reported, and ended where that is wanted; and nothing else is, whenever an
//! engine dies and whatever a cloud does.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{Account, AccountProject, Backend, Backends, ComputeError, Marks};
use dstack_engine::failpoint::{DieAt, NoFailpoints};
use dstack_engine::{Engine, EngineDeps};
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::RunStatus;
use dstack_plan::orphans::{Policy, Removes};
use dstack_sim::clouds::Delays;
use dstack_sim::{Clouds, Faults, Script, World, invariants, killed_everywhere};
use dstack_store::rows::{InstanceRow, RunRow};
use dstack_system::Random;
use dstack_units::{InstallationId, ProjectId, VolumeId};
use serde_json::{Value, json};
use uuid::Uuid;

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(30 * 60);
/// From the first sighting to the report, with the pauses between sweeps and their jitter.
const REPORTED_WITHIN: Duration = Duration::from_secs(45 * 60);

fn in_cloud() -> Value {
    json!({"fleets": ["cloud"]})
}

async fn world(seed: u64) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer(&["small", "large"]);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    world
}

/// Where orphans are ended.
async fn world_that_removes(seed: u64) -> World {
    let mut world = world(seed).await;
    world.orphans.removes = Removes::Everything;
    world
}

/// Where orphans are ended soon, and looked for all the time.
async fn hasty_world(seed: u64) -> World {
    let mut world = world(seed).await;
    world.orphans = Policy {
        grace: 20 * SECOND,
        removes: Removes::Everything,
    };
    world.orphans_interval = 5 * SECOND;
    world
}

/// Of this installation.
fn marks(key: Uuid, name: &str) -> Marks {
    Marks {
        installation: InstallationId::new(Uuid::nil()),
        key,
        name: name.to_owned(),
        project: ProjectId::new(Uuid::nil()),
    }
}

fn key(number: u128) -> Uuid {
    Uuid::from_u128(0x0195_6fd2_6b2c_7ad1_8f3e_0000_0000_0000 + number)
}

/// Texts of the events that tell of orphans.
fn told(world: &World) -> Vec<String> {
    world.store.read(|tables| {
        let orphans = tables
            .events
            .iter()
            .filter(|event| event.message.starts_with("Orphan "));
        orphans
            .inspect(|event| assert!(event.for_managers && event.targets.len() == 1, "{event:?}"))
            .map(|event| event.message.clone())
            .collect()
    })
}

fn count(world: &World, begin: &str) -> usize {
    told(world).iter().filter(|text| text.starts_with(begin)).count()
}

/// How many were found, are being ended, and have ended, as events tell.
fn counts(world: &World) -> (usize, usize, usize) {
    (
        count(world, "Orphan found"),
        count(world, "Orphan is being ended"),
        count(world, "Orphan ended"),
    )
}

fn instance(world: &World) -> InstanceRow {
    let mut rows = world.store.tables().instances.into_values();
    rows.rfind(|row| row.name == "cloud-0").unwrap()
}

/// A job that runs in the cloud for hours, and a volume there.
async fn in_use(world: &World, engine: &Engine) -> (RunRow, VolumeId) {
    let script = Script {
        lines: 5_000,
        pause: 5 * SECOND,
        ..Script::default()
    };
    world.hosts.script("train", script);
    let run = world.submit(engine, "train", &in_cloud()).await.unwrap();
    let volume = world.made_volume(engine, "data", &json!({})).await.unwrap();
    world.running(&run, 10 * MINUTE).await.unwrap();
    (run, volume)
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_reported_once_after_its_grace_and_left_alone() {
    let world = world(1).await;
    let engine = world.start().await.unwrap();
    in_use(&world, &engine).await;
    world.clouds.plant_machine(&marks(key(1), "lost"), false);
    let nothing = |world: &World| told(world).is_empty();
    world
        .throughout("nothing is said yet", GRACE, nothing)
        .await
        .unwrap();
    let reported = |world: &World| !told(world).is_empty();
    world
        .until("it is reported", REPORTED_WITHIN - GRACE, reported)
        .await
        .unwrap();
    let stays = |world: &World| {
        told(world)
            == [
                "Orphan found in aws: machine i-lost (dstack-lost-00000000-000000000001) in here for $1.00 an hour. \
                 Nothing is known of it here",
            ]
            && world.clouds.planted() == ["i-lost"]
            && world.clouds.swept().is_empty()
    };
    world
        .throughout("it is said once", 5 * 60 * MINUTE, stays)
        .await
        .unwrap();
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn orphans_are_ended_where_that_is_wanted_and_never_those_of_others() {
    let world = world_that_removes(2).await;
    let engine = world.start().await.unwrap();
    let (run, volume) = in_use(&world, &engine).await;
    let other = Marks {
        installation: InstallationId::new(Uuid::from_u128(1)),
        ..marks(key(3), "other")
    };
    world.clouds.plant_machine(&marks(key(1), "tagged"), false);
    world.clouds.plant_machine(&marks(key(2), "named"), true);
    world.clouds.plant_machine(&other, false);
    world.clouds.plant_machine(
        &Marks {
            name: "other-named".to_owned(),
            ..other
        },
        true,
    );
    let others = ["i-other", "i-other-named"];
    let over = |world: &World| world.clouds.planted() == others && world.clouds.disks() == [volume];
    world
        .until("they are ended", REPORTED_WITHIN, over)
        .await
        .unwrap();
    let stays = |world: &World| over(world) && world.status(run.id) == Some(RunStatus::Running);
    world
        .throughout("all else stays", 120 * MINUTE, stays)
        .await
        .unwrap();
    assert_eq!(counts(&world), (2, 2, 2));
    assert!(world.store.tables().orphans.is_empty());
    assert_eq!(world.clouds.machines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_takes_its_time_is_asked_until_all_is_gone() {
    let world = world_that_removes(13).await;
    let engine = world.start().await.unwrap();
    world.clouds.plant_machine(&marks(key(1), "slow"), false);
    world.clouds.plant_machine(&marks(key(2), "quick"), false);
    world.clouds.ends_slowly("i-slow", 6);
    let asked = |world: &World| !world.clouds.swept().is_empty();
    world.until("it is asked", REPORTED_WITHIN, asked).await.unwrap();
    // Without another look at all that there is.
    let ended = |world: &World| count(world, "Orphan ended") == 2;
    world.until("both are ended", 2 * MINUTE, ended).await.unwrap();
    let calls = |id: &str| world.clouds.swept().iter().filter(|asked| *asked == id).count();
    assert_eq!((calls("i-slow"), calls("i-quick")), (7, 1));
    assert!(world.store.tables().orphans.is_empty());
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_row_is_over_is_reported_as_that() {
    let world = world(3).await;
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let row = instance(&world);
    // Known by its row, as long as that lives.
    world.clouds.plant_machine(&marks(row.id.uuid(), "second"), false);
    let over = |world: &World| instance(world).status() == InstanceStatus::Terminated;
    world.until("its row is over", 10 * MINUTE, over).await.unwrap();
    let reported = |world: &World| !told(world).is_empty();
    world
        .until("it is reported", REPORTED_WITHIN, reported)
        .await
        .unwrap();
    let text = told(&world).pop().unwrap();
    assert!(
        text.ends_with("an hour. It was made for instance cloud-0, which is over"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_known_again_in_time_is_forgotten() {
    let world = world_that_removes(4).await;
    let engine = world.start().await.unwrap();
    let fleet = world
        .builder
        .fleet("late", &json!({"nodes": "0..1"}), world.clock.now())
        .unwrap();
    world.clouds.plant_machine(&marks(fleet.id.uuid(), "late"), false);
    world.pass(25 * MINUTE).await;
    assert_eq!(world.store.tables().orphans.len(), 1);
    let mut changes = world.builder.changes(world.clock.now());
    changes.insert_silently(fleet);
    engine.commit(changes.into_commit()).await.unwrap();
    let stays = |world: &World| world.clouds.planted() == ["i-late"] && told(world).is_empty();
    world.throughout("it stays", 120 * MINUTE, stays).await.unwrap();
    assert!(world.store.tables().orphans.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_becomes_known_while_another_is_ended_stays() {
    let world = hasty_world(12).await;
    let engine = world.start().await.unwrap();
    let fleet = world
        .builder
        .fleet("late", &json!({"nodes": "0..1"}), world.clock.now())
        .unwrap();
    // As many as are looked up together.
    for number in 1..=8 {
        world
            .clouds
            .plant_machine(&marks(key(number), &format!("a-{number}")), false);
    }
    world.clouds.plant_machine(&marks(fleet.id.uuid(), "b"), false);
    // Asked for, and the answers take longer than a commit.
    let asked = |world: &World| !world.clouds.swept().is_empty();
    world
        .until("the first are being ended", MINUTE, asked)
        .await
        .unwrap();
    let mut changes = world.builder.changes(world.clock.now());
    changes.insert_silently(fleet);
    engine.commit(changes.into_commit()).await.unwrap();
    assert_eq!(world.clouds.planted().len(), 9);
    let ended = |world: &World| world.clouds.planted() == ["i-b"];
    world
        .until("the first ones are ended", MINUTE, ended)
        .await
        .unwrap();
    world
        .throughout("the other stays", 10 * MINUTE, ended)
        .await
        .unwrap();
    assert_eq!(world.clouds.swept().len(), 8);
}

/// Of a database that was lost, a disk may be all that is left; and whoever registers it keeps it, also when it is not registered any
/// more.
#[tokio::test(start_paused = true)]
async fn disks_are_never_ended_and_those_that_a_volume_names_are_not_reported_either() {
    let world = world_that_removes(5).await;
    let engine = world.start().await.unwrap();
    let (saved, other) = (VolumeId::from(key(1)), VolumeId::from(key(2)));
    world.clouds.plant_disk(saved);
    world.clouds.plant_disk(other);
    let named = json!({"volume_id": saved.to_string(), "size": null});
    world.submit_volume(&engine, "saved", &named).await.unwrap();
    let reported = |world: &World| told(world).iter().any(|text| text.contains(&other.to_string()));
    world
        .until("the other is reported", REPORTED_WITHIN, reported)
        .await
        .unwrap();
    let stay = |world: &World| world.clouds.disks() == [saved, other] && world.clouds.swept().is_empty();
    world.throughout("both stay", 60 * MINUTE, stay).await.unwrap();
    assert_eq!(counts(&world), (1, 0, 0));
    world.delete_volume(&engine, "saved").await.unwrap();
    world
        .throughout("both stay, registered or not", 120 * MINUTE, stay)
        .await
        .unwrap();
}

/// What of a live row is one too many costs money as well.
#[tokio::test(start_paused = true)]
async fn a_second_machine_of_a_live_row_is_ended_and_its_own_is_not() {
    let mut world = world(14).await;
    world.orphans.removes = Removes::Ended;
    let engine = world.start().await.unwrap();
    let (run, _) = in_use(&world, &engine).await;
    let id = instance(&world).id.uuid();
    world.clouds.plant_machine(&marks(id, "second"), false);
    world.clouds.plant_machine(&marks(id, "third"), true);
    let nothing = |world: &World| told(world).is_empty() && world.clouds.planted().len() == 2;
    world
        .throughout("nothing is said yet", GRACE, nothing)
        .await
        .unwrap();
    let ended = |world: &World| world.clouds.planted().is_empty();
    world
        .until("they are ended", REPORTED_WITHIN - GRACE, ended)
        .await
        .unwrap();
    let stays = |world: &World| {
        world.status(run.id) == Some(RunStatus::Running) && world.clouds.machines().len() == 1
    };
    world
        .throughout("what the row has stays", 120 * MINUTE, stays)
        .await
        .unwrap();
    assert_eq!(counts(&world), (2, 2, 2));
    assert!(
        told(&world)[0].ends_with("It was made for instance cloud-0, which has another one"),
        "{:?}",
        told(&world)
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_machine_is_only_reported_while_the_row_s_own_is_not_listed() {
    let world = world_that_removes(15).await;
    let engine = world.start().await.unwrap();
    world.clouds.delays(Delays {
        unlisted: 24 * 60 * MINUTE,
        ..Delays::default()
    });
    in_use(&world, &engine).await;
    world
        .clouds
        .plant_machine(&marks(instance(&world).id.uuid(), "second"), false);
    let reported = |world: &World| !told(world).is_empty();
    world
        .until("it is reported", REPORTED_WITHIN, reported)
        .await
        .unwrap();
    let stays = |world: &World| world.clouds.swept().is_empty() && counts(world) == (1, 0, 0);
    world
        .throughout("it stays", 5 * 60 * MINUTE, stays)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_grace_goes_on_when_servers_are_started_anew() {
    let world = world_that_removes(6).await;
    world.clouds.plant_machine(&marks(key(1), "lost"), false);
    let mut ended_after = None;
    for start in 0..12_u32 {
        let engine = world.start().await.unwrap();
        world.pass(4 * MINUTE).await;
        engine.stop();
        world.leases_run_out().await;
        if world.clouds.planted().is_empty() {
            ended_after = Some(start);
            break;
        }
    }
    // Never before its grace is over, and soon after.
    let starts = ended_after.unwrap_or_else(|| panic!("it is never ended"));
    assert!((7..10).contains(&starts), "{starts}");
    assert_eq!(counts(&world), (1, 1, 1));
}

/// Ends two orphans while a job and a volume are in use, killing the engine at `point`; the failpoints that were passed.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let when = format!("killed at {point} #{nth}");
    let world = hasty_world(7).await;
    let engine = world.start().await.unwrap();
    let (run, volume) = in_use(&world, &engine).await;
    engine.stop();
    world.leases_run_out().await;
    world.clouds.plant_machine(&marks(key(1), "first"), false);
    world.clouds.plant_machine(&marks(key(2), "second"), true);
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let engine = world.after_death(engine, MINUTE).await.unwrap();
    let over = |world: &World| world.clouds.planted().is_empty();
    world
        .until(&format!("they are ended, {when}"), MINUTE, over)
        .await
        .unwrap();
    let stays = |world: &World| {
        world.status(run.id) == Some(RunStatus::Running)
            && world.clouds.machines().len() == 1
            && world.clouds.disks() == [volume]
    };
    let what = format!("what is in use stays, {when}");
    world.throughout(&what, 5 * MINUTE, stays).await.unwrap();
    assert_eq!(counts(&world), (2, 2, 2), "{when}");
    assert!(world.store.tables().orphans.is_empty(), "{when}");
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{when}");
    drop(engine);
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_orphans_are_reported_once_and_ended_and_nothing_else_is() {
    let points = killed_everywhere(1..=4, killed_at).await;
    for wanted in [
        "orphans.judge.before",
        "orphans.judge.after",
        "orphans.begin.before",
        "orphans.begin.after",
        "orphans.end.before",
        "orphans.end.after",
        "orphans.ended.before",
        "orphans.ended.after",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}

/// A run and a volume from their beginning to their end, in a cloud that is searched for orphans all the time, by an engine
/// that is killed at `point`.
async fn life_killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    life_in(hasty_world(8).await, point, nth).await
}

/// As [`life_killed_at`], where jobs run in containers of the cloud.
async fn life_in_containers_killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = hasty_world(9).await;
    world.clouds.offer_containers(&["small", "large"]);
    life_in(world, point, nth).await
}

async fn life_in(world: World, point: &'static str, nth: u32) -> Arc<DieAt> {
    let when = format!("killed at {point} #{nth}");
    world.clouds.full(&["small"]);
    world.clouds.delays(Delays {
        unlisted: 40 * SECOND,
        ..Delays::default()
    });
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let short = json!({"fleets": ["cloud"], "idle_duration": "20s"});
    let run = world.submit(&engine, "train", &short).await.unwrap();
    world.submit_volume(&engine, "data", &json!({})).await.unwrap();
    let engine = world.after_death(engine, 2 * MINUTE).await.unwrap();
    let status = world.finished(&run, 10 * MINUTE).await;
    let status = status.unwrap_or_else(|stuck| panic!("{when}: {stuck}"));
    assert_eq!(status, RunStatus::Done, "{when}");
    world.delete_volume(&engine, "data").await.unwrap();
    let nothing = |world: &World| invariants::nothing_left(world).is_empty();
    world
        .until(&format!("nothing is left, {when}"), 10 * MINUTE, nothing)
        .await
        .unwrap();
    assert_eq!(world.clouds.swept(), Vec::<String>::new(), "{when}");
    assert_eq!(told(&world), Vec::<String>::new(), "{when}");
    die
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_nothing_that_is_made_used_or_ended_is_taken_for_an_orphan() {
    for points in [
        killed_everywhere(1..=3, life_killed_at).await,
        killed_everywhere(1..=2, life_in_containers_killed_at).await,
    ] {
        for wanted in ["cloud.create.after", "cloud.remove.after"] {
            assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_cloud_that_is_late_and_loses_calls_nothing_of_a_live_row_is_ended() {
    for seed in 0..30 {
        let world = hasty_world(100 + seed).await;
        world.clouds.faults(Faults {
            lost_call: 0.2,
            lost_answer: 0.2,
            ..Faults::default()
        });
        world.clouds.delays(Delays {
            late: 0.2,
            late_by: 60 * SECOND,
            unlisted: 30 * SECOND,
            ..Delays::default()
        });
        world.clouds.plant_machine(&marks(key(1), "lost"), seed % 2 == 0);
        let engine = world.start().await.unwrap();
        let mut runs = Vec::new();
        for name in ["first", "second"] {
            let short = json!({"fleets": ["cloud"], "idle_duration": "20s"});
            runs.push(world.submit(&engine, name, &short).await.unwrap());
        }
        for run in &runs {
            let status = world.finished(run, 60 * MINUTE).await;
            let status = status.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
            assert!(status.is_finished(), "seed {seed}");
        }
        let nothing =
            |world: &World| invariants::nothing_left(world).is_empty() && world.clouds.planted().is_empty();
        let what = format!("nothing is left, seed {seed}");
        world.until(&what, 60 * MINUTE, nothing).await.unwrap();
        let mut swept = world.clouds.swept();
        swept.dedup();
        assert_eq!(swept, ["i-lost"], "seed {seed}");
    }
}

/// What a machine of a cloud does when its end was confirmed and did not happen: nothing but a sweep finds it.
#[tokio::test(start_paused = true)]
async fn a_machine_that_comes_back_after_its_row_is_over_is_ended() {
    let world = hasty_world(9).await;
    let engine = world.start().await.unwrap();
    let short = json!({"fleets": ["cloud"], "idle_duration": "20s"});
    let run = world.submit(&engine, "train", &short).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let over = |world: &World| instance(world).status() == InstanceStatus::Terminated;
    world.until("its row is over", 5 * MINUTE, over).await.unwrap();
    world
        .clouds
        .plant_machine(&marks(instance(&world).id.uuid(), "back"), true);
    let ended = |world: &World| world.clouds.planted().is_empty();
    world.until("it is ended", MINUTE, ended).await.unwrap();
}

/// A server of a copy of the database knows nothing of what the original has made since.
#[tokio::test(start_paused = true)]
async fn what_has_no_row_is_left_to_others_unless_everything_is_ended() {
    let mut world = hasty_world(11).await;
    world.orphans.removes = Removes::Ended;
    let engine = world.start().await.unwrap();
    world.clouds.plant_machine(&marks(key(1), "originals"), false);
    let short = json!({"fleets": ["cloud"], "idle_duration": "20s"});
    let run = world.submit(&engine, "train", &short).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let over = |world: &World| instance(world).status() == InstanceStatus::Terminated;
    world.until("its row is over", 5 * MINUTE, over).await.unwrap();
    world
        .clouds
        .plant_machine(&marks(instance(&world).id.uuid(), "back"), true);
    let ended = |world: &World| world.clouds.planted() == ["i-originals"];
    world
        .until("what is over here is ended", MINUTE, ended)
        .await
        .unwrap();
    world
        .throughout("the other stays", 60 * MINUTE, ended)
        .await
        .unwrap();
    assert_eq!(counts(&world), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn one_of_several_servers_sweeps_and_another_goes_on_when_it_dies() {
    let world = hasty_world(10).await;
    let servers = [
        world.start_server("a", Duration::ZERO).await.unwrap(),
        world.start_server("b", Duration::ZERO).await.unwrap(),
    ];
    world.pass(2 * MINUTE).await;
    let asked = world.clouds.inventories();
    // One every 4.5 to 6.3 seconds, and not twice as many.
    assert!((17..27).contains(&asked), "{asked}");
    world.clouds.plant_machine(&marks(key(1), "first"), false);
    let ended = |world: &World| world.clouds.planted().is_empty();
    world.until("the first is ended", MINUTE, ended).await.unwrap();
    for (server, name) in servers.iter().zip(["second", "third"]) {
        server.engine.stop();
        world
            .clouds
            .plant_machine(&marks(key(name.len() as u128), name), false);
        if name == "second" {
            world.until("the second is ended", MINUTE, ended).await.unwrap();
        }
    }
    world.pass(5 * MINUTE).await;
    assert_eq!(world.clouds.planted(), ["i-third"], "nobody is left to sweep");
    assert_eq!(world.clouds.swept(), ["i-first", "i-second"]);
    for server in &servers {
        assert_eq!(server.trespasses(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_are_looked_up_together_before_they_are_ended() {
    let world = hasty_world(20).await;
    let server = world.start_server("a", Duration::ZERO).await.unwrap();
    for number in 1..=16 {
        world
            .clouds
            .plant_machine(&marks(key(number), &format!("lost-{number}")), false);
    }
    let ended = |world: &World| world.clouds.planted().is_empty();
    world.until("they are ended", 2 * MINUTE, ended).await.unwrap();
    // Once for each look at everything, and once for each eight.
    let most = world.clouds.inventories() + 1 + 2;
    assert!(
        server.duties_asked() <= most,
        "{} > {most}",
        server.duties_asked()
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_lease_runs_out_in_a_sweep_ends_nothing_any_more() {
    for tenths in 0..40 {
        let world = hasty_world(200 + tenths).await;
        let server = world.start_server("a", Duration::ZERO).await.unwrap();
        for number in 1_u128..=5 {
            world
                .clouds
                .plant_machine(&marks(key(number), &format!("lost-{number}")), false);
        }
        let begun = |world: &World| !world.clouds.swept().is_empty();
        world
            .until("the first is being ended", 2 * MINUTE, begun)
            .await
            .unwrap();
        server.hang_lease(true);
        world.pass(Duration::from_millis(100 * tenths)).await;
        let other = world.start_server("b", Duration::ZERO).await.unwrap();
        let ended = |world: &World| world.clouds.planted().is_empty();
        world.until("all are ended", 2 * MINUTE, ended).await.unwrap();
        for server in [&server, &other] {
            assert_eq!(server.trespasses(), Vec::<String>::new(), "after {tenths}");
        }
        assert_eq!(count(&world, "Orphan found"), 5, "after {tenths}");
    }
}

/// Accounts of an installation; projects have the first.
#[derive(Debug)]
struct Several(Vec<Clouds>);

/// An engine with these accounts.
async fn engine_with(world: &World, backends: Arc<dyn Backends>) -> Engine {
    let deps = world.deps(Arc::new(NoFailpoints));
    Engine::start(EngineDeps { backends, ..deps }).await.unwrap()
}

#[async_trait]
impl Backends for Several {
    async fn of_project(&self, project: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError> {
        self.0.first().unwrap().of_project(project).await
    }

    async fn accounts(&self) -> Result<Vec<Account>, ComputeError> {
        let mut all = Vec::new();
        for (number, cloud) in self.0.iter().enumerate() {
            for account in cloud.accounts().await? {
                all.push(Account {
                    id: number.to_string(),
                    ..account
                });
            }
        }
        all.push(Account {
            id: "unusable".to_owned(),
            kind: "gcp".to_owned(),
            backend: Err(ComputeError::Unsupported("this type of backend")),
            projects: Vec::new(),
        });
        Ok(all)
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_never_says_what_it_has_holds_up_nobody() {
    let world = hasty_world(11).await;
    let cloud = |seed| Clouds::new(world.hosts.clone(), Random::seeded(seed));
    let (silent, broken) = (cloud(1), cloud(2));
    silent.hide_inventory(true);
    broken.faults(Faults {
        lost_call: 1.0,
        ..Faults::default()
    });
    let accounts = Several(vec![world.clouds.clone(), silent.clone(), broken]);
    let engine = engine_with(&world, Arc::new(accounts)).await;
    world.clouds.plant_machine(&marks(key(1), "lost"), false);
    silent.plant_machine(&marks(key(2), "silent"), false);
    let run = world.submit(&engine, "train", &in_cloud()).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    // Sweeps are as long apart as the silent one may take; each has looked at the others.
    let ended = |world: &World| world.clouds.planted().is_empty();
    world
        .until("the lost one is ended", 30 * MINUTE, ended)
        .await
        .unwrap();
    assert_eq!(silent.planted(), ["i-silent"]);
    // What it says in the end counts.
    silent.hide_inventory(false);
    let ended = |_: &World| silent.planted().is_empty();
    world
        .until("the silent one is ended", 30 * MINUTE, ended)
        .await
        .unwrap();
}

/// What is in a region that does not tell is not gone, and the others are looked at.
#[tokio::test(start_paused = true)]
async fn a_region_that_is_away_hides_no_other_and_nothing_in_it_is_taken_for_gone() {
    let world = hasty_world(19).await;
    let engine = world.start().await.unwrap();
    world.clouds.plant_machine_in("there", &marks(key(1), "far"));
    world.clouds.never_ends("i-far");
    let asked = |world: &World| counts(world) == (1, 1, 0);
    world
        .until("it is asked to end", 10 * MINUTE, asked)
        .await
        .unwrap();
    world.clouds.take_region_away("there", true);
    world.clouds.plant_machine(&marks(key(2), "near"), false);
    let ended = |world: &World| world.clouds.planted() == ["i-far"];
    world
        .until("the one of the other region is ended", 30 * MINUTE, ended)
        .await
        .unwrap();
    world.pass(30 * MINUTE).await;
    assert_eq!(counts(&world), (2, 2, 1), "{:?}", told(&world));
    let remembered: Vec<_> = world.store.tables().orphans.into_values().collect();
    assert!(
        matches!(remembered.as_slice(), [row] if row.description.contains("i-far") && row.sighting.is_ending),
        "{remembered:?}"
    );
    drop(engine);
}

/// Looks at all accounts take longer than a thing may go unseen: it is found all the same.
#[tokio::test(start_paused = true)]
async fn many_clouds_that_never_say_what_they_have_delay_a_report_and_do_not_prevent_it() {
    let world = world(16).await;
    let mut accounts = vec![world.clouds.clone()];
    for seed in 0..110 {
        let silent = Clouds::new(world.hosts.clone(), Random::seeded(seed));
        silent.hide_inventory(true);
        accounts.push(silent);
    }
    let engine = engine_with(&world, Arc::new(Several(accounts))).await;
    world.clouds.plant_machine(&marks(key(1), "lost"), false);
    let reported = |world: &World| !told(world).is_empty();
    world
        .until("it is reported", 6 * 60 * MINUTE, reported)
        .await
        .unwrap();
    // A look at everything takes more than an hour.
    assert!(world.clouds.inventories() <= 5, "{}", world.clouds.inventories());
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn orphans_whose_end_hangs_do_not_keep_others_from_being_ended() {
    let world = hasty_world(17).await;
    let engine = world.start().await.unwrap();
    // More than are asked for in one sweep.
    for number in 1..=40 {
        let name = format!("hangs-{number:02}");
        world.clouds.plant_machine(&marks(key(number), &name), false);
        world.clouds.never_ends(&format!("i-{name}"));
    }
    world.clouds.plant_machine(&marks(key(41), "z-last"), false);
    let ended = |world: &World| count(world, "Orphan ended") == 1;
    world
        .until("the last is ended", 20 * MINUTE, ended)
        .await
        .unwrap();
    assert!(!world.clouds.planted().contains(&"i-z-last".to_owned()));
    drop(engine);
}

/// The cloud of a world, which two projects have.
#[derive(Debug)]
struct Shared(Clouds);

#[async_trait]
impl Backends for Shared {
    async fn of_project(&self, project: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError> {
        self.0.of_project(project).await
    }

    async fn accounts(&self) -> Result<Vec<Account>, ComputeError> {
        let mut accounts = self.0.accounts().await?;
        for account in &mut accounts {
            let other = AccountProject {
                id: ProjectId::new(Uuid::from_u128(9)),
                name: "other".to_owned(),
            };
            account.projects.push(other);
        }
        Ok(accounts)
    }
}

/// Whoever manages one project is not told what another has in the account that both have.
#[tokio::test(start_paused = true)]
async fn events_of_orphans_go_to_the_project_of_their_row_or_to_admins_only() {
    let world = hasty_world(18).await;
    let engine = engine_with(&world, Arc::new(Shared(world.clouds.clone()))).await;
    let short = json!({"fleets": ["cloud"], "idle_duration": "20s"});
    let run = world.submit(&engine, "train", &short).await.unwrap();
    assert_eq!(world.finished(&run, MINUTE).await.unwrap(), RunStatus::Done);
    let over = |world: &World| instance(world).status() == InstanceStatus::Terminated;
    world.until("its row is over", 5 * MINUTE, over).await.unwrap();
    let row = instance(&world);
    world.clouds.plant_machine(&marks(row.id.uuid(), "back"), false);
    world.clouds.plant_machine(&marks(key(1), "unknown"), false);
    let ended = |world: &World| world.clouds.planted().is_empty();
    world.until("they are ended", MINUTE, ended).await.unwrap();
    world.pass(MINUTE).await;
    let events = world.store.tables().events;
    let mut seen = [0, 0];
    for event in events.iter().filter(|event| event.message.starts_with("Orphan ")) {
        assert!(event.for_managers, "{event:?}");
        let is_known = event.message.contains("back");
        let targets: Vec<_> = event
            .targets
            .iter()
            .map(|target| target.project_id.clone())
            .collect();
        let expected = is_known.then(|| Some(row.project_id.to_string()));
        assert_eq!(targets, expected.into_iter().collect::<Vec<_>>(), "{event:?}");
        seen[usize::from(is_known)] += 1;
    }
    assert_eq!(seen, [3, 3]);
}

/// Nobody is there to hear that it is gone: the next look tells of it.
#[tokio::test(start_paused = true)]
async fn what_is_gone_when_a_server_starts_again_is_told_as_ended() {
    let world = hasty_world(19).await;
    world.clouds.plant_machine(&marks(key(1), "lost"), false);
    let die = Arc::new(DieAt::new("orphans.end.after", 1));
    let engine = world.start_dying(&die).await.unwrap();
    engine.stopped().await;
    assert!(world.clouds.planted().is_empty());
    assert_eq!(counts(&world), (1, 1, 0));
    let engine = world.restart().await.unwrap();
    let ended = |world: &World| counts(world) == (1, 1, 1);
    world.until("it is told", MINUTE, ended).await.unwrap();
    assert!(world.store.tables().orphans.is_empty());
    drop(engine);
}
