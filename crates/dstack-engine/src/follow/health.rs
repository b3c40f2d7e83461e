//! How the GPUs of an instance are, asked of its agent now and then: a place that failed gets no new jobs.

use std::convert::Infallible;
use std::sync::Arc;

use dstack_agent_api::shim::InstanceHealth;
use dstack_model::health::HealthStatus;
use dstack_store::EntityRef;
use dstack_store::queries::health::StoredCheck;
use dstack_system::clock::sleep_until;
use dstack_units::{InstanceId, Time};

use crate::context::Context;
use crate::{Result, Shim, health};

/// When an agent was asked last: known beyond a broken stream, so that one that breaks often is not asked more often.
#[derive(Debug, Default)]
pub(super) struct Asked(Option<Time>);

/// Asks the agent until it is dropped.
pub(super) async fn check(
    ctx: &Arc<Context>,
    instance: InstanceId,
    shim: &dyn Shim,
    asked: &mut Asked,
) -> Infallible {
    loop {
        if let Some(at) = asked.0 {
            sleep_until(ctx.deps.clock.as_ref(), at + ctx.deps.settings.health_every).await;
        }
        asked.0 = Some(ctx.now());
        match shim.health().await {
            Ok(answer) => {
                if let Err(error) = take(ctx, instance, &answer).await {
                    ctx.report("keep what an agent says of its GPUs", &error);
                }
            }
            Err(error) => {
                tracing::debug!(instance.id = %instance, %error, "how the GPUs are is not known just now");
            }
        }
    }
}

/// Keeps the answer, and has the row of the instance follow it.
async fn take(ctx: &Context, instance: InstanceId, answer: &InstanceHealth) -> Result<()> {
    let entity = EntityRef::Instance(instance);
    if !ctx.leases.contains(entity) {
        // Another server asks for itself.
        ctx.seen.update_instance(instance, |seen| seen.health = None);
        return Ok(());
    }
    let Some(status) = health::status(answer) else {
        tracing::warn!(instance.id = %instance, ?answer, "the agent says of its GPUs what nobody understands: ignored");
        return Ok(());
    };
    let before = ctx
        .seen
        .update_instance(instance, |seen| seen.health.replace(status));
    if before != Some(status) {
        tell(instance, status, answer);
        ctx.wakes.wake(entity);
    }
    if answer.dcgm.is_some() {
        store(ctx, instance, status, answer).await?;
    }
    Ok(())
}

fn tell(instance: InstanceId, status: HealthStatus, answer: &InstanceHealth) {
    let incidents = answer.dcgm.as_ref().map(|dcgm| dcgm.incidents.as_slice());
    let first = incidents.and_then(<[_]>::first);
    if status != HealthStatus::Healthy {
        let message = first.map(|incident| incident.error_message.as_str());
        tracing::warn!(instance.id = %instance, %status, message, "the GPUs of an instance are not well");
    }
}

async fn store(
    ctx: &Context,
    instance: InstanceId,
    status: HealthStatus,
    answer: &InstanceHealth,
) -> Result<()> {
    let now = ctx.now();
    let check = StoredCheck {
        collected_at: now,
        status,
        // Numbers and texts, for which serialization cannot fail.
        response: serde_json::to_string(answer).unwrap_or_default(),
    };
    let id = ctx.deps.random.ordered_uuid(now);
    Ok(ctx.deps.store.add_health_check(id, instance, check).await?)
}
