//! Gateways: this version has no cloud that makes them.

use std::sync::Arc;

use dstack_plan::lifecycle::gateway::{Decision, Facts, decide};
use dstack_store::{Changes, EntityRef, EventMaker};
use dstack_units::GatewayId;

use crate::Result;
use crate::context::Context;

/// Takes a gateway a step further.
pub async fn reconcile(ctx: &Arc<Context>, id: GatewayId) -> Result<()> {
    let entity = EntityRef::Gateway(id);
    let Some(snapshot) = ctx.deps.store.gateway(id).await? else {
        ctx.finished(entity);
        return Ok(());
    };
    let before = &snapshot.gateway;
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut row = before.clone();
    let facts = Facts {
        name: row.name.clone(),
        status: row.status(),
        to_be_deleted: row.to_be_deleted,
        replicas: snapshot.replicas,
    };
    match decide(&facts) {
        Decision::Wait(wait) => row.wait(wait),
        Decision::Fail(reason) => row.fail(reason.to_owned(), now)?,
        Decision::Gone => {
            changes.remove(row, "Gateway deleted");
            return commit(ctx, changes).await;
        }
    }
    ctx.wakes.wake_at(entity, row.next_wake_at());
    changes.update(before, row);
    commit(ctx, changes).await
}

async fn commit(ctx: &Context, changes: Changes) -> Result<()> {
    let name = ("gateway.commit.before", "gateway.commit.after");
    ctx.commit(name, changes.into_commit()).await
}
