//! What other servers change of what is ours, and what they hand over to us.

use std::sync::Arc;
use std::time::Duration;

use crate::Result;
use crate::context::Context;

/// Pause before a lost connection to the feed is made again: a database that is away tells nobody when it is back.
const RECONNECT: Duration = Duration::from_secs(1);

/// Starts hearing of changes.
pub(super) fn start(ctx: &Arc<Context>) {
    ctx.spawn_service("engine change feed", |ctx| async move {
        loop {
            match hear(&ctx).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => ctx.report("hear other servers", &error),
            }
            tokio::time::sleep(RECONNECT).await;
        }
    });
}

/// Until the connection is lost; false when there are no other servers.
async fn hear(ctx: &Context) -> Result<bool> {
    let Some(mut changes) = ctx.deps.store.subscribe().await? else {
        return Ok(false);
    };
    // Whatever was told before we listened.
    ctx.claim_wanted.notify_one();
    while let Some(entity) = changes.next().await? {
        if ctx.deps.store.owner_of(entity).await?.as_ref() == Some(&ctx.owner) {
            ctx.leases.extend([entity]);
            // Without a lease nothing is ours, and telling ourselves of it again would not end.
            if ctx.leases.contains(entity) {
                ctx.wakes.wake(entity);
            }
        } else {
            ctx.leases.remove(entity);
            ctx.wakes.wake_at(entity, None);
        }
    }
    Ok(true)
}
