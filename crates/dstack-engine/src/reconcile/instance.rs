//! Instances: whether their agent is in reach, and whether they are busy.

use std::sync::Arc;

use dstack_model::instances::InstanceStatus;
use dstack_store::{Commit, EntityRef, Put};
use dstack_units::InstanceId;

use crate::Result;
use crate::context::Context;
use crate::events::{self, Events};
use crate::follow;

/// Keeps the row of an instance true.
pub async fn reconcile(ctx: &Arc<Context>, id: InstanceId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.instance(id).await? else {
        return Ok(());
    };
    let before = snapshot.instance;
    if before.deleted || before.status == InstanceStatus::Terminated {
        return Ok(());
    }
    if let Some(address) = &before.agent {
        follow::shim::ensure(ctx, id, (**address).clone());
    }
    let now = ctx.now();
    let (synced, unreachable_since) = ctx.seen.instance(id);
    let maker = Events::system(now, ctx.deps.random.clone());
    let mut row = before.clone();
    let mut commit = Commit::default();
    if synced || unreachable_since.is_some() {
        row.unreachable = unreachable_since.is_some();
    }
    if row.unreachable != before.unreachable {
        let text = if row.unreachable {
            "Instance became unreachable"
        } else {
            "Instance became reachable"
        };
        commit
            .events
            .push(maker.event(text, vec![events::instance(&row)]));
    }
    if row.status == InstanceStatus::Provisioning && synced {
        row.status = if snapshot.jobs.is_empty() {
            InstanceStatus::Idle
        } else {
            InstanceStatus::Busy
        };
        commit.events.push(maker.instance_status(&before, &row));
    }
    row.waiting_for = row
        .unreachable
        .then(|| format!("the agent of {} to be reachable again", row.name));
    if row != before {
        row.last_processed_at = now;
        commit.puts.push(Put::Instance(row));
    }
    ctx.commit(("instance.commit.before", "instance.commit.after"), commit)
        .await?;
    for job in &snapshot.jobs {
        ctx.wakes.wake(EntityRef::Job(job.id));
    }
    Ok(())
}
