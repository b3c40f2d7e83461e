//! Durable calls to clouds: containers that are made and removed as one.
//!
//! Offers are tried as for a single instance ([`super::instances`]): of each, all containers are made, or none is left.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{Backend, ComputeError, Group, GroupRequest, Known, Lifecycle, Marks, Removal};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_plan::lifecycle::compute_group::is_wanted;
use dstack_store::rows::{ComputeGroupRow, FleetRow, InstanceRow, JobRow, OperationKind, OperationRow};
use dstack_store::{ComputeGroupSnapshot, EntityRef};
use dstack_units::ProjectId;
use serde_json::Value;

use super::clouds::{OperationJournal, done, refused, remove};
use super::instances::{self, Ask, NotAsked, OfOffers, OfferAttempts, cloud_of, unreadable, waiting_for};
use super::{Step, Subject, containers, last_of};
use crate::Result;
use crate::context::Context;
use crate::inputs::InputsError;

#[async_trait]
impl Subject for ComputeGroupSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => instances::create(ctx, self, operation).await,
            OperationKind::Remove => terminate(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

#[async_trait]
impl OfOffers for ComputeGroupSnapshot {
    fn entity(&self) -> EntityRef {
        EntityRef::ComputeGroup(self.group.id)
    }

    fn name(&self) -> &str {
        &self.group.name
    }

    fn project(&self) -> ProjectId {
        self.group.project_id
    }

    fn fleet(&self) -> Option<&FleetRow> {
        self.fleet.as_ref()
    }

    fn is_wanted(&self) -> bool {
        let members: Vec<_> = self.instances.iter().map(InstanceRow::status).collect();
        members.len() == self.group.members.len() && is_wanted(&members)
    }

    async fn waiting(&self, ctx: &Context) -> Result<Vec<(InstanceRow, JobRow)>> {
        let mut waiting = Vec::with_capacity(self.group.members.len());
        for id in self.group.members.iter() {
            let member = ctx.deps.store.instance(*id).await?;
            waiting.extend(member.iter().flat_map(waiting_for));
        }
        Ok(waiting)
    }

    async fn ask(
        &self,
        ctx: &Context,
        _attempts: &OfferAttempts,
        offer: &Offer,
        _cloud: &dyn Backend,
    ) -> Result<Ask, NotAsked> {
        let request = request(ctx, self, offer).await?;
        Ok(Ask::Group(Box::new(request)))
    }

    async fn clear(
        &self,
        ctx: &Context,
        journal: &OperationJournal<'_>,
        cloud: &dyn Backend,
        offer: &Offer,
    ) -> Result<Removal, ComputeError> {
        let groups = groups_of(cloud).ok_or(ComputeError::Unsupported("to remove groups of containers"))?;
        let known = Known {
            marks: marks(ctx, &self.group),
            site: offer.region.to_string(),
            place: None,
        };
        journal.remove(groups, &known).await
    }
}

/// What the cloud is asked for: what runs in each container, in the order of the nodes.
async fn request(
    ctx: &Context,
    snapshot: &ComputeGroupSnapshot,
    offer: &Offer,
) -> Result<GroupRequest, NotAsked> {
    let of_nobody = || InputsError::Refused("the nodes that it was made for have ended".to_owned());
    let mut request: Option<GroupRequest> = None;
    for id in snapshot.group.members.iter() {
        let member = ctx.deps.store.instance(*id).await.map_err(InputsError::from)?;
        let member = member.ok_or_else(of_nobody)?;
        let marks = marks(ctx, &snapshot.group);
        let one = containers::request(ctx, &member, marks, offer.clone()).await?;
        let group = request.get_or_insert_with(|| GroupRequest {
            marks: one.marks,
            owner: one.owner,
            offer: one.offer,
            requirements: one.requirements,
            workloads: Vec::new(),
        });
        group.workloads.push(one.workload);
    }
    Ok(request.ok_or_else(of_nobody)?)
}

/// Has the cloud remove all that it made.
async fn terminate(ctx: &Context, snapshot: &ComputeGroupSnapshot, operation: OperationRow) -> Result<Step> {
    let group = &snapshot.group;
    let Some(place) = group.provisioning_data.as_deref() else {
        return done(ctx, operation, Value::Null).await;
    };
    let pieces = match last_of(&snapshot.operations, OperationKind::Create) {
        None => Value::Null,
        Some(created) => match OfferAttempts::read(created) {
            Some(attempts) => attempts.pieces(),
            // There may be pieces beside the containers: not forgotten.
            None => return unreadable(ctx, operation).await,
        },
    };
    let cloud = cloud_of(ctx, group.project_id, place.backend).await;
    let known = Known {
        marks: marks(ctx, group),
        site: place.region.clone(),
        place: Some(place.clone()),
    };
    remove::<Group>(ctx, operation, pieces, &known, cloud, groups_of).await
}

/// What of a backend makes groups.
pub fn groups_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<Group>> {
    backend.groups()
}

/// What everything carries that is made for a group.
pub fn marks(ctx: &Context, row: &ComputeGroupRow) -> Marks {
    Marks {
        installation: ctx.deps.settings.installation,
        key: row.id.uuid(),
        name: row.name.clone(),
        project: row.project_id,
    }
}
