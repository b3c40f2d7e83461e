//! Network volumes: made in their cloud, deleted when nobody wants them any more.

use std::sync::Arc;
use std::time::Duration;

use dstack_model::volumes::VolumeProvisioningData;
use dstack_plan::lifecycle::volume::{Decision, Facts, decide};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_store::rows::{OperationKind, VolumeRow};
use dstack_store::{Changes, EntityRef, EventMaker, VolumeSnapshot, events};
use dstack_units::{Time, VolumeId};

use crate::Result;
use crate::context::Context;
use crate::operations::{self, creation, last_of, progress};

/// Takes a volume a step further.
pub async fn reconcile(ctx: &Arc<Context>, id: VolumeId) -> Result<()> {
    let entity = EntityRef::Volume(id);
    let Some(snapshot) = ctx.deps.store.volume(id).await? else {
        ctx.finished(entity);
        return Ok(());
    };
    if snapshot.volume.deleted {
        ctx.finished(entity);
        return Ok(());
    }
    let changes = change(ctx, &snapshot)?;
    let commit = changes.into_commit();
    let intended: Vec<OperationKind> = operations::intended(&snapshot.operations, &commit).collect();
    ctx.commit(("volume.commit.before", "volume.commit.after"), commit)
        .await?;
    for kind in intended {
        operations::ensure(ctx, entity, kind);
    }
    Ok(())
}

fn change(ctx: &Context, snapshot: &VolumeSnapshot) -> Result<Changes> {
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut row = snapshot.volume.clone();
    let entity = EntityRef::Volume(row.id);
    match decide(&facts(snapshot), now) {
        Decision::Wait(wait) => row.wait(wait),
        Decision::IntendCreation(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Create, now));
            row.wait(wait);
        }
        Decision::Made => {
            let made = last_of(&snapshot.operations, OperationKind::Create).and_then(creation::made);
            match made {
                Some(data) => {
                    row.activate(data, now)?;
                    row.wake_at(now);
                }
                // The disk costs money: it is not forgotten.
                None => row.wait(Wait::indefinite(unreadable(&row))),
            }
        }
        Decision::NotMade(error) => {
            row.fail(error, now)?;
            row.wake_at(now);
        }
        Decision::DeleteUnused => {
            row.mark_for_deletion(now);
            let text = "Volume marked for deletion due to exceeding auto_cleanup_duration";
            changes.note(text, vec![events::volume(&row)]);
        }
        Decision::IntendRemoval(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Remove, now));
            row.wait(wait);
        }
        Decision::Gone => row.finish(now),
    }
    ctx.wakes.wake_at(entity, row.next_wake_at());
    changes.update(&snapshot.volume, row);
    Ok(changes)
}

fn unreadable(row: &VolumeRow) -> WaitReason {
    let error = "what the cloud made is stored in a form that this version cannot read: start the version that made it";
    WaitReason::CreationKnown {
        name: row.name.clone(),
        error: Some(error.to_owned()),
    }
}

fn facts(snapshot: &VolumeSnapshot) -> Facts {
    let row = &snapshot.volume;
    Facts {
        name: row.name.clone(),
        status: row.status(),
        is_external: row.configuration.is_external(),
        to_be_deleted: row.to_be_deleted,
        create: progress(&snapshot.operations, OperationKind::Create),
        is_readable: creation::is_readable::<VolumeProvisioningData>(last_of(
            &snapshot.operations,
            OperationKind::Create,
        )),
        remove: progress(&snapshot.operations, OperationKind::Remove),
        is_made: row.provisioning_data.is_some(),
        is_attached: snapshot.is_attached,
        idle_since: idle_since(row),
        idle_for: idle_for(row),
    }
}

fn idle_since(row: &VolumeRow) -> Time {
    row.last_job_processed_at.unwrap_or(row.created_at)
}

fn idle_for(row: &VolumeRow) -> Option<Duration> {
    let limit = row.configuration.auto_cleanup_duration();
    let seconds = limit.filter(|_| row.auto_cleanup_enabled)?.0;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}
