//! Durable calls for replicas of gateways: each is set up step by step, and taken off its host again; where it has a machine of its own,
//! that is made before, and removed instead.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{
    Backend, ComputeError, GATEWAY_USER, GatewayMachine, GatewayRequest, Known, Lifecycle, Marks, Sign,
};
use dstack_model::gateways::GatewayReplicaProvisioningData;
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_plan::lifecycle::instance::RELEASE_TIMEOUT;
use dstack_plan::lifecycle::job::Progress;
use dstack_store::rows::{AgentAddress, OperationKind, OperationRow, OperationState};
use dstack_store::{EntityRef, GatewayReplicaSnapshot, InstanceSnapshot};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::clouds::{backend, done, in_time as cloud_in_time, keep, refused, remove};
use super::creation::{self, Making};
use super::hosts::{self, STEP_LIMIT, failed, in_time, ready_host};
use super::{Step, Subject, last_of, progress, record};
use crate::Result;
use crate::context::Context;
use crate::hosts::{GatewayRef, GatewaySite, ReadyGateway};
use crate::inputs::InputsError;

/// Port of the SSH servers of machines.
const SSH_PORT: u16 = 22;

#[async_trait]
impl Subject for GatewayReplicaSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        match self.replica.instance_id {
            Some(_) => call_on_host(ctx, self, operation).await,
            None => call_on_machine(ctx, self, operation).await,
        }
    }
}

async fn call_on_host(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let host = host_of(ctx, snapshot).await?;
    match (operation.kind, &host) {
        (OperationKind::Prepare, Some(host)) if snapshot.replica.is_active() => {
            prepare(ctx, snapshot, host, operation).await
        }
        // Later the host may be another gateway's.
        (OperationKind::Release, Some(host)) if !snapshot.replica.is_over() => {
            release(ctx, snapshot, host, operation).await
        }
        // What it had on a host that is gone has gone with it.
        (OperationKind::Release, None) => done(ctx, operation, Value::Null).await,
        _ => refused(ctx, operation, "no longer wanted".to_owned()).await,
    }
}

