//! Fleets: they are kept at their size, and end when nothing is left of them.

use std::sync::Arc;

use dstack_model::fleets::FleetStatus;
use dstack_model::instances::InstanceStatus;
use dstack_plan::fleets::{fits, is_cluster, is_of_clouds};
use dstack_plan::lifecycle::fleet::{Decision, Ending, Facts, MAX_ATTEMPTS, Master, Node, decide};
use dstack_store::rows::{FleetRow, InstanceRow};
use dstack_store::{Commit, EntityRef, FleetSnapshot, NewEvent, Put};
use dstack_units::{FleetId, InstanceId, Time};

use crate::Result;
use crate::context::Context;
use crate::events::{self, Events, upper};

/// Brings a fleet to its size, and ends one that is to be ended once its instances and runs are gone.
pub async fn reconcile(ctx: &Arc<Context>, id: FleetId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.fleet(id).await? else {
        return Ok(());
    };
    if snapshot.fleet.deleted {
        ctx.finished(EntityRef::Fleet(id));
        return Ok(());
    }
    let now = ctx.now();
    let decision = decide(&facts(&snapshot), now);
    let row = row(ctx, &snapshot, &decision, now);
    let commit = commit(ctx, &snapshot, &decision, &row, now);
    ctx.wakes.wake_at(EntityRef::Fleet(id), row.next_wake_at);
    ctx.commit(("fleet.commit.before", "fleet.commit.after"), commit)
        .await?;
    wake_waiting(ctx, &snapshot);
    Ok(())
}

/// Those of a cluster that wait for the first one.
fn wake_waiting(ctx: &Context, snapshot: &FleetSnapshot) {
    if !is_cluster(&snapshot.fleet.spec) {
        return;
    }
    let waits = |row: &&InstanceRow| row.status == InstanceStatus::Pending && row.busy_blocks == 0;
    for row in snapshot.instances.iter().filter(waits) {
        ctx.wakes.wake(EntityRef::Instance(row.id));
    }
}

fn facts(snapshot: &FleetSnapshot) -> Facts {
    let (fleet, spec) = (&snapshot.fleet, &snapshot.fleet.spec);
    let nodes = snapshot.instances.iter().map(|row| Node {
        id: row.id,
        num: row.instance_num,
        status: row.status,
        reason: row.termination_reason,
        changed_at: row.last_processed_at,
        placed: row.job_provisioning_data.is_some(),
        taken: row.busy_blocks > 0,
        fits: fits(spec, row.offer.as_deref(), row.job_provisioning_data.as_deref()),
    });
    // Made by runs of versions before 0.20: they come and go with these.
    let kept = is_of_clouds(spec) && !spec.autocreated;
    Facts {
        status: fleet.status,
        size: spec.configuration.nodes.filter(|_| kept),
        cluster: is_cluster(spec),
        created_at: fleet.created_at,
        attempt: fleet.consolidation_attempt,
        consolidated_at: fleet.last_consolidated_at,
        master: fleet.current_master_instance_id,
        nodes: sorted(nodes.collect()),
        runs: snapshot.active_runs.len(),
    }
}

fn sorted(mut nodes: Vec<Node>) -> Vec<Node> {
    nodes.sort_by_key(|node| (node.num, node.id));
    nodes
}

/// The fleet as it shall be; the first instance of a cluster may be one that is created with it.
fn row(ctx: &Context, snapshot: &FleetSnapshot, decision: &Decision, now: Time) -> FleetRow {
    let before = &snapshot.fleet;
    let mut row = FleetRow {
        consolidation_attempt: decision.attempt,
        last_consolidated_at: if decision.consolidated {
            Some(now)
        } else {
            before.last_consolidated_at
        },
        deadline_at: decision.wait.deadline,
        next_wake_at: decision.wait.wake_at,
        waiting_for: Some(decision.wait.reason.clone()).filter(|reason| !reason.is_empty()),
        current_master_instance_id: match decision.master {
            Some(Master::There(id)) => Some(id),
            Some(Master::New(_)) => Some(new_id(ctx, now)),
            None => None,
        },
        ..before.clone()
    };
    if decision.gone {
        row.status = FleetStatus::Terminated;
        row.deleted = true;
        row.deleted_at = Some(now);
    }
    row
}

fn new_id(ctx: &Context, now: Time) -> InstanceId {
    ctx.deps.random.ordered_uuid(now).into()
}

fn commit(ctx: &Context, snapshot: &FleetSnapshot, decision: &Decision, row: &FleetRow, now: Time) -> Commit {
    let maker = Events::system(now, ctx.deps.random.clone());
    let mut commit = Commit::default();
    for ending in &decision.end {
        end(snapshot, ending, &maker, &mut commit);
    }
    for id in &decision.forget {
        if let Some(before) = find(snapshot, *id) {
            commit.puts.push(Put::Instance(InstanceRow {
                deleted: true,
                deleted_at: Some(now),
                ..before.clone()
            }));
        }
    }
    for num in &decision.create {
        let id = match decision.master {
            Some(Master::New(master)) if master == *num => row.current_master_instance_id,
            _ => None,
        };
        let id = id.unwrap_or_else(|| new_id(ctx, now));
        let new = InstanceRow::wanted(id, row, *num, now);
        commit.events.push(maker.event(
            "Instance created to meet target fleet node count. Status: PENDING",
            vec![events::instance(&new)],
        ));
        tracing::info!(
            fleet.name = row.name,
            instance.name = new.name,
            "an instance is created for a fleet"
        );
        commit.puts.push(Put::Instance(new));
    }
    commit.events.extend(of_fleet(snapshot, decision, row, &maker));
    if !commit.is_empty() || *row != snapshot.fleet {
        commit.puts.push(Put::Fleet(FleetRow {
            last_processed_at: now,
            ..row.clone()
        }));
    }
    commit
}

/// What happens to the fleet itself.
fn of_fleet(snapshot: &FleetSnapshot, decision: &Decision, row: &FleetRow, maker: &Events) -> Vec<NewEvent> {
    let mut texts = Vec::new();
    let before = &snapshot.fleet;
    if before.status != row.status {
        texts.push(format!(
            "Fleet status changed {} -> {}",
            upper(&before.status),
            upper(&row.status)
        ));
    }
    if decision.gave_up {
        tracing::warn!(
            fleet.name = row.name,
            "a fleet cannot be brought to its size, and is left as it is"
        );
        texts.push(format!(
            "Fleet consolidation stopped after {MAX_ATTEMPTS} attempts. Update the fleet to resume"
        ));
    }
    let event = |text| maker.event(text, vec![events::fleet(row)]);
    texts.into_iter().map(event).collect()
}

fn find(snapshot: &FleetSnapshot, id: InstanceId) -> Option<&InstanceRow> {
    snapshot.instances.iter().find(|row| row.id == id)
}

fn end(snapshot: &FleetSnapshot, ending: &Ending, maker: &Events, commit: &mut Commit) {
    let Some(before) = find(snapshot, ending.id) else {
        return;
    };
    let row = InstanceRow {
        status: InstanceStatus::Terminating,
        termination_reason: Some(ending.reason),
        termination_reason_message: Some(ending.message.to_owned()),
        last_processed_at: maker.now,
        next_wake_at: Some(maker.now),
        waiting_for: Some("the instance to be ended".to_owned()),
        ..before.clone()
    };
    tracing::info!(instance.name = row.name, reason = %ending.reason.as_str(), "an instance of a fleet is ended");
    commit.events.push(maker.instance_status(before, &row));
    commit.puts.push(Put::Instance(row));
}
