//! Durable calls to clouds: placement groups are made and deleted; and in which of them a machine is made.
//!
//! An instance is in a group from the moment at which that is written down, before its machine is asked for. Whoever writes that
//! writes the fleet as well: of two who choose at the same time, one chooses again, so that a fleet has one group at a time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Backend, ComputeError, Known, Lifecycle, Marks, Owner, Placement, PlacementRequest, placement_name,
};
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::placement::{PlacementGroupConfiguration, PlacementStrategy};
use dstack_plan::lifecycle::placement_group::PlacementGroupStatus;
use dstack_plan::placement_groups::{Choice, Group, are_needed, choose, is_there, suits};
use dstack_store::rows::{FleetRow, InstanceRow, OperationKind, OperationRow, PlacementGroupRow};
use dstack_store::{Changes, EventMaker, FleetSnapshot, InstanceSnapshot, PlacementGroupSnapshot};
use dstack_units::PlacementGroupId;

use super::clouds::{backend, refused, remove};
use super::creation::{self, Making};
use super::{Step, Subject, last_of};
use crate::Result;
use crate::context::Context;
use crate::inputs::InputsError;

/// The group wakes a machine that waits for it; where another server drives the group, the machine looks this often.
pub(super) const GROUP_INTERVAL: Duration = Duration::from_secs(5);

