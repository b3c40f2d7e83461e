//! Durable calls for replicas of gateways on hosts of SSH fleets: each is set up step by step, and taken off again.

use async_trait::async_trait;
use dstack_plan::lifecycle::instance::RELEASE_TIMEOUT;
use dstack_plan::lifecycle::job::Progress;
use dstack_store::rows::{AgentAddress, OperationKind, OperationRow, OperationState};
use dstack_store::{EntityRef, GatewayReplicaSnapshot, InstanceSnapshot};
use serde_json::Value;

use super::clouds::{done, refused};
use super::hosts::{self, STEP_LIMIT, failed, in_time, ready_host};
use super::{Step, Subject, last_of, progress};
use crate::Result;
use crate::context::Context;
use crate::hosts::{GatewayRef, ReadyGateway};

#[async_trait]
impl Subject for GatewayReplicaSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Context, operation: OperationRow) -> Result<Step> {
        let host = host_of(ctx, self).await?;
        match (operation.kind, &host) {
            (OperationKind::Prepare, Some(host)) if self.replica.is_active() => {
                prepare(ctx, self, host, operation).await
            }
            // Later the host may be another gateway's.
            (OperationKind::Release, Some(host)) if !self.replica.is_over() => {
                release(ctx, self, host, operation).await
            }
            // What it had on a host that is gone has gone with it.
            (OperationKind::Release, None) => done(ctx, operation, Value::Null).await,
            _ => refused(ctx, operation, "no longer wanted".to_owned()).await,
        }
    }
}

/// The host of a replica, if it can have one there: a host of an SSH fleet whose agent is set up, and that does not end.
pub(crate) async fn host_of(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
) -> Result<Option<InstanceSnapshot>> {
    let Some(instance) = snapshot.replica.instance_id else {
        return Ok(None);
    };
    let found = ctx.deps.store.instance(instance).await?;
    Ok(found.filter(|found| {
        let agent = found.instance.agent.as_deref();
        found.instance.status().is_active()
            && agent.is_some_and(|agent| matches!(agent, AgentAddress::Ssh { .. }))
            && found.fleet.is_some()
    }))
}

/// What the last setting up of a replica has brought.
pub(crate) fn ready(operations: &[OperationRow]) -> Option<ReadyGateway> {
    let done = last_of(operations, OperationKind::Prepare).filter(|row| row.state == OperationState::Done)?;
    serde_json::from_value(done.notes.as_deref()?.clone()).ok()
}

fn gateway<'a>(
    snapshot: &'a GatewayReplicaSnapshot,
    host: &'a InstanceSnapshot,
    build: Option<&'a str>,
) -> Option<GatewayRef<'a>> {
    Some(GatewayRef {
        replica: &snapshot.replica,
        gateway: &snapshot.gateway,
        host: hosts::host_of(host)?,
        build,
        reach: host.instance.agent.as_deref()?.reach()?,
    })
}

async fn prepare(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    host: &InstanceSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let build = ready_host(host).and_then(|ready| ready.build);
    let Some(gateway) = gateway(snapshot, host, build.as_deref()) else {
        return refused(ctx, operation, "the fleet of the host is gone".to_owned()).await;
    };
    ctx.before_effect(
        "gateway.prepare.before",
        EntityRef::GatewayReplica(snapshot.replica.id),
    )?;
    let prepared = in_time(STEP_LIMIT, ctx.deps.hosts.prepare_gateway(gateway)).await;
    ctx.reached("gateway.prepare.after")?;
    match prepared {
        Ok(ready) => done(ctx, operation, serde_json::to_value(ready).unwrap_or_default()).await,
        Err(error) => failed(ctx, operation, error).await,
    }
}

async fn release(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    host: &InstanceSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    if matches!(
        progress(&snapshot.operations, OperationKind::Prepare),
        Progress::Intended(_)
    ) {
        return Ok(Step::Again);
    }
    let Some(gateway) = gateway(snapshot, host, None) else {
        return done(ctx, operation, Value::Null).await;
    };
    ctx.before_effect(
        "gateway.release.before",
        EntityRef::GatewayReplica(snapshot.replica.id),
    )?;
    let released = in_time(RELEASE_TIMEOUT, ctx.deps.hosts.release_gateway(gateway)).await;
    ctx.reached("gateway.release.after")?;
    match released {
        Ok(()) => done(ctx, operation, Value::Null).await,
        Err(error) => failed(ctx, operation, error).await,
    }
}
