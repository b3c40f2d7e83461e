//! Durable calls to clouds: the load balancer before a gateway is made, told which machines are behind it, and removed.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{
    Backend, Balancing, ComputeError, Known, Lifecycle, LoadBalancer, LoadBalancerRequest, Marks,
};
use dstack_model::gateways::{
    GatewayLoadBalancerData, GatewayReplicaProvisioningData, GatewayReplicaStatus, GatewayStatus,
};
use dstack_store::rows::{OperationKind, OperationRow, OperationState};
use dstack_store::{EntityRef, GatewaySnapshot};
use serde_json::json;

use super::clouds::{backend, done, in_time, not_yet, refused, remove};
use super::creation::{self, Making};
use super::{Step, Subject, last_of, note_error};
use crate::Result;
use crate::context::Context;
use crate::inputs::InputsError;

#[async_trait]
impl Subject for GatewaySnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => create(ctx, self, operation).await,
            OperationKind::Prepare => set_machines(ctx, self, operation).await,
            OperationKind::Remove => delete(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

/// The load balancer that was made.
pub(crate) fn made(operations: &[OperationRow]) -> Option<GatewayLoadBalancerData> {
    let made = last_of(operations, OperationKind::Create).filter(|row| row.state == OperationState::Done)?;
    creation::made(made)
}

/// The machines of replicas that serve: requests are to go to them.
pub(crate) fn serving(snapshot: &GatewaySnapshot) -> Vec<GatewayReplicaProvisioningData> {
    let serves = |status| status == GatewayReplicaStatus::Running;
    let replicas = snapshot.replicas.iter().filter(|row| serves(row.status()));
    let machines = replicas.filter_map(|row| row.provisioning_data.as_deref().cloned());
    machines.collect()
}

/// Ids of machines, sorted.
pub(crate) fn ids(machines: &[GatewayReplicaProvisioningData]) -> Vec<String> {
    let mut ids: Vec<String> = machines
        .iter()
        .map(|machine| machine.instance_id.clone())
        .collect();
    ids.sort_unstable();
    ids
}

/// Ids of the machines that were behind the load balancer when it was told last, sorted; `None`: it was not told, or has not done it.
pub(crate) fn machines_set(operations: &[OperationRow]) -> Option<Vec<String>> {
    let told = last_of(operations, OperationKind::Prepare).filter(|row| row.state == OperationState::Done)?;
    serde_json::from_value(told.notes.as_deref()?.get("machines")?.clone()).ok()
}

async fn create(ctx: &Context, snapshot: &GatewaySnapshot, operation: OperationRow) -> Result<Step> {
    let gateway = &snapshot.gateway;
    let making = Making {
        what: "a load balancer",
        account: (gateway.project_id, gateway.configuration.backend),
        is_wanted: !gateway.to_be_deleted && gateway.status() != GatewayStatus::Failed,
        known: known(ctx, snapshot),
        lifecycle_of,
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

/// Tells the load balancer of the machines that serve now.
async fn set_machines(ctx: &Context, snapshot: &GatewaySnapshot, operation: OperationRow) -> Result<Step> {
    let gateway = &snapshot.gateway;
    if gateway.to_be_deleted || gateway.status() == GatewayStatus::Failed {
        return refused(ctx, operation, "not wanted any more".to_owned()).await;
    }
    let cloud = match cloud_of(ctx, snapshot).await {
        Ok(cloud) => cloud,
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    let Some(balancers) = cloud.load_balancers() else {
        return not_yet(ctx, operation, &ComputeError::Unsupported("a load balancer")).await;
    };
    let (machines, known) = (serving(snapshot), known(ctx, snapshot));
    ctx.before_effect("gateway.balance.before", EntityRef::Gateway(gateway.id))?;
    let set = in_time(balancers.set_machines(&known, &machines)).await;
    ctx.reached("gateway.balance.after")?;
    match set {
        Ok(Balancing::Set) => done(ctx, operation, json!({ "machines": ids(&machines) })).await,
        Ok(Balancing::Underway { doing, again }) => {
            note_error(ctx, operation, doing).await?;
            Ok(Step::After(again))
        }
        // One that serves goes on, and is told again: what is in the way may be mended.
        Err(error) if error.is_transient() || gateway.status() == GatewayStatus::Running => {
            not_yet(ctx, operation, &error).await
        }
        Err(error) => refused(ctx, operation, error.to_string()).await,
    }
}

async fn delete(ctx: &Context, snapshot: &GatewaySnapshot, operation: OperationRow) -> Result<Step> {
    let Some(pieces) = creation::noted(last_of(&snapshot.operations, OperationKind::Create)) else {
        return creation::unreadable(ctx, operation).await;
    };
    let cloud = cloud_of(ctx, snapshot).await;
    let known = known(ctx, snapshot);
    remove::<LoadBalancer>(ctx, operation, pieces, &known, cloud, lifecycle_of).await
}

fn lifecycle_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<LoadBalancer>> {
    backend
        .load_balancers()
        .map(|balancers| balancers as &dyn Lifecycle<LoadBalancer>)
}

fn known(ctx: &Context, snapshot: &GatewaySnapshot) -> Known<LoadBalancer> {
    Known {
        marks: marks(ctx, snapshot),
        site: snapshot.gateway.configuration.region.clone(),
        place: made(&snapshot.operations),
    }
}

fn marks(ctx: &Context, snapshot: &GatewaySnapshot) -> Marks {
    let row = &snapshot.gateway;
    Marks {
        installation: ctx.deps.settings.installation,
        key: row.id.uuid(),
        name: row.name.clone(),
        project: row.project_id,
    }
}

async fn cloud_of(ctx: &Context, snapshot: &GatewaySnapshot) -> Result<Arc<dyn Backend>, ComputeError> {
    let able = |backend: &dyn Backend| backend.load_balancers().is_some();
    let row = &snapshot.gateway;
    backend(
        ctx,
        row.project_id,
        row.configuration.backend,
        "load balancers",
        able,
    )
    .await
}

async fn request(ctx: &Context, snapshot: &GatewaySnapshot) -> Result<LoadBalancerRequest, InputsError> {
    let inputs = ctx.deps.inputs.gateway(&snapshot.gateway).await?;
    let asked = &snapshot.gateway.configuration;
    Ok(LoadBalancerRequest {
        marks: marks(ctx, snapshot),
        owner: inputs.owner,
        region: asked.region.clone(),
        is_public: asked.public_ip,
        certificate: asked.certificate.clone(),
    })
}
