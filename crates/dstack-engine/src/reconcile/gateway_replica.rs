//! Replicas of gateways, on hosts of SSH fleets and on machines of their own.

use std::sync::Arc;

use dstack_model::gateways::{GatewayReplicaProvisioningData, GatewayReplicaStatus, GatewayStatus};
use dstack_plan::lifecycle::gateway_replica::{Decision, Facts, Site, decide};
use dstack_store::rows::{AgentAddress, GatewayReplicaRow, OperationKind};
use dstack_store::{Changes, EntityRef, EventMaker, GatewayReplicaSnapshot, InstanceSnapshot, Json};
use dstack_units::GatewayReplicaId;

use crate::Result;
use crate::context::Context;
use crate::hosts::ReadyGateway;
use crate::operations::hosts::ready_host;
use crate::operations::{self, gateways, last_of, progress};

/// Takes a replica a step further.
pub async fn reconcile(ctx: &Arc<Context>, id: GatewayReplicaId) -> Result<()> {
    let entity = EntityRef::GatewayReplica(id);
    let Some(snapshot) = ctx.deps.store.gateway_replica(id).await? else {
        ctx.finished(entity);
        return Ok(());
    };
    if snapshot.replica.is_over() {
        ctx.finished(entity);
        return Ok(());
    }
    let host = gateways::host_of(ctx, &snapshot).await?;
    let changes = change(ctx, &snapshot, host.as_ref())?;
    let commit = changes.into_commit();
    let is_changed = !commit.is_empty();
    let intended: Vec<OperationKind> = operations::intended(&snapshot.operations, &commit).collect();
    let names = ("gateway-replica.commit.before", "gateway-replica.commit.after");
    ctx.commit(names, commit).await?;
    for kind in intended {
        operations::ensure(ctx, entity, kind);
    }
    if is_changed {
        ctx.wakes.wake(EntityRef::Gateway(snapshot.gateway.id));
    }
    Ok(())
}

fn change(
    ctx: &Context,
    snapshot: &GatewayReplicaSnapshot,
    host: Option<&InstanceSnapshot>,
) -> Result<Changes> {
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut row = snapshot.replica.clone();
    let entity = EntityRef::GatewayReplica(row.id);
    match decide(&facts(ctx, snapshot, host), now) {
        Decision::Wait(wait) => {
            let stored = row.stored_wait();
            row.wait(wait.or_stored(&stored, now));
        }
        Decision::SetUp(wait) => {
            let before = last_of(&snapshot.operations, OperationKind::Prepare);
            changes.intend(match before {
                Some(before) => before.clone().anew(now),
                None => operations::intend(ctx, entity, OperationKind::Prepare, now),
            });
            if row.status() == GatewayReplicaStatus::Submitted {
                row.provision(now)?;
            }
            row.wait(wait);
        }
        Decision::MakeMachine(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Create, now));
            row.provision(now)?;
            row.wait(wait);
        }
        Decision::Ready => {
            row.run(place(snapshot, host), now)?;
            row.wake_at(now);
        }
        Decision::End(reason) => row.terminate(reason, now)?,
        Decision::TakeOff(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Release, now));
            row.wait(wait);
        }
        Decision::RemoveMachine(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Remove, now));
            row.wait(wait);
        }
        Decision::Gone => row.finish(now)?,
    }
    if row.status() == GatewayReplicaStatus::Running
        && let Some(ready) = gateways::ready(&snapshot.operations)
    {
        note_ready(&mut row, ready);
    }
    ctx.wakes.wake_at(entity, row.next_wake_at());
    changes.update(&snapshot.replica, row);
    Ok(changes)
}

/// What runs there now, and how it is reached: its machine may have moved.
fn note_ready(row: &mut GatewayReplicaRow, ready: ReadyGateway) {
    row.build = ready.build;
    let Some(reach) = ready.reach else {
        return;
    };
    if let Some(place) = row.provisioning_data.as_deref()
        && place.ip_address != reach.host.host
    {
        row.provisioning_data = Some(Json::new(GatewayReplicaProvisioningData {
            ip_address: reach.host.host.clone(),
            ..place.clone()
        }));
    }
    row.reach = Some(Json::new(reach));
}

fn facts(ctx: &Context, snapshot: &GatewayReplicaSnapshot, host: Option<&InstanceSnapshot>) -> Facts {
    let (replica, gateway) = (&snapshot.replica, &snapshot.gateway);
    let build = match replica.instance_id {
        Some(_) => host.and_then(ready_host).and_then(|ready| ready.build),
        None => gateways::ready(&snapshot.operations)
            .and_then(|ready| ready.arch)
            .and_then(|arch| ctx.deps.hosts.build(&arch)),
    };
    Facts {
        name: replica.name.clone(),
        status: replica.status(),
        is_wanted: !gateway.to_be_deleted && gateway.status() != GatewayStatus::Failed,
        site: match replica.instance_id {
            Some(_) => Site::Host {
                is_there: host.is_some(),
            },
            None => Site::Machine {
                create: progress(&snapshot.operations, OperationKind::Create),
                remove: progress(&snapshot.operations, OperationKind::Remove),
            },
        },
        is_outdated: build.is_some() && build != replica.build,
        is_silent: ctx.deps.services.is_gateway_silent(replica.id),
        is_lost: gateways::is_lost(&snapshot.operations),
        is_balanced: is_balanced(snapshot),
        prepare: progress(&snapshot.operations, OperationKind::Prepare),
        release: progress(&snapshot.operations, OperationKind::Release),
        deadline: replica.deadline_at(),
    }
}

/// Whether the load balancer of the gateway may send requests to its machine.
fn is_balanced(snapshot: &GatewayReplicaSnapshot) -> bool {
    let machine = snapshot.replica.provisioning_data.as_deref();
    let balancer = snapshot.gateway.load_balancer.as_deref();
    machine
        .zip(balancer)
        .is_some_and(|(machine, balancer)| balancer.machines.contains(&machine.instance_id))
}

/// Where it is, for users.
fn place(
    snapshot: &GatewayReplicaSnapshot,
    host: Option<&InstanceSnapshot>,
) -> GatewayReplicaProvisioningData {
    if let Some(machine) = gateways::machine(&snapshot.operations) {
        return machine;
    }
    let address = host.and_then(|host| host.instance.agent.as_deref());
    let reach = address.and_then(AgentAddress::reach);
    GatewayReplicaProvisioningData {
        instance_id: host.map(|host| host.instance.name.clone()).unwrap_or_default(),
        ip_address: reach.map(|reach| reach.host.host.clone()).unwrap_or_default(),
        region: snapshot.replica.configuration.region.clone(),
        availability_zone: None,
        backend_data: None,
    }
}
