//! Attachments: a volume comes to the instance of a job, and is free again when the job has ended.

use std::sync::Arc;

use dstack_model::instances::InstanceStatus;
use dstack_model::runs::JobStatus;
use dstack_model::volumes::{VolumeAttachmentData, VolumeStatus};
use dstack_plan::lifecycle::attachment::{
    AttachmentStatus, Decision, Facts, Holder, Machine, decide, forced_from,
};
use dstack_store::rows::{AttachmentRow, InstanceRow, JobRow, OperationKind, VolumeRow};
use dstack_store::{AttachmentSnapshot, Changes, EntityRef, EventMaker, VolumeUse};
use dstack_units::{AttachmentId, Time};

use crate::Result;
use crate::context::Context;
use crate::operations::{self, creation, last_of, progress};
use crate::wakes::Key;

/// Takes an attachment a step further.
pub async fn reconcile(ctx: &Arc<Context>, id: AttachmentId) -> Result<()> {
    let entity = EntityRef::Attachment(id);
    let Some(snapshot) = ctx.deps.store.attachment(id).await? else {
        ctx.finished(entity);
        return Ok(());
    };
    if snapshot.attachment.status() == AttachmentStatus::Failed {
        ctx.finished(entity);
        return Ok(());
    }
    let untold = untold(ctx, &snapshot.attachment).await?;
    let change = change(ctx, &snapshot, untold)?;
    let (is_told, is_free) = (is_told(&snapshot.attachment, &change), is_free(&change));
    let commit = change.changes.into_commit();
    let intended: Vec<OperationKind> = operations::intended(&snapshot.operations, &commit).collect();
    ctx.commit(("attachment.commit.before", "attachment.commit.after"), commit)
        .await?;
    for kind in intended {
        operations::ensure(ctx, entity, kind);
    }
    if is_told {
        ctx.wakes.wake(EntityRef::Job(snapshot.attachment.job_id));
    }
    if is_free {
        // The next of them gets the volume, or the next job.
        ctx.wakes.wake(Key::Schedule(snapshot.attachment.project_id));
        for other in &snapshot.others {
            ctx.wakes.wake(EntityRef::Attachment(other.row.id));
        }
    }
    Ok(())
}

/// The rows as they shall be.
struct Change {
    /// The attachment; `None`: it is gone.
    row: Option<AttachmentRow>,
    changes: Changes,
}

/// The job of an attachment that was given up, if it has not taken note yet.
async fn untold(ctx: &Context, row: &AttachmentRow) -> Result<Option<JobRow>> {
    if row.given_up_because().is_none() {
        return Ok(None);
    }
    let job = ctx.deps.store.job(row.job_id).await?.map(|found| found.job);
    Ok(job.filter(|job| job.status() == JobStatus::Provisioning))
}

/// Whether others can have the volume.
fn is_free(change: &Change) -> bool {
    !change.row.as_ref().is_some_and(AttachmentRow::takes_volume)
}

/// Whether the job has something to decide, or to show.
fn is_told(before: &AttachmentRow, change: &Change) -> bool {
    let is_same =
        |row: &AttachmentRow| row.status() == before.status() && row.waiting_for() == before.waiting_for();
    !change.row.as_ref().is_some_and(is_same)
}

