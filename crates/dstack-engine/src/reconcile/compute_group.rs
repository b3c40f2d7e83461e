//! Compute groups: their members are made as one, live as instances do, and are removed as one.

use std::sync::Arc;

use dstack_plan::lifecycle::compute_group::{Decision, Facts, decide};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_store::rows::{ComputeGroupRow, InstanceRow, OperationKind};
use dstack_store::{Changes, ComputeGroupSnapshot, EntityRef, EventMaker};
use dstack_units::ComputeGroupId;

use crate::Result;
use crate::context::Context;
use crate::operations::instances::OfferAttempts;
use crate::operations::{self, last_of, progress};

/// Takes a compute group a step further.
pub async fn reconcile(ctx: &Arc<Context>, id: ComputeGroupId) -> Result<()> {
    use dstack_plan::lifecycle::compute_group::ComputeGroupState::Terminated;
    let entity = EntityRef::ComputeGroup(id);
    let Some(snapshot) = ctx.deps.store.compute_group(id).await? else {
        ctx.finished(entity);
        return Ok(());
    };
    if snapshot.group.status() == Terminated {
        ctx.finished(entity);
        return Ok(());
    }
    let commit = change(ctx, &snapshot)?.into_commit();
    let is_changed = !commit.is_empty();
    let intended: Vec<OperationKind> = operations::intended(&snapshot.operations, &commit).collect();
    ctx.commit(("group.commit.before", "group.commit.after"), commit)
        .await?;
    for kind in intended {
        operations::ensure(ctx, entity, kind);
    }
    if is_changed {
        // What becomes of the group becomes of them.
        for member in snapshot.group.members.iter() {
            ctx.wakes.wake(EntityRef::Instance(*member));
        }
    }
    Ok(())
}

fn change(ctx: &Context, snapshot: &ComputeGroupSnapshot) -> Result<Changes> {
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut row = snapshot.group.clone();
    let entity = EntityRef::ComputeGroup(row.id);
    match decide(&facts(snapshot)) {
        Decision::Wait(wait) => row.wait(wait),
        Decision::Made => {
            let created = last_of(&snapshot.operations, OperationKind::Create).and_then(OfferAttempts::read);
            match created.as_ref().and_then(OfferAttempts::created_group) {
                Some(made) => row.run(made.clone(), now)?,
                // It costs money: it is not forgotten.
                None => row.wait(Wait::indefinite(unreadable(&row))),
            }
        }
        Decision::IntendRemoval(wait) => {
            row.terminate(now)?;
            changes.intend(operations::intend(ctx, entity, OperationKind::Remove, now));
            row.wait(wait);
        }
        Decision::Gone => row.finish(now)?,
    }
    if row.status() != snapshot.group.status() {
        let (from, to) = (snapshot.group.status(), row.status());
        tracing::info!(group.name = row.name, ?from, ?to, "compute group changed");
    }
    ctx.wakes.wake_at(entity, row.next_wake_at());
    changes.update(&snapshot.group, row);
    Ok(changes)
}

fn unreadable(row: &ComputeGroupRow) -> WaitReason {
    let error = "what the cloud made is stored in a form that this version cannot read";
    WaitReason::CreationKnown {
        name: row.name.clone(),
        error: Some(error.to_owned()),
    }
}

fn facts(snapshot: &ComputeGroupSnapshot) -> Facts {
    Facts {
        name: snapshot.group.name.clone(),
        state: snapshot.group.status(),
        members: snapshot.instances.iter().map(InstanceRow::status).collect(),
        create: progress(&snapshot.operations, OperationKind::Create),
        remove: progress(&snapshot.operations, OperationKind::Remove),
    }
}
