//! Durable calls to clouds: placement groups are made and deleted; and in which of them a machine is made.
//!
//! An instance is in a group from the moment at which that is written down, before its machine is asked for. Whoever writes that
//! writes the fleet as well: of two who choose at the same time, one chooses again, so that a fleet has one group at a time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Backend, ComputeError, Known, Lifecycle, Marks, Owner, Placement, PlacementRequest, Removal,
    Step as Progress, placement_name,
};
use dstack_model::Decode;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::placement::{
    PlacementGroupConfiguration, PlacementGroupProvisioningData, PlacementStrategy,
};
use dstack_plan::lifecycle::placement_group::PlacementGroupStatus;
use dstack_plan::placement_groups::{Choice, Group, are_needed, choose, suits};
use dstack_store::rows::{FleetRow, InstanceRow, OperationKind, OperationRow, PlacementGroupRow};
use dstack_store::{Changes, EntityRef, EventMaker, FleetSnapshot, InstanceSnapshot, PlacementGroupSnapshot};
use dstack_system::chain;
use dstack_units::PlacementGroupId;
use serde::Serialize;
use serde_json::Value;

use super::clouds::{OperationJournal, backend, done, keep, keep_changed, not_yet, refused, remove};
use super::{Step, Subject, last_of, note_error};
use crate::Result;
use crate::context::Context;
use crate::inputs::InputsError;

/// Pause before a machine whose group is being made is looked at again.
pub(super) const GROUP_INTERVAL: Duration = Duration::from_secs(1);

/// How far the making of a group is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
struct Creation {
    /// What the backend has noted.
    pieces: Option<Value>,
    /// Why it is not made: what was noted is being removed.
    failure: Option<String>,
    /// What was made.
    made: Option<PlacementGroupProvisioningData>,
}

impl Creation {
    fn read(operation: &OperationRow) -> Option<Self> {
        match operation.notes.as_deref() {
            None => Some(Self::default()),
            Some(notes) => decode_strict(notes).ok(),
        }
    }

    fn pieces(&self) -> Value {
        self.pieces.clone().unwrap_or_default()
    }

    fn with_pieces(&self, pieces: &Value) -> Self {
        Self {
            pieces: Some(pieces.clone()).filter(|pieces| !pieces.is_null()),
            ..self.clone()
        }
    }

    fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// What the cloud made, by a creation that is done.
pub fn made(operation: &OperationRow) -> Option<PlacementGroupProvisioningData> {
    Creation::read(operation)?.made
}

#[async_trait]
impl Subject for PlacementGroupSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Context, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => create(ctx, self, operation).await,
            OperationKind::Remove => delete(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

async fn create(ctx: &Context, snapshot: &PlacementGroupSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(creation) = Creation::read(&operation) else {
        // Something may have been made: not given up.
        let error = "what was to be made is stored in a form that this version cannot read";
        note_error(ctx, operation, error.to_owned()).await?;
        return Ok(Step::Again);
    };
    let is_wanted = snapshot.group.status().is_wanted();
    let not_wanted = || "not wanted any more".to_owned();
    let failure = creation.failure.clone().or_else(|| (!is_wanted).then(not_wanted));
    let is_begun = creation.pieces.is_some();
    if let Some(failure) = &failure
        && !is_begun
    {
        return refused(ctx, operation, failure.clone()).await;
    }
    let cloud = match cloud_of(ctx, &snapshot.group).await {
        Ok(cloud) => cloud,
        // Nothing was asked.
        Err(error) if !is_begun && !error.is_transient() => {
            return refused(ctx, operation, error.details()).await;
        }
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    let Some(placements) = cloud.placements() else {
        let error = ComputeError::Unsupported("a placement group");
        return not_yet(ctx, operation, &error).await;
    };
    match failure {
        Some(failure) => clear(ctx, snapshot, operation, creation, (placements, failure)).await,
        None => ensure(ctx, snapshot, operation, creation, placements).await,
    }
}

/// The backend makes the next piece of the group.
async fn ensure(
    ctx: &Context,
    snapshot: &PlacementGroupSnapshot,
    operation: OperationRow,
    creation: Creation,
    placements: &dyn Lifecycle<Placement>,
) -> Result<Step> {
    let row = &snapshot.group;
    let request = match request(ctx, snapshot).await {
        Ok(request) => request,
        Err(InputsError::Transient(error)) => {
            let error = ComputeError::Unclear(chain(error.as_ref()).to_string());
            return not_yet(ctx, operation, &error).await;
        }
        Err(InputsError::Refused(error)) => return failed(ctx, operation, creation, error).await,
    };
    let embed = |pieces: &Value| creation.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, creation.pieces(), "cloud.create.before", embed)
        .expecting(row.project_id, row.configuration.backend);
    let made = journal.ensure(placements, &request).await;
    ctx.reached("cloud.create.after")?;
    let (operation, pieces) = journal.end()?;
    let creation = creation.with_pieces(&pieces);
    match made {
        Ok(Progress::Ready(data)) => {
            let made = Creation {
                made: Some(data),
                ..creation
            };
            done(ctx, operation, made.to_json()).await
        }
        Ok(Progress::Underway { again, .. }) => {
            keep_changed(ctx, operation, creation.to_json()).await?;
            Ok(Step::After(again))
        }
        Err(error) if error.is_transient() => {
            tracing::warn!(fleet.name = row.name, %error, "a cloud does not say whether it made a placement group");
            not_yet(ctx, operation, &error).await
        }
        Err(error) => failed(ctx, operation, creation, error.details()).await,
    }
}

/// It is not made: whatever was is removed.
async fn failed(ctx: &Context, operation: OperationRow, creation: Creation, error: String) -> Result<Step> {
    if creation.pieces.is_none() {
        return refused(ctx, operation, error).await;
    }
    let failed = Creation {
        failure: Some(error),
        ..creation
    };
    keep(ctx, operation, failed.to_json()).await?;
    Ok(Step::Next)
}

/// Removes what was made of a group that is not to be.
async fn clear(
    ctx: &Context,
    snapshot: &PlacementGroupSnapshot,
    operation: OperationRow,
    creation: Creation,
    (placements, failure): (&dyn Lifecycle<Placement>, String),
) -> Result<Step> {
    let creation = Creation {
        failure: Some(failure.clone()),
        ..creation
    };
    let embed = |pieces: &Value| creation.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, creation.pieces(), "cloud.remove.noted", embed);
    ctx.before_effect("cloud.clear.before", EntityRef::PlacementGroup(snapshot.group.id))?;
    let removed = journal.remove(placements, &known(ctx, snapshot)).await;
    ctx.reached("cloud.clear.after")?;
    let (operation, _) = journal.end()?;
    match removed {
        Ok(Removal::Gone) => refused(ctx, operation, failure).await,
        Ok(Removal::Underway { again }) => Ok(Step::After(again)),
        Err(error) => not_yet(ctx, operation, &error).await,
    }
}

async fn delete(ctx: &Context, snapshot: &PlacementGroupSnapshot, operation: OperationRow) -> Result<Step> {
    let created = last_of(&snapshot.operations, OperationKind::Create).and_then(Creation::read);
    let pieces = created.map(|creation| creation.pieces()).unwrap_or_default();
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
        place: last_of(&snapshot.operations, OperationKind::Create).and_then(made),
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
    /// In none.
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

/// In which group a machine of an offer is made, which `cloud` makes.
pub(super) async fn group_for(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    offer: &Offer,
    cloud: &dyn Backend,
) -> Result<GroupForMachine> {
    let can = cloud.capabilities().placement_groups && cloud.placements().is_some();
    let Some(fleet) = &snapshot.fleet else {
        return Ok(GroupForMachine::None);
    };
    if !are_needed(&fleet.spec, offer, can) {
        return Ok(GroupForMachine::None);
    }
    match chosen(ctx, snapshot, offer).await? {
        Some(known) => Ok(known),
        None => choose_group(ctx, snapshot, fleet, offer).await,
    }
}

/// The group that the instance is in already, if that is one for this offer.
async fn chosen(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    offer: &Offer,
) -> Result<Option<GroupForMachine>> {
    let Some(id) = snapshot.instance.placement_group_id else {
        return Ok(None);
    };
    let found = ctx.deps.store.placement_group(id).await?;
    let Some(group) = found.map(|found| found.group) else {
        return Ok(None);
    };
    let is_for_offer = suits(&group.configuration, offer);
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
    let is_there = |row: &&InstanceRow| row.id != own.id && row.status() != InstanceStatus::Terminated;
    fleet.instances.iter().filter(is_there)
}

fn groups<'a>(fleet: &'a FleetSnapshot, own: &'a InstanceRow) -> Vec<Group<'a>> {
    let groups = fleet.placement_groups.iter().map(|row| Group {
        id: row.id,
        status: row.status(),
        configuration: &row.configuration,
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
