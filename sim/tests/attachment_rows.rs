//! Rows of attachments, in every store.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)] // tests

use dstack_model::runs::{JobRuntimeData, JobStatus, JobTerminationReason};
use dstack_model::volumes::{VolumeAttachmentData, VolumeProvisioningData};
use dstack_plan::lifecycle::attachment::AttachmentStatus;
use dstack_sim::databases::{databases, people};
use dstack_sim::scenario::Builder;
use dstack_store::rows::{AttachmentRow, InstanceRow, NewVolume, OperationKind, OperationRow, VolumeRow};
use dstack_store::{
    AttachmentsOf, Commit, EngineStore, Entity as _, EntityRef, MemoryStore, Put, SqlStore, VolumeJob,
};
use dstack_system::Random;
use dstack_units::{Time, UserId};
use serde_json::json;
use uuid::Uuid;

const NOW: Time = Time::from_millis(1_790_000_000_000);

fn builder() -> Builder {
    Builder {
        project: Uuid::from_u128(1).into(),
        random: Random::seeded(31),
    }
}

#[tokio::test]
async fn attachments_are_read_as_they_were_written_and_leave_no_row() {
    let folder = tempfile::tempdir().unwrap();
    story(&MemoryStore::new(), &builder(), Uuid::from_u128(2).into()).await;
    for database in databases(folder.path()).await {
        let (builder, user) = (builder(), UserId::from(Uuid::from_u128(2)));
        let run_user = {
            // Of the run that the story makes.
            let (run, _) = builder.clone().run("train", &json!({}), NOW).unwrap();
            run.user_id
        };
        people(&database, &builder, &[user.to_string(), run_user.to_string()]).await;
        story(&SqlStore::new(database), &builder, user).await;
    }
}

async fn story(store: &dyn EngineStore, builder: &Builder, user: UserId) {
    let configuration = builder.volume("data", &json!({})).unwrap();
    let made: VolumeProvisioningData =
        serde_json::from_value(json!({"backend": "aws", "volume_id": "vol-1", "size_gb": 100, "price": 8.0}))
            .unwrap();
    let new = NewVolume {
        id: builder.random.uuid().into(),
        project: builder.project,
        user,
        name: "data".to_owned(),
        configuration,
        auto_cleanup_enabled: false,
    };
    let mut volume = VolumeRow::submitted(new, NOW);
    volume.activate(made.clone(), NOW).unwrap();
    let fleet = builder.fleet("f", &json!({"nodes": "0..3"}), NOW).unwrap();
    let pending = |num: i64| InstanceRow::pending(builder.random.uuid().into(), &fleet, num, NOW);
    let (one, other) = (pending(0), pending(1));
    let (run, task) = builder
        .run("train", &json!({"volumes": ["data:/data"]}), NOW)
        .unwrap();
    let mut run = run;
    run.user_id = user;
    let mut jobs = task.puts().iter().filter_map(|put| match put {
        Put::Job(job) => Some(job.clone()),
        _ => None,
    });
    let mut job = jobs.next().unwrap();
    let runtime: JobRuntimeData = serde_json::from_value(json!({"network_mode": "host"})).unwrap();
    job.assign(&one, fleet.id, runtime, NOW).unwrap();
    let wanted = |instance: &InstanceRow| {
        AttachmentRow::wanted(
            builder.random.uuid().into(),
            (&volume, &made),
            (instance, job.id),
            false,
            NOW,
        )
    };
    let (mut first, second) = (wanted(&one), wanted(&other));
    let data = VolumeAttachmentData {
        device_name: Some("/dev/sdf".to_owned()),
    };
    first.attach(data.clone(), NOW).unwrap();
    let create = OperationRow::intended(
        builder.random.uuid().into(),
        EntityRef::Attachment(first.id),
        OperationKind::Create,
        NOW,
    );
    let puts = vec![
        Put::Fleet(fleet),
        Put::Instance(one.clone()),
        Put::Instance(other),
        Put::Volume(volume.clone()),
        Put::Run(run),
        Put::Job(job.clone()),
        Put::Attachment(first.clone()),
        Put::Attachment(second.clone()),
        Put::Operation(create),
    ];
    store.commit(Commit::unchecked(puts, Vec::new())).await.unwrap();

    let read = store.attachment(first.id).await.unwrap().unwrap();
    assert_eq!(
        (read.attachment.data.as_deref(), read.operations.len()),
        (Some(&data), 1)
    );
    let mut unversioned = read.attachment.clone();
    unversioned.set_version(0);
    assert_eq!(unversioned, first);
    assert_eq!(read.job.map(|job| job.name).as_deref(), Some("train-0-0"));
    assert_eq!((read.volume.id, read.instance.unwrap().id), (volume.id, one.id));
    assert_eq!(read.others.len(), 1);
    assert_eq!(
        (read.others[0].row.id, read.others[0].user()),
        (second.id, Some("train-0-0"))
    );
    for of in [
        AttachmentsOf::Project(builder.project),
        AttachmentsOf::Volume(volume.id),
        AttachmentsOf::Instance(one.id),
    ] {
        let found = store.attachments(of).await.unwrap();
        let expected = if of == AttachmentsOf::Instance(one.id) {
            1
        } else {
            2
        };
        assert_eq!(found.len(), expected, "{of:?}");
        assert!(found.iter().any(|found| found.row.id == first.id));
        assert_eq!(
            found[0].job,
            Some(VolumeJob {
                name: "train-0-0".to_owned(),
                status: JobStatus::Provisioning,
                ending_since: None,
            })
        );
    }
    assert_eq!(store.job(job.id).await.unwrap().unwrap().attachments.len(), 2);
    assert!(store.volume(volume.id).await.unwrap().unwrap().is_attached);

    let mut ending = store.job(job.id).await.unwrap().unwrap().job;
    ending
        .terminate(JobTerminationReason::TerminatedByUser, None, NOW)
        .unwrap();
    let mut changes = builder.changes(NOW);
    changes.touch(ending);
    store.commit(changes.into_commit()).await.unwrap();
    let found = store.attachment(second.id).await.unwrap().unwrap();
    assert_eq!(found.job.and_then(|job| job.ending_since), Some(NOW));
    assert_eq!(found.others[0].leaving_since(), Some(NOW));

    // A status that is over is nobody's to drive.
    let mut failed = store.attachment(second.id).await.unwrap().unwrap().attachment;
    failed.fail("no slot".to_owned(), NOW).unwrap();
    assert_eq!(failed.status(), AttachmentStatus::Failed);
    let mut changes = builder.changes(NOW);
    changes.touch(failed);
    store.commit(changes.into_commit()).await.unwrap();
    let failed = store.attachment(second.id).await.unwrap().unwrap().attachment;
    assert_eq!(failed.status_message(), Some("no slot"));

    let remove = |row: &AttachmentRow| {
        let mut changes = builder.changes(NOW);
        changes.remove_silently(row.clone());
        store.commit(changes.into_commit())
    };
    assert!(remove(&first).await.unwrap_err().is_conflict(), "another version");
    for row in [&read.attachment, &failed] {
        remove(row).await.unwrap();
    }
    assert!(store.attachment(first.id).await.unwrap().is_none());
    assert!(!store.volume(volume.id).await.unwrap().unwrap().is_attached);
}
