//! Fleets: they are kept at their size, and end when nothing is left of them.

use std::sync::Arc;

use dstack_model::instances::InstanceStatus;
use dstack_plan::fleets::{fits, is_cluster, is_of_clouds};
use dstack_plan::lifecycle::fleet::{Decision, Ending, Facts, MAX_ATTEMPTS, Master, Node, decide};
use dstack_store::rows::{FleetRow, InstanceRow};
use dstack_store::{Changes, Commit, EntityRef, EventMaker, FleetSnapshot, events};
use dstack_units::{FleetId, InstanceId, Time};

use crate::Result;
use crate::context::Context;

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
    let row = row(ctx, &snapshot, &decision, now)?;
    ctx.wakes.wake_at(EntityRef::Fleet(id), row.next_wake_at());
    let commit = commit(ctx, &snapshot, &decision, row, now)?;
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
    let waits = |row: &&InstanceRow| row.status() == InstanceStatus::Pending && row.busy_blocks == 0;
    for row in snapshot.instances.iter().filter(waits) {
        ctx.wakes.wake(EntityRef::Instance(row.id));
    }
}

fn facts(snapshot: &FleetSnapshot) -> Facts {
    let (fleet, spec) = (&snapshot.fleet, &snapshot.fleet.spec);
    let nodes = snapshot.instances.iter().map(|row| Node {
        id: row.id,
        num: row.instance_num,
        status: row.status(),
        reason: row.termination_reason(),
        changed_at: row.last_processed_at,
        placed: row.job_provisioning_data.is_some(),
        taken: row.busy_blocks > 0,
        fits: fits(spec, row.offer.as_deref(), row.job_provisioning_data.as_deref()),
    });
    // Made by runs of versions before 0.20: they come and go with these.
    let kept = is_of_clouds(spec) && !spec.autocreated;
    Facts {
        status: fleet.status(),
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
fn row(ctx: &Context, snapshot: &FleetSnapshot, decision: &Decision, now: Time) -> Result<FleetRow> {
    let mut row = snapshot.fleet.clone();
    row.consolidation_attempt = decision.attempt;
    if decision.consolidated {
        row.last_consolidated_at = Some(now);
    }
    row.current_master_instance_id = match decision.master {
        Some(Master::There(id)) => Some(id),
        Some(Master::New(_)) => Some(new_id(ctx, now)),
        None => None,
    };
    row.wait(decision.wait.clone());
    if decision.gone {
        row.finish(now)?;
    }
    Ok(row)
}

fn new_id(ctx: &Context, now: Time) -> InstanceId {
    ctx.deps.random.ordered_uuid(now).into()
}

fn commit(
    ctx: &Context,
    snapshot: &FleetSnapshot,
    decision: &Decision,
    mut row: FleetRow,
    now: Time,
) -> Result<Commit> {
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    for ending in &decision.end {
        end(snapshot, ending, &mut changes, now)?;
    }
    for id in &decision.forget {
        if let Some(before) = find(snapshot, *id) {
            let mut forgotten = before.clone();
            forgotten.delete(now);
            changes.update(before, forgotten);
        }
    }
    for num in &decision.create {
        let id = match decision.master {
            Some(Master::New(master)) if master == *num => row.current_master_instance_id,
            _ => None,
        };
        let id = id.unwrap_or_else(|| new_id(ctx, now));
        let new = InstanceRow::wanted(id, &row, *num, now);
        tracing::info!(
            fleet.name = row.name,
            instance.name = new.name,
            "an instance is created for a fleet"
        );
        changes.insert(
            new,
            "Instance created to meet target fleet node count. Status: PENDING",
        );
    }
    if decision.gone {
        set_groups_aside(snapshot, &mut changes, now)?;
    }
    // Whoever counts the instances of the fleet at the same time counts again.
    if !changes.is_empty() || decision.gave_up || row != snapshot.fleet {
        row.last_processed_at = now;
        changes.update(&snapshot.fleet, row.clone());
        changes.touch(row.clone());
    }
    if decision.gave_up {
        tracing::warn!(
            fleet.name = row.name,
            "a fleet cannot be brought to its size, and is left as it is"
        );
        let text =
            format!("Fleet consolidation stopped after {MAX_ATTEMPTS} attempts. Update the fleet to resume");
        changes.note(text, vec![events::fleet(&row)]);
    }
    Ok(changes.into_commit())
}

/// Its placement groups go with the fleet.
fn set_groups_aside(snapshot: &FleetSnapshot, changes: &mut Changes, now: Time) -> Result<()> {
    for before in &snapshot.placement_groups {
        if before.status().is_wanted() {
            let mut group = before.clone();
            group.set_aside(now)?;
            changes.update(before, group);
        }
    }
    Ok(())
}

fn find(snapshot: &FleetSnapshot, id: InstanceId) -> Option<&InstanceRow> {
    snapshot.instances.iter().find(|row| row.id == id)
}

fn end(snapshot: &FleetSnapshot, ending: &Ending, changes: &mut Changes, now: Time) -> Result<()> {
    let Some(before) = find(snapshot, ending.id) else {
        return Ok(());
    };
    let mut row = before.clone();
    row.terminate(ending.reason, Some(ending.message.to_owned()), now)?;
    tracing::info!(instance.name = row.name, reason = %ending.reason.as_str(), "an instance of a fleet is ended");
    changes.update(before, row);
    Ok(())
}