fn change(ctx: &Context, snapshot: &AttachmentSnapshot, untold: Option<JobRow>) -> Result<Change> {
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut row = snapshot.attachment.clone();
    let entity = EntityRef::Attachment(row.id);
    match decide(&facts(snapshot), now) {
        Decision::Wait(wait) => row.wait(wait),
        Decision::IntendAttach(wait) => {
            row.begun = true;
            row.wait(wait);
            changes.intend(operations::intend(ctx, entity, OperationKind::Create, now));
            // Of two that begin at the same time, one decides again.
            changes.touch(used(&snapshot.volume, now));
        }
        Decision::Attached => {
            if let Some(data) = said(snapshot) {
                row.attach(data, now)?;
            }
        }
        Decision::Failed(why) => {
            row.fail(why, now)?;
            // It is free from now on.
            changes.touch(used(&snapshot.volume, now));
        }
        Decision::GiveUp(why) => row.give_up(why, now)?,
        Decision::Leave => row.detach(forced_from(now, None, true), now)?,
        Decision::IntendDetach(wait) => {
            row.wait(wait);
            changes.intend(operations::intend(ctx, entity, OperationKind::Remove, now));
        }
        Decision::Gone if let (Some(job), Some(why)) = (untold, snapshot.attachment.given_up_because()) => {
            row.fail(why.to_owned(), now)?;
            changes.touch(used(&snapshot.volume, now));
            // One that ends at the same time takes no note any more, and the row goes.
            changes.touch(job);
        }
        Decision::Gone => {
            if row.data.is_some() {
                let event = changes.maker().detached(&row);
                changes.event(event);
            }
            changes.remove_silently(row);
            changes.touch(used(&snapshot.volume, now));
            return Ok(Change { row: None, changes });
        }
    }
    let (from, to) = (snapshot.attachment.status(), row.status());
    if from != to {
        tracing::info!(
            volume.name = row.name,
            instance.name = row.instance_name,
            ?from,
            ?to,
            "attachment changed"
        );
    }
    ctx.wakes.wake_at(entity, row.next_wake_at());
    changes.update(&snapshot.attachment, row.clone());
    Ok(Change {
        row: Some(row),
        changes,
    })
}

fn used(volume: &VolumeRow, now: Time) -> VolumeRow {
    let mut used = volume.clone();
    used.used(now);
    used
}

/// What the cloud said when it had attached the volume.
fn said(snapshot: &AttachmentSnapshot) -> Option<VolumeAttachmentData> {
    last_of(&snapshot.operations, OperationKind::Create).and_then(creation::made)
}

fn facts(snapshot: &AttachmentSnapshot) -> Facts {
    let row = &snapshot.attachment;
    Facts {
        volume: row.name.clone(),
        instance: row.instance_name.clone(),
        status: row.status(),
        handed_over: row.handed_over,
        has_job: snapshot.has_job(),
        attach: progress(&snapshot.operations, OperationKind::Create),
        readable: said(snapshot).is_some(),
        detach: progress(&snapshot.operations, OperationKind::Remove),
        stored: row.stored_wait(),
        machine: machine(snapshot.instance.as_ref()),
        machine_deadline: snapshot.instance.as_ref().and_then(InstanceRow::deadline_at),
        holder: snapshot.others.iter().find_map(holder),
        unusable: unusable(&snapshot.volume),
    }
}

/// Whoever may have the volume: what has not begun to attach it does not.
fn holder(other: &VolumeUse) -> Option<Holder> {
    let may_have_it = other.row.begun && !other.row.handed_over && other.row.takes_volume();
    may_have_it.then(|| Holder {
        instance: other.row.instance_name.clone(),
        job: other.user().map(str::to_owned),
        leaving_since: other.leaving_since(),
        forced_from: other.row.forced_from,
    })
}

fn machine(instance: Option<&InstanceRow>) -> Machine {
    match instance.map(InstanceRow::status) {
        Some(InstanceStatus::Pending | InstanceStatus::Provisioning) => Machine::Starting,
        Some(InstanceStatus::Idle | InstanceStatus::Busy) => Machine::Ready,
        Some(InstanceStatus::Terminating) => Machine::Ending,
        Some(InstanceStatus::Terminated) | None => Machine::Over,
    }
}

fn unusable(volume: &VolumeRow) -> Option<String> {
    let is_there = !volume.deleted && volume.status() == VolumeStatus::Active;
    match (is_there, volume.to_be_deleted) {
        (true, false) => None,
        (true, true) => Some("it is marked for deletion and cannot be attached".to_owned()),
        (false, _) => Some("it does not exist any more".to_owned()),
    }
}
