//! Placement groups: made in their cloud for the machines of a cluster, deleted after the fleet.

use std::sync::Arc;

use dstack_model::placement::PlacementGroupProvisioningData;
use dstack_plan::lifecycle::placement_group::{Decision, Facts, decide};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_store::rows::{OperationKind, PlacementGroupRow};
use dstack_store::{Changes, EntityRef, EventMaker, PlacementGroupSnapshot};
use dstack_units::PlacementGroupId;

use crate::Result;
use crate::context::Context;
use crate::operations::{self, creation, last_of, progress};
use crate::running::Work;

/// Takes a placement group a step further.
pub async fn reconcile(ctx: &Arc<Context>, id: PlacementGroupId) -> Result<()> {
    let entity = EntityRef::PlacementGroup(id);
    let Some(snapshot) = ctx.deps.store.placement_group(id).await? else {
        ctx.finished(entity);
        return Ok(());
    };
    if snapshot.group.status().is_over() {
        ctx.finished(entity);
        return Ok(());
    }
    let commit = change(ctx, &snapshot)?.into_commit();
    let is_changed = !commit.is_empty();
    let intended: Vec<OperationKind> = operations::intended(&snapshot.operations, &commit).collect();
    ctx.commit(("placement.commit.before", "placement.commit.after"), commit)
        .await?;
    for kind in intended {
        operations::ensure(ctx, entity, kind);
    }
    if is_changed {
        // Machines are made as soon as their group is there, or is not to be had.
        for instance in &snapshot.instances {
            let creation = Work::Operation(EntityRef::Instance(instance.id), OperationKind::Create);
            ctx.running.look_again(creation);
        }
    }
    Ok(())
}

fn change(ctx: &Context, snapshot: &PlacementGroupSnapshot) -> Result<Changes> {
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut row = snapshot.group.clone();
    let entity = EntityRef::PlacementGroup(row.id);
    match decide(&facts(snapshot), now) {
        Decision::Wait(wait) => {
            let stored = row.stored_wait();
            row.wait(wait.or_stored(&stored, now));
        }
        Decision::IntendCreation(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Create, now));
            row.wait(wait);
        }
        Decision::Made => {
            let created = last_of(&snapshot.operations, OperationKind::Create);
            match created.and_then(creation::made) {
                Some(data) => row.activate(data, now)?,
                // It is there: it is not forgotten.
                None => row.wait(Wait::indefinite(unreadable(&row))),
            }
        }
        Decision::NotMade(error) => row.fail(error, now)?,
        Decision::SetAside => row.set_aside(now)?,
        Decision::IntendRemoval(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Remove, now));
            row.wait(wait);
        }
        Decision::Gone => row.finish(now)?,
    }
    if row.status() != snapshot.group.status() {
        let (from, to) = (snapshot.group.status(), row.status());
        tracing::info!(fleet.name = row.name, ?from, ?to, "placement group changed");
    }
    ctx.wakes.wake_at(entity, row.next_wake_at());
    changes.update(&snapshot.group, row);
    Ok(changes)
}

fn unreadable(row: &PlacementGroupRow) -> WaitReason {
    let error = "what the cloud made is stored in a form that this version cannot read: start the version that made it";
    WaitReason::CreationKnown {
        name: row.name.clone(),
        error: Some(error.to_owned()),
    }
}

fn facts(snapshot: &PlacementGroupSnapshot) -> Facts {
    use dstack_model::instances::InstanceStatus::Terminated;
    let there = snapshot.instances.iter().filter(|row| row.status() != Terminated);
    Facts {
        name: snapshot.group.name.clone(),
        status: snapshot.group.status(),
        is_fleet_over: snapshot.fleet.deleted,
        machines: there.count(),
        create: progress(&snapshot.operations, OperationKind::Create),
        is_readable: creation::is_readable::<PlacementGroupProvisioningData>(last_of(
            &snapshot.operations,
            OperationKind::Create,
        )),
        remove: progress(&snapshot.operations, OperationKind::Remove),
    }
}
