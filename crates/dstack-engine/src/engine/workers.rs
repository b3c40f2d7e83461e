//! Workers look at whatever wants to be looked at.

use std::sync::Arc;
use std::time::Duration;

use dstack_store::EntityRef;
use dstack_system::{observe, task_span};
use tracing::Span;

use crate::Result;
use crate::context::Context;
use crate::reconcile::reconcile;
use crate::wakes::Key;

/// Starts the workers, and what turns timers into wakes.
pub(super) fn start(ctx: &Arc<Context>) {
    for _ in 0..ctx.deps.settings.workers {
        ctx.spawn_service("engine worker", work);
    }
    ctx.spawn_service("engine timers", |ctx| async move {
        ctx.wakes.run_timers(ctx.deps.clock.as_ref()).await;
    });
}

async fn work(ctx: Arc<Context>) {
    loop {
        let working = ctx.wakes.next().await;
        look_at(&ctx, working.key()).await;
    }
}

async fn look_at(ctx: &Arc<Context>, key: Key) {
    let looked = match ctx.leases.term() {
        Some(_) => {
            let step = observe::task(span(key), reconcile(ctx, key));
            ctx.under_lease("reconcile", key, step).await
        }
        None => Some(without_lease(ctx, key).await),
    };
    if let Some(Err(error)) = looked {
        ctx.report("reconcile", &error);
        let pause = Duration::from_secs(1);
        ctx.wakes.wake_at(key, Some(ctx.now() + pause));
    }
}

/// Whoever drives the entity looks at it; what is this server's own is claimed, and woken, with the next lease.
async fn without_lease(ctx: &Context, key: Key) -> Result<()> {
    match key {
        Key::Entity(entity) => Ok(ctx.deps.store.notify_owner(entity).await?),
        Key::Schedule(_) => Ok(()),
    }
}

/// Of one step; named as in dstack 0.22.5, where the same is done.
fn span(key: Key) -> Span {
    match key {
        Key::Entity(EntityRef::Run(_)) => task_span!("pipeline_tasks.RunWorker.process"),
        Key::Entity(EntityRef::Job(_)) => task_span!("pipeline_tasks.JobWorker.process"),
        Key::Entity(EntityRef::Instance(_)) => task_span!("pipeline_tasks.InstanceWorker.process"),
        Key::Entity(EntityRef::Fleet(_)) => task_span!("pipeline_tasks.FleetWorker.process"),
        Key::Entity(EntityRef::Volume(_)) => task_span!("pipeline_tasks.VolumeWorker.process"),
        Key::Entity(EntityRef::Attachment(_)) => task_span!("pipeline_tasks.AttachmentWorker.process"),
        Key::Entity(EntityRef::Gateway(_)) => task_span!("pipeline_tasks.GatewayWorker.process"),
        Key::Entity(EntityRef::GatewayReplica(_)) => {
            task_span!("pipeline_tasks.GatewayReplicaWorker.process")
        }
        Key::Entity(EntityRef::PlacementGroup(_)) => {
            task_span!("pipeline_tasks.PlacementGroupWorker.process")
        }
        Key::Entity(EntityRef::ComputeGroup(_)) => task_span!("pipeline_tasks.ComputeGroupWorker.process"),
        Key::Schedule(_) => task_span!("pipeline_tasks.JobSubmittedWorker.process"),
    }
}
