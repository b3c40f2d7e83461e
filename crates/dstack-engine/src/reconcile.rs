//! One module per entity: load a snapshot, decide, commit.

pub mod attachment;
pub mod compute_group;
pub mod fleet;
pub mod fleet_view;
pub mod gateway;
pub mod gateway_replica;
pub mod instance;
pub mod job;
mod node;
pub mod placement_group;
mod refusal;
mod replicas;
mod rollout;
pub mod run;
pub mod schedule;
pub mod volume;

use std::sync::Arc;

use dstack_store::EntityRef;

use crate::context::Context;
use crate::wakes::Key;
use crate::{EngineError, Result};

/// Conflicts are met by deciding again on fresh rows; so many in a row would be a bug.
const ATTEMPTS: usize = 50;

/// Looks at whatever the key names.
pub async fn reconcile(ctx: &Arc<Context>, key: Key) -> Result<()> {
    if let Key::Entity(entity) = key
        && !ctx.leases.contains(entity)
    {
        // Whoever drives it looks at it.
        return Ok(ctx.deps.store.notify_owner(entity).await?);
    }
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = match key {
            Key::Entity(EntityRef::Run(id)) => run::reconcile(ctx, id).await,
            Key::Entity(EntityRef::Job(id)) => job::reconcile(ctx, id).await,
            Key::Entity(EntityRef::Instance(id)) => instance::reconcile(ctx, id).await,
            Key::Entity(EntityRef::Fleet(id)) => fleet::reconcile(ctx, id).await,
            Key::Entity(EntityRef::Volume(id)) => volume::reconcile(ctx, id).await,
            Key::Entity(EntityRef::Attachment(id)) => attachment::reconcile(ctx, id).await,
            Key::Entity(EntityRef::Gateway(id)) => gateway::reconcile(ctx, id).await,
            Key::Entity(EntityRef::GatewayReplica(id)) => gateway_replica::reconcile(ctx, id).await,
            Key::Entity(EntityRef::PlacementGroup(id)) => placement_group::reconcile(ctx, id).await,
            Key::Entity(EntityRef::ComputeGroup(id)) => compute_group::reconcile(ctx, id).await,
            Key::Schedule(project) => schedule::reconcile(ctx, project).await,
        };
        match &result {
            Err(EngineError::Store(error)) if error.is_conflict() => {}
            _ => return result,
        }
    }
    result
}
