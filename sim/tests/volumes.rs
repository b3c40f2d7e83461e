//! Network volumes in a cloud, by an engine that dies anywhere, in a cloud that loses calls and answers late.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::Engine;
use dstack_engine::failpoint::DieAt;
use dstack_model::volumes::VolumeStatus;
use dstack_sim::clouds::Delays;
use dstack_sim::{Faults, World, invariants, killed_everywhere};
use dstack_store::EntityRef;
use dstack_store::rows::VolumeRow;
use dstack_units::VolumeId;
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn row(world: &World, id: VolumeId) -> VolumeRow {
    world
        .store
        .read(|tables| tables.volumes.get(&id).unwrap().clone())
}

async fn has_status(world: &World, id: VolumeId, status: VolumeStatus) {
    let what = format!("the volume is {status:?}");
    let has = |world: &World| row(world, id).status() == status;
    world.until(&what, HOUR, has).await.unwrap();
}

async fn is_deleted(world: &World, id: VolumeId, when: &str) {
    let what = format!("the volume and its disk are gone {when}");
    let gone = |world: &World| row(world, id).deleted;
    world.until(&what, HOUR, gone).await.unwrap();
    // Nothing that was sent before comes into being afterwards.
    let nothing = |world: &World| invariants::nothing_left(world).is_empty();
    world.until(&what, 10 * MINUTE, nothing).await.unwrap();
    world.throughout(&what, 10 * MINUTE, nothing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_made_and_deleted_and_its_events_tell_of_it() {
    let world = World::new(1, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = world.made_volume(&engine, "data", &json!({})).await.unwrap();
    let made = row(&world, id).provisioning_data.unwrap();
    assert_eq!((made.volume_id.as_str(), made.price), ("vol-1", Some(8.0)));
    assert_eq!(world.clouds.disks(), [id]);
    // It is asked for only while its backend is there.
    let backend = (row(&world, id).project_id, "aws".to_owned());
    assert!(world.store.tables().expected_backends.contains(&backend));
    world.delete_volume(&engine, "data").await.unwrap();
    is_deleted(&world, id, "after it was deleted").await;
    assert_eq!(
        world.messages_about(EntityRef::Volume(id)),
        [
            "Volume created. Status: SUBMITTED",
            "Volume status changed SUBMITTED -> ACTIVE",
            "Volume marked for deletion",
            "Volume deleted",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_volume_fails_with_the_reason_and_external_ones_are_left_in_the_cloud() {
    let world = World::new(2, 1).await.unwrap();
    world.clouds.full(&["disk"]);
    let engine = world.start().await.unwrap();
    let refused = world.submit_volume(&engine, "data", &json!({})).await.unwrap();
    has_status(&world, refused, VolumeStatus::Failed).await;
    assert_eq!(
        row(&world, refused).status_message(),
        Some("no capacity: no disk left")
    );
    let external = json!({"volume_id": "vol-1", "size": null});
    let external = world.made_volume(&engine, "old", &external).await.unwrap();
    let known = row(&world, external).provisioning_data.unwrap();
    assert_eq!(known.price, None, "it is paid for elsewhere");
    for name in ["data", "old"] {
        world.delete_volume(&engine, name).await.unwrap();
    }
    is_deleted(&world, refused, "although it was never made").await;
    is_deleted(&world, external, "here only").await;
    assert_eq!(world.clouds.most_disks_made(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_nobody_uses_is_deleted_after_its_time() {
    let world = World::new(3, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let unused = json!({"auto_cleanup_duration": "1h"});
    let id = world.made_volume(&engine, "data", &unused).await.unwrap();
    let kept = |world: &World| !row(world, id).to_be_deleted;
    world.throughout("it is kept", 50 * MINUTE, kept).await.unwrap();
    is_deleted(&world, id, "after an hour").await;
    let expected = "Volume marked for deletion due to exceeding auto_cleanup_duration";
    assert!(
        world
            .messages_about(EntityRef::Volume(id))
            .iter()
            .any(|text| text == expected)
    );
}

/// Nobody knows then whether the disk is there: neither may it be forgotten, nor made again.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_deleted_while_it_is_made_leaves_no_disk() {
    for seed in 0..70 {
        let world = World::new(seed, 1).await.unwrap();
        world.clouds.delays(Delays {
            late: 0.5,
            late_by: Duration::from_secs(100),
            unlisted: Duration::from_secs(30),
            ..Delays::default()
        });
        let engine = world.start().await.unwrap();
        let id = world.submit_volume(&engine, "data", &json!({})).await.unwrap();
        world.pass(Duration::from_millis(seed * 20)).await;
        world.delete_volume(&engine, "data").await.unwrap();
        is_deleted(&world, id, &format!("(seed {seed})")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_cloud_that_loses_calls_and_answers_nothing_is_made_twice_or_left() {
    for seed in 0..100 {
        let world = World::new(seed, 1).await.unwrap();
        world.clouds.faults(Faults {
            lost_call: 0.3,
            lost_answer: 0.3,
            ..Faults::default()
        });
        let engine = world.start().await.unwrap();
        let id = world.submit_volume(&engine, "data", &json!({})).await.unwrap();
        let settled = |world: &World| row(world, id).status() != VolumeStatus::Submitted;
        world
            .until("it is known what came of it", 2 * HOUR, settled)
            .await
            .unwrap();
        world.delete_volume(&engine, "data").await.unwrap();
        is_deleted(&world, id, &format!("(seed {seed})")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn clouds_that_are_not_known_now_or_not_configured_are_waited_for() {
    let world = World::new(4, 1).await.unwrap();
    world.clouds.unreadable(true);
    let engine = world.start().await.unwrap();
    let id = world.submit_volume(&engine, "data", &json!({})).await.unwrap();
    let waits = |world: &World| row(world, id).status() == VolumeStatus::Submitted;
    world
        .throughout("it is not given up", 10 * MINUTE, waits)
        .await
        .unwrap();
    world.clouds.unreadable(false);
    has_status(&world, id, VolumeStatus::Active).await;
    world.clouds.gone(true);
    world.delete_volume(&engine, "data").await.unwrap();
    let stays = |world: &World| !row(world, id).deleted && world.clouds.disks() == [id];
    world
        .throughout("it is not forgotten", 30 * MINUTE, stays)
        .await
        .unwrap();
    let reason = row(&world, id).waiting_for().unwrap().to_string();
    assert!(reason.contains("configure it again"), "{reason}");
    world.clouds.gone(false);
    is_deleted(&world, id, "once its backend is configured again").await;
}

/// How long the pauses of a removal that keeps failing grow, and that they survive the server.
#[tokio::test(start_paused = true)]
async fn a_removal_that_fails_for_hours_is_repeated_once_a_minute_across_restarts() {
    let world = World::new(5, 1).await.unwrap();
    let engine = world.start().await.unwrap();
    let id = world.made_volume(&engine, "data", &json!({})).await.unwrap();
    world.clouds.faults(Faults {
        lost_call: 1.0,
        ..Faults::default()
    });
    world.delete_volume(&engine, "data").await.unwrap();
    let attempts = |world: &World| {
        let sum = |tables: &dstack_store::memory::Tables| {
            tables
                .operations
                .values()
                .filter_map(|row| row.next_attempt_at)
                .max()
        };
        world.store.read(sum)
    };
    let kept = |world: &World| attempts(world).is_some_and(|at| at > world.clock.now() + 40 * SECOND);
    world
        .until("the pause is written down", HOUR, kept)
        .await
        .unwrap();
    engine.stop();
    world.leases_run_out().await;
    let before = attempts(&world).unwrap();
    let _engine = world.start().await.unwrap();
    let same = |world: &World| attempts(world) == Some(before) || world.clock.now() >= before;
    world
        .throughout("the pause is kept", 30 * SECOND, same)
        .await
        .unwrap();
    world.clouds.faults(Faults::default());
    is_deleted(&world, id, "once the cloud answers again").await;
}

/// The server is replaced by one of an earlier version when the disk has just been made: it can delete it all the same.
#[tokio::test(start_paused = true)]
async fn a_volume_whose_notes_cannot_be_read_is_deleted_and_its_disk_with_it() {
    let world = World::new(8, 1).await.unwrap();
    let die = Arc::new(DieAt::new("volume.commit.before", 2));
    let engine = world.start_dying(&die).await.unwrap();
    let id = world.submit_volume(&engine, "data", &json!({})).await.unwrap();
    engine.stopped().await;
    assert!(die.fired() && world.clouds.disks() == [id]);
    world.leases_run_out().await;
    let added = world.add_to_notes_of_creation(EntityRef::Volume(id), "of_a_later_version");
    added.await.unwrap();
    let engine = world.start().await.unwrap();
    let waits = |world: &World| {
        let row = row(world, id);
        row.waiting_for()
            .is_some_and(|reason| reason.to_string().contains("start the version"))
    };
    world
        .until("it waits for that version", MINUTE, waits)
        .await
        .unwrap();
    world.delete_volume(&engine, "data").await.unwrap();
    is_deleted(&world, id, "although this version cannot read it").await;
}

const SECOND: Duration = Duration::from_secs(1);

/// A volume is made and deleted by an engine that is killed at a failpoint, and another that goes on.
async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = World::new(6, 1).await.unwrap();
    let die = Arc::new(DieAt::new(point, nth));
    let mut engine = world.start_dying(&die).await.unwrap();
    let configuration = json!({});
    let ask = async |engine: &Engine| world.submit_volume(engine, "data", &configuration).await.unwrap();
    let there = |world: &World| world.store.read(|tables| tables.volumes.keys().next().copied());
    let id = world.ask_until_there(&mut engine, ask, there).await.unwrap();
    for wanted in ["made", "deleted"] {
        let work = async |engine: &Engine| work(&world, engine, wanted).await;
        world.outliving(&mut engine, work).await.unwrap();
    }
    world.delete_volume(&engine, "data").await.unwrap();
    is_deleted(&world, id, &format!("killed at {point} #{nth}")).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    die
}

async fn work(world: &World, engine: &Engine, wanted: &str) {
    if wanted == "deleted" {
        world.delete_volume(engine, "data").await.unwrap();
    }
    world.pass(MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_failpoint_no_disk_is_made_twice_or_left() {
    let points = killed_everywhere(1..=6, killed_at).await;
    for wanted in [
        "volume.commit.before",
        "volume.commit.after",
        "cloud.create.before",
        "cloud.create.after",
        "cloud.remove.before",
        "cloud.remove.after",
        "operation.record.before",
    ] {
        assert!(points.contains(wanted), "{wanted} is not passed: {points:?}");
    }
}
