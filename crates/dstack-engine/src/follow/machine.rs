//! Which machine a host is, asked whenever its agent is reached anew: it has another number once it was started again, and is to be
//! known all the same when somebody names it by another name.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dstack_store::EntityRef;
use dstack_units::InstanceId;
use tokio::sync::Notify;

use crate::Result;
use crate::context::Context;
use crate::hosts::HostError;
use crate::operations::hosts::host_of;

/// Pause before a host is asked again that could not be.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Asks the host of an instance until it has answered once, from when its agent has told all its tasks: jobs are followed first.
pub(super) async fn ask(ctx: &Arc<Context>, instance: InstanceId, all_told: &Notify) -> Infallible {
    all_told.notified().await;
    loop {
        match ask_once(ctx, instance).await {
            Ok(Ok(())) => std::future::pending().await,
            Ok(Err(error)) => {
                tracing::debug!(instance.id = %instance, %error, "which machine a host is is not known just now");
            }
            Err(error) => ctx.report("ask which machine a host is", &error),
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn ask_once(ctx: &Context, instance: InstanceId) -> Result<std::result::Result<(), HostError>> {
    let snapshot = ctx.deps.store.instance(instance).await?;
    let Some(host) = snapshot.as_ref().and_then(host_of) else {
        return Ok(Ok(()));
    };
    let found = match ctx.deps.hosts.machine(host).await {
        Ok(found) => found,
        Err(error) => return Ok(Err(error)),
    };
    let entity = EntityRef::Instance(instance);
    if found.is_some() && ctx.leases.contains(entity) {
        let is_new = found != host.instance.machine;
        ctx.seen.update_instance(instance, |seen| seen.machine = found);
        if is_new {
            ctx.wakes.wake(entity);
        }
    }
    Ok(Ok(()))
}
