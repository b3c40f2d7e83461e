//! Gateways: their replicas are made, on hosts of SSH fleets or on machines of clouds, and end with them.

use std::sync::Arc;

use dstack_model::gateways::{
    GatewayConfiguration, GatewayLoadBalancer, GatewayReplicaConfiguration, GatewayStatus,
};
use dstack_plan::lifecycle::Wait;
use dstack_plan::lifecycle::gateway::{self as plan, Decision, Facts, Replica, decide};
use dstack_store::rows::{AgentAddress, GatewayReplicaRow, GatewayRow, InstanceRow, OperationKind};
use dstack_store::{Changes, EntityRef, EventMaker, GatewaySnapshot, Json};
use dstack_units::GatewayId;

use crate::Result;
use crate::context::Context;
use crate::operations::load_balancers::{self, ids, machines_set, serving};
use crate::operations::{self, last_of, progress};

/// Reached before and after a commit.
const COMMIT: (&str, &str) = ("gateway.commit.before", "gateway.commit.after");

/// Takes a gateway a step further.
pub async fn reconcile(ctx: &Arc<Context>, id: GatewayId) -> Result<()> {
    let entity = EntityRef::Gateway(id);
    let Some(snapshot) = ctx.deps.store.gateway(id).await? else {
        ctx.finished(entity);
        return Ok(());
    };
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut row = snapshot.gateway.clone();
    note_load_balancer(&snapshot, &mut row);
    match decide(&facts(&snapshot), now) {
        Decision::Wait(wait) => {
            let stored = row.stored_wait();
            row.wait(wait.or_stored(&stored, now));
        }
        Decision::MakeLoadBalancer(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Create, now));
            row.wait(wait);
        }
        Decision::SetMachines => {
            changes.intend(match last_of(&snapshot.operations, OperationKind::Prepare) {
                Some(before) => before.clone().anew(now),
                None => operations::intend(ctx, entity, OperationKind::Prepare, now),
            });
            row.wait(Wait::none());
            // What else is to be done follows.
            row.wake_at(now);
        }
        Decision::RemoveLoadBalancer(wait) => {
            changes.intend(operations::intend(ctx, entity, OperationKind::Remove, now));
            row.wait(wait);
        }
        Decision::Fail(reason) => {
            row.fail(reason, now)?;
            // Its replicas end.
            row.wake_at(now);
        }
        Decision::Make(count) => {
            make(ctx, &snapshot, count, &mut changes).await?;
            if row.status() == GatewayStatus::Submitted {
                row.provision(now)?;
            }
            row.wake_at(now);
        }
        Decision::End(places) => end(&snapshot, &places, &mut changes)?,
        Decision::Run => row.run(now)?,
        Decision::Gone => {
            for replica in snapshot.replicas {
                changes.remove_silently(replica);
            }
            changes.remove(row, "Gateway deleted");
            return ctx.commit(COMMIT, changes.into_commit()).await;
        }
    }
    ctx.wakes.wake_at(entity, row.next_wake_at());
    let is_rebalanced = row.load_balancer != snapshot.gateway.load_balancer;
    changes.update(&snapshot.gateway, row);
    let commit = changes.into_commit();
    let intended: Vec<OperationKind> = operations::intended(&snapshot.operations, &commit).collect();
    ctx.commit(COMMIT, commit).await?;
    for kind in intended {
        operations::ensure(ctx, entity, kind);
    }
    if is_rebalanced {
        // Those that end wait for the load balancer to let go of their machines.
        for replica in snapshot.replicas.iter().filter(|replica| !replica.is_over()) {
            ctx.wakes.wake(EntityRef::GatewayReplica(replica.id));
        }
    }
    Ok(())
}

/// What the calls for its load balancer have brought, and which machines may have requests of it: until it is told otherwise, those
/// that it was told of before as well.
fn note_load_balancer(snapshot: &GatewaySnapshot, row: &mut GatewayRow) {
    let Some(data) = load_balancers::made(&snapshot.operations) else {
        return;
    };
    let wanted = ids(&serving(snapshot));
    let known = row.load_balancer.as_deref().map(|known| known.machines.clone());
    let machines = match machines_set(&snapshot.operations) {
        Some(set) if set == wanted => set,
        set => {
            let mut all: Vec<String> = known.or(set).into_iter().flatten().chain(wanted).collect();
            all.sort_unstable();
            all.dedup();
            all
        }
    };
    row.hostname = Some(data.hostname.clone());
    let now = GatewayLoadBalancer { data, machines };
    if row.load_balancer.as_deref() != Some(&now) {
        row.load_balancer = Some(Json::new(now));
    }
}