#[async_trait]
impl Subject for PlacementGroupSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => create(ctx, self, operation).await,
            OperationKind::Remove => delete(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

async fn create(ctx: &Context, snapshot: &PlacementGroupSnapshot, operation: OperationRow) -> Result<Step> {
    let making = Making {
        what: "a placement group",
        account: (snapshot.group.project_id, snapshot.group.configuration.backend),
        is_wanted: snapshot.group.status().is_wanted(),
        known: known(ctx, snapshot),
        lifecycle_of: placements_of,
    };
    let cloud = cloud_of(ctx, &snapshot.group);
    creation::make(ctx, operation, making, cloud, request(ctx, snapshot)).await
}

async fn delete(ctx: &Context, snapshot: &PlacementGroupSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(pieces) = creation::noted(last_of(&snapshot.operations, OperationKind::Create)) else {
        return creation::unreadable(ctx, operation).await;
    };
    let cloud = cloud_of(ctx, &snapshot.group).await;
    remove::<Placement>(
        ctx,
        operation,
        pieces,
        &known(ctx, snapshot),
        cloud,
        placements_of,
    )
    .await
}

fn placements_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<Placement>> {
    backend.placements()
}

fn known(ctx: &Context, snapshot: &PlacementGroupSnapshot) -> Known<Placement> {
    Known {
        marks: marks(ctx, &snapshot.group),
        site: snapshot.group.configuration.region.clone(),
        place: last_of(&snapshot.operations, OperationKind::Create).and_then(creation::made),
    }
}

fn marks(ctx: &Context, row: &PlacementGroupRow) -> Marks {
    Marks {
        installation: ctx.deps.settings.installation,
        key: row.id.uuid(),
        name: row.name.clone(),
        project: row.project_id,
    }
}

async fn cloud_of(ctx: &Context, row: &PlacementGroupRow) -> Result<Arc<dyn Backend>, ComputeError> {
    let able = |backend: &dyn Backend| backend.placements().is_some();
    backend(
        ctx,
        row.project_id,
        row.configuration.backend,
        "placement groups",
        able,
    )
    .await
}

async fn request(ctx: &Context, snapshot: &PlacementGroupSnapshot) -> Result<PlacementRequest, InputsError> {
    let row = &snapshot.group;
    let owner = match snapshot.instances.first() {
        Some(instance) => {
            let inputs = ctx.deps.inputs.machine(instance, Some(&snapshot.fleet));
            inputs.await?.owner
        }
        None => Owner::default(),
    };
    Ok(PlacementRequest {
        marks: marks(ctx, row),
        owner,
        region: row.configuration.region.clone(),
        instance_type: row.instance_type.clone(),
    })
}

/// In which group a machine is made.
pub(super) enum GroupForMachine {
    /// The instance is made outside of any group.
    None,
    /// In the one of this name, which is there.
    In(String),
    /// In one that is being made.
    Underway,
    /// Which one it is was written down just now.
    Chosen,
    /// There is none for this offer.
    Refused(ComputeError),
}

/// In which group a machine of an offer is made, which `cloud` makes. `is_begun`: something of it may be there, in the group that was
/// chosen for it.
pub(super) async fn group_for(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    offer: &Offer,
    cloud: &dyn Backend,
    is_begun: bool,
) -> Result<GroupForMachine> {
    let can = cloud.capabilities().placement_groups && cloud.placements().is_some();
    let Some(fleet) = &snapshot.fleet else {
        return Ok(GroupForMachine::None);
    };
    if !are_needed(&fleet.spec, offer, can) {
        return Ok(GroupForMachine::None);
    }
    match chosen(ctx, snapshot, offer, is_begun).await? {
        Some(known) => Ok(known),
        None => choose_group(ctx, snapshot, fleet, offer).await,
    }
}

/// The group that the instance is in already, if that is one for this offer.
async fn chosen(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    offer: &Offer,
    is_begun: bool,
) -> Result<Option<GroupForMachine>> {
    let Some(id) = snapshot.instance.placement_group_id else {
        return Ok(None);
    };
    let found = ctx.deps.store.placement_group(id).await?;
    let Some(PlacementGroupSnapshot { group, instances, .. }) = found else {
        return Ok(None);
    };
    let own = &snapshot.instance;
    let others = instances.iter().filter(|row| is_other(row, own)).count();
    let is_suited = is_begun || suits(&group.instance_type, others, offer);
    let is_for_offer = is_there(&group.configuration, offer) && is_suited;
    Ok(match group.status() {
        PlacementGroupStatus::Active if is_for_offer => {
            Some(GroupForMachine::In(placement_name(&marks(ctx, &group))))
        }
        PlacementGroupStatus::Submitted if is_for_offer => Some(GroupForMachine::Underway),
        PlacementGroupStatus::Failed if is_for_offer && group.instance_type == offer.instance.name => {
            let message = group.status_message().unwrap_or_default().to_owned();
            Some(GroupForMachine::Refused(ComputeError::Refused(message)))
        }
        _ => None,
    })
}

/// Writes down in which group the instance is from now on.
async fn choose_group(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    fleet: &FleetRow,
    offer: &Offer,
) -> Result<GroupForMachine> {
    let now = ctx.now();
    let Some(fleet) = ctx.deps.store.fleet(fleet.id).await? else {
        return Ok(GroupForMachine::None);
    };
    let own = |row: &&InstanceRow| row.id == snapshot.instance.id;
    let Some(instance) = fleet.instances.iter().find(own) else {
        return Ok(GroupForMachine::Underway);
    };
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let id = match choose(
        &groups(&fleet, instance),
        offer,
        has_others_outside(&fleet, instance),
    ) {
        Choice::None => return Ok(GroupForMachine::None),
        Choice::Elsewhere(id) => return Ok(GroupForMachine::Refused(elsewhere(&fleet, id))),
        Choice::Its(id) => id,
        Choice::New { replaces } => {
            let left = fleet.placement_groups.iter().find(|row| Some(row.id) == replaces);
            if let Some(before) = left {
                let mut group = before.clone();
                group.set_aside(now)?;
                changes.update(before, group);
            }
            let group = new_group(ctx, &fleet.fleet, offer);
            tracing::info!(
                fleet.name = group.name,
                region = group.configuration.region,
                "a placement group is made"
            );
            let id = group.id;
            changes.insert_silently(group);
            id
        }
    };
    let mut row = instance.clone();
    row.placement_group_id = Some(id);
    changes.update(instance, row);
    let mut counted = fleet.fleet.clone();
    counted.last_processed_at = now;
    changes.touch(counted);
    let names = ("placement.choose.before", "placement.choose.after");
    ctx.commit(names, changes.into_commit()).await?;
    Ok(GroupForMachine::Chosen)
}

fn new_group(ctx: &Context, fleet: &FleetRow, offer: &Offer) -> PlacementGroupRow {
    let now = ctx.now();
    let configuration = PlacementGroupConfiguration {
        backend: offer.backend,
        region: offer.region.to_string(),
        placement_strategy: PlacementStrategy::Cluster,
    };
    let id = ctx.deps.random.ordered_uuid(now).into();
    PlacementGroupRow::submitted(id, fleet, configuration, offer.instance.name.clone(), now)
}

/// Other instances of the fleet of which something may be there.
fn others<'a>(fleet: &'a FleetSnapshot, own: &'a InstanceRow) -> impl Iterator<Item = &'a InstanceRow> {
    fleet.instances.iter().filter(|row| is_other(row, own))
}

/// Whether something of another instance may be there.
fn is_other(row: &InstanceRow, own: &InstanceRow) -> bool {
    row.id != own.id && row.status() != InstanceStatus::Terminated
}

fn groups<'a>(fleet: &'a FleetSnapshot, own: &'a InstanceRow) -> Vec<Group<'a>> {
    let groups = fleet.placement_groups.iter().map(|row| Group {
        id: row.id,
        status: row.status(),
        configuration: &row.configuration,
        instance_type: &row.instance_type,
        others: others(fleet, own)
            .filter(|other| other.placement_group_id == Some(row.id))
            .count(),
    });
    groups.collect()
}

fn has_others_outside(fleet: &FleetSnapshot, own: &InstanceRow) -> bool {
    others(fleet, own).any(|row| row.job_provisioning_data.is_some() && row.placement_group_id.is_none())
}

fn elsewhere(fleet: &FleetSnapshot, group: PlacementGroupId) -> ComputeError {
    let group = fleet.placement_groups.iter().find(|row| row.id == group);
    let place = group.map(|row| format!(" in {}/{}", row.configuration.backend, row.configuration.region));
    ComputeError::Skipped(format!(
        "the other machines of the fleet are in its placement group{}",
        place.unwrap_or_default()
    ))
}