async fn call_on_machine(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    match operation.kind {
        OperationKind::Create => create(ctx, snapshot, operation).await,
        OperationKind::Remove => delete(ctx, snapshot, operation).await,
        OperationKind::Prepare if snapshot.replica.is_active() => {
            prepare_machine(ctx, snapshot, operation).await
        }
        _ => refused(ctx, operation, "no longer wanted".to_owned()).await,
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

/// The machine that was made for a replica.
pub(crate) fn machine(operations: &[OperationRow]) -> Option<GatewayReplicaProvisioningData> {
    let made = last_of(operations, OperationKind::Create).filter(|row| row.state == OperationState::Done)?;
    creation::made(made)
}

fn gateway<'a>(
    snapshot: &'a GatewayReplicaSnapshot,
    host: &'a InstanceSnapshot,
    build: Option<&'a str>,
) -> Option<GatewayRef<'a>> {
    Some(GatewayRef {
        replica: &snapshot.replica,
        gateway: &snapshot.gateway,
        site: GatewaySite::Host {
            host: hosts::host_of(host)?,
            build,
            reach: host.instance.agent.as_deref()?.reach()?,
        },
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
    set_up(ctx, gateway, operation).await
}

async fn set_up(ctx: &Context, gateway: GatewayRef<'_>, operation: OperationRow) -> Result<Step> {
    let subject = EntityRef::GatewayReplica(gateway.replica.id);
    ctx.before_effect("gateway.prepare.before", subject)?;
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

/// Why a replica was not set up on its machine, as notes of the operation.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Attempted {
    /// The way to the machine, with the host key that was seen first: the next attempt takes no other.
    seen: Option<Reach>,
    /// The cloud says that the machine is gone.
    #[serde(default)]
    is_lost: bool,
}

impl Attempted {
    fn read(operation: &OperationRow) -> Self {
        let notes = operation.notes.as_deref().cloned().unwrap_or_default();
        serde_json::from_value(notes).unwrap_or_default()
    }
}

/// Whether the machine of a replica was found gone when it was to be set up.
pub(crate) fn is_lost(operations: &[OperationRow]) -> bool {
    let failed =
        last_of(operations, OperationKind::Prepare).filter(|row| row.state == OperationState::Failed);
    failed.is_some_and(|row| Attempted::read(row).is_lost)
}

/// Sets the replica up on its machine. When that did not work before, its cloud is asked first whether the machine is still there.
async fn prepare_machine(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let Some(mut place) = place_of(snapshot) else {
        return refused(ctx, operation, "there is no machine".to_owned()).await;
    };
    let attempted = Attempted::read(&operation);
    if operation.error.is_some() {
        match sign(ctx, snapshot, &place).await {
            Some(Sign::Lost(why)) => {
                let attempted = Attempted {
                    is_lost: true,
                    ..attempted
                };
                let notes = serde_json::to_value(attempted).unwrap_or_default();
                let error = format!("its machine is gone: {why}");
                record(ctx, operation, OperationState::Failed, Some(error), Some(notes)).await?;
                return Ok(Step::Ended);
            }
            Some(Sign::Moved(now)) => place = now,
            _ => {}
        }
    }
    let seen = attempted.seen.as_ref().or(snapshot.replica.reach.as_deref());
    let reach = machine_reach(snapshot, &place, seen);
    if reach.host.host_keys.is_empty() {
        return greet(ctx, snapshot, &reach, operation).await;
    }
    let gateway = GatewayRef {
        replica: &snapshot.replica,
        gateway: &snapshot.gateway,
        site: GatewaySite::Machine { reach: &reach },
    };
    set_up(ctx, gateway, operation).await
}

/// The first contact: nothing is brought to a machine before it is written down which host key it has.
async fn greet(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    reach: &Reach,
    operation: OperationRow,
) -> Result<Step> {
    ctx.before_effect(
        "gateway.greet.before",
        EntityRef::GatewayReplica(snapshot.replica.id),
    )?;
    let greeted = in_time(STEP_LIMIT, ctx.deps.hosts.greet_machine(reach)).await;
    ctx.reached("gateway.greet.after")?;
    match greeted {
        Ok(seen) => {
            let attempted = Attempted {
                seen: Some(seen),
                is_lost: false,
            };
            let notes = serde_json::to_value(attempted).unwrap_or_default();
            keep(ctx, operation, notes).await?;
            Ok(Step::Next)
        }
        Err(error) => failed(ctx, operation, error).await,
    }
}

/// How its machine is; `None`: nobody knows.
async fn sign(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    place: &GatewayReplicaProvisioningData,
) -> Option<Sign<GatewayReplicaProvisioningData>> {
    let known = Known {
        place: Some(place.clone()),
        ..known(ctx, snapshot)
    };
    let looked = async {
        let cloud = cloud_of(ctx, snapshot).await?;
        let Some(gateways) = cloud.gateways() else {
            return Ok(Vec::new());
        };
        cloud_in_time(gateways.look(std::slice::from_ref(&known))).await
    };
    match looked.await {
        Ok(mut signs) => signs.pop().flatten(),
        Err(error) => {
            tracing::debug!(gateway.replica = %snapshot.replica.id, %error, "a cloud does not tell how the machine of a gateway is");
            None
        }
    }
}

/// The way to its machine, of which `seen` has the host key.
fn machine_reach(
    snapshot: &GatewayReplicaSnapshot,
    place: &GatewayReplicaProvisioningData,
    seen: Option<&Reach>,
) -> Reach {
    Reach {
        jumps: Vec::new(),
        host: Hop {
            host: place.ip_address.clone(),
            port: SSH_PORT,
            user: GATEWAY_USER.to_owned(),
            keys: vec![KeyRef::Project {
                project: snapshot.replica.project_id,
            }],
            host_keys: seen.map(|seen| seen.host.host_keys.clone()).unwrap_or_default(),
        },
    }
}

async fn create(ctx: &Context, snapshot: &GatewayReplicaSnapshot, operation: OperationRow) -> Result<Step> {
    let making = Making {
        what: "a gateway",
        account: (
            snapshot.replica.project_id,
            snapshot.gateway.configuration.backend,
        ),
        is_wanted: snapshot.replica.is_active(),
        known: known(ctx, snapshot),
        lifecycle_of: gateways_of,
    };
    creation::make(
        ctx,
        operation,
        making,
        cloud_of(ctx, snapshot),
        request(ctx, snapshot),
    )
    .await
}

async fn delete(ctx: &Context, snapshot: &GatewayReplicaSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(pieces) = creation::noted(last_of(&snapshot.operations, OperationKind::Create)) else {
        return creation::unreadable(ctx, operation).await;
    };
    let cloud = cloud_of(ctx, snapshot).await;
    let known = known(ctx, snapshot);
    remove::<GatewayMachine>(ctx, operation, pieces, &known, cloud, gateways_of).await
}

fn gateways_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<GatewayMachine>> {
    backend.gateways()
}

fn known(ctx: &Context, snapshot: &GatewayReplicaSnapshot) -> Known<GatewayMachine> {
    Known {
        marks: marks(ctx, snapshot),
        site: snapshot.replica.configuration.region.clone(),
        place: place_of(snapshot),
    }
}

/// Where its machine was last: it may have moved since it was made.
fn place_of(snapshot: &GatewayReplicaSnapshot) -> Option<GatewayReplicaProvisioningData> {
    let last = snapshot.replica.provisioning_data.as_deref().cloned();
    last.or_else(|| machine(&snapshot.operations))
}

fn marks(ctx: &Context, snapshot: &GatewayReplicaSnapshot) -> Marks {
    let row = &snapshot.replica;
    Marks {
        installation: ctx.deps.settings.installation,
        key: row.id.uuid(),
        name: row.name.clone(),
        project: row.project_id,
    }
}

async fn cloud_of(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
) -> Result<Arc<dyn Backend>, ComputeError> {
    let able = |backend: &dyn Backend| backend.gateways().is_some();
    let kind = snapshot.gateway.configuration.backend;
    backend(ctx, snapshot.replica.project_id, kind, "gateways", able).await
}

async fn request(ctx: &Context, snapshot: &GatewayReplicaSnapshot) -> Result<GatewayRequest, InputsError> {
    let inputs = ctx.deps.inputs.gateway(&snapshot.gateway).await?;
    let asked = &snapshot.replica.configuration;
    Ok(GatewayRequest {
        marks: marks(ctx, snapshot),
        owner: inputs.owner,
        region: asked.region.clone(),
        instance_type: asked.instance_type.clone(),
        is_public: asked.public_ip,
        authorized_keys: inputs.authorized_keys,
        load_balancer: snapshot
            .gateway
            .load_balancer
            .as_deref()
            .map(|made| made.data.clone()),
    })
}