/// New replicas, each on a free host or a machine of its own. The row of a host is written as it is: who chooses it at the same time finds
/// out.
async fn make(ctx: &Context, snapshot: &GatewaySnapshot, count: usize, changes: &mut Changes) -> Result<()> {
    let now = ctx.now();
    let mut numbers = free_numbers(&snapshot.replicas);
    let owner = ctx.deps.inputs.gateway(&snapshot.gateway).await?.owner;
    let mut insert = |changes: &mut Changes, host: Option<&InstanceRow>| {
        let number = numbers.next().unwrap_or_default();
        let replica = GatewayReplicaRow::submitted(
            ctx.deps.random.ordered_uuid(now).into(),
            &snapshot.gateway,
            number,
            configuration(&snapshot.gateway, &owner.project, number, host),
            host.map(|host| host.id),
            now,
        );
        changes.insert(replica, "Gateway replica created. Status: SUBMITTED");
    };
    if snapshot.gateway.configuration.fleet().is_none() {
        for _ in 0..count {
            insert(changes, None);
        }
        return Ok(());
    }
    let mut hosts: Vec<&InstanceRow> = free_hosts(snapshot).collect();
    // One that did not work comes last.
    hosts.sort_by_key(|host| has_failed(snapshot, host));
    for host in hosts.into_iter().take(count) {
        insert(changes, Some(host));
        changes.touch(host.clone());
    }
    Ok(())
}

/// Ends replicas that are not ending yet: they see by themselves that nobody wants them where the whole gateway ends.
fn end(snapshot: &GatewaySnapshot, places: &[usize], changes: &mut Changes) -> Result<()> {
    for place in places {
        if let Some(before) = snapshot.replicas.get(*place) {
            let mut row = before.clone();
            row.terminate(None, changes.maker().now)?;
            changes.update(before, row);
        }
    }
    Ok(())
}

fn facts(snapshot: &GatewaySnapshot) -> Facts {
    let replica = |row: &GatewayReplicaRow| Replica {
        status: row.status(),
        failure: row.status_message().map(str::to_owned),
        changed_at: row.last_processed_at,
    };
    let configuration = &snapshot.gateway.configuration;
    Facts {
        status: snapshot.gateway.status(),
        to_be_deleted: snapshot.gateway.to_be_deleted,
        wanted: wanted(configuration),
        replicas: snapshot.replicas.iter().map(replica).collect(),
        hosts: match configuration.fleet() {
            None => plan::Hosts::OfCloud,
            Some(name) if snapshot.hosts.is_none() => plan::Hosts::NoFleet(name.to_owned()),
            Some(name) => plan::Hosts::OfFleet {
                name: name.to_owned(),
                free: free_hosts(snapshot).count(),
            },
        },
        load_balancer: configuration.has_load_balancer().then(|| load_balancer(snapshot)),
        deadline: snapshot.gateway.deadline_at(),
    }
}

fn load_balancer(snapshot: &GatewaySnapshot) -> plan::LoadBalancer {
    let wanted = ids(&serving(snapshot));
    let is_set = match last_of(&snapshot.operations, OperationKind::Prepare) {
        // A new one has none.
        None => wanted.is_empty(),
        Some(_) => machines_set(&snapshot.operations) == Some(wanted),
    };
    plan::LoadBalancer {
        create: progress(&snapshot.operations, OperationKind::Create),
        remove: progress(&snapshot.operations, OperationKind::Remove),
        set_machines: progress(&snapshot.operations, OperationKind::Prepare),
        is_set,
    }
}

fn wanted(configuration: &GatewayConfiguration) -> usize {
    usize::try_from(configuration.replicas.unwrap_or(1)).unwrap_or_default()
}

/// Hosts that are set up and reached, and have no gateway. `instance_type` names one of them, where that is given.
fn free_hosts(snapshot: &GatewaySnapshot) -> impl Iterator<Item = &InstanceRow> {
    let named = snapshot.gateway.configuration.instance_type.as_deref();
    let is_free = move |row: &&InstanceRow| {
        row.status().is_available()
            && !row.unreachable
            && row
                .agent
                .as_deref()
                .is_some_and(|agent| matches!(agent, AgentAddress::Ssh { .. }))
            && named.is_none_or(|named| named == row.name)
            && !snapshot.taken.contains(&row.id)
    };
    snapshot.hosts.iter().flatten().filter(is_free)
}

/// Whether a replica of the gateway has failed on a host.
fn has_failed(snapshot: &GatewaySnapshot, host: &InstanceRow) -> bool {
    let mut replicas = snapshot.replicas.iter();
    replicas.any(|row| row.instance_id == Some(host.id) && row.is_over() && row.status_message().is_some())
}

/// Numbers that no replica has which is there, smallest first.
fn free_numbers(replicas: &[GatewayReplicaRow]) -> impl Iterator<Item = i64> {
    let used: Vec<i64> = replicas
        .iter()
        .filter(|row| !row.is_over())
        .map(|row| row.replica_num)
        .collect();
    (0..).filter(move |number| !used.contains(number))
}

fn configuration(
    gateway: &GatewayRow,
    project: &str,
    number: i64,
    host: Option<&InstanceRow>,
) -> GatewayReplicaConfiguration {
    let asked = &gateway.configuration;
    let machine = || format!("{}-{number}", gateway.name);
    GatewayReplicaConfiguration {
        project_name: project.to_owned(),
        instance_name: host.map_or_else(machine, |host| host.name.clone()),
        backend: asked.backend,
        region: asked.region.clone(),
        instance_type: asked.instance_type.clone(),
        public_ip: asked.public_ip,
        ssh_key_pub: String::new(),
        certificate: asked.certificate.clone(),
        tags: asked.tags.clone(),
    }
}
