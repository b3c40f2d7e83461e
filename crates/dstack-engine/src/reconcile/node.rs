//! Instances that a fleet wants for itself: of which offers they are made.

use std::sync::Arc;

use dstack_plan::fleets::{
    ClusterAnchor, cluster_anchor, is_cluster, none_for_fleet, own_capacity, own_idle_for,
};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::offers::Unanswered;
use dstack_store::rows::{FleetRow, InstanceRow, OperationKind, OperationRow};
use dstack_store::{EntityRef, InstanceSnapshot, Sealed};

use crate::Result;
use crate::context::Context;
use crate::offer_cache;
use crate::operations::instances::OfferAttempts;
use crate::operations::intend;
use crate::wakes::Key;

/// Whether an instance of a fleet is available from the clouds.
pub(super) enum Provisioning {
    /// No cloud has it, for this reason.
    Impossible(String),
    /// Not known yet: the instance is woken when it is.
    Pending(Wait),
    /// It is: what is to be asked of the clouds.
    Ready(Box<OperationRow>),
}

/// Looks for offers. Calls no cloud.
pub(super) async fn plan_provisioning(
    ctx: &Arc<Context>,
    snapshot: &InstanceSnapshot,
) -> Result<Provisioning> {
    let (row, Some(fleet)) = (&snapshot.instance, &snapshot.fleet) else {
        return Ok(pending(WaitReason::Fleet));
    };
    let first = first_of_cluster(ctx, fleet).await?;
    let place = match anchor_of(row, fleet, first.as_ref()) {
        ClusterAnchor::Undecided => return Ok(pending(to_be_made(first.as_ref()))),
        ClusterAnchor::None => None,
        ClusterAnchor::At(place) => Some(place),
    };
    let query = own_capacity(&fleet.spec, place);
    let asker = Key::Entity(EntityRef::Instance(row.id));
    let offers = offer_cache::available(ctx, asker, row.project_id, &query, place);
    let Some(offers) = offers.filter(|offers| !offers.are_awaited()) else {
        return Ok(pending(WaitReason::Offers));
    };
    if offers.best.is_empty() {
        return Ok(Provisioning::Impossible(none_for_fleet(0, &[])));
    }
    let attempts = OfferAttempts::of(&offers, own_idle_for(&fleet.spec))
        .for_fleet()
        .then_late(Unanswered::after(&query, &offers))
        .reserved(query.requirements.reservation);
    let operation = OperationRow {
        notes: Some(Sealed::new(attempts.to_json())),
        ..intend(ctx, EntityRef::Instance(row.id), OperationKind::Create, ctx.now())
    };
    Ok(Provisioning::Ready(Box::new(operation)))
}

fn pending(reason: WaitReason) -> Provisioning {
    Provisioning::Pending(Wait::indefinite(reason))
}

/// The instance that the others of a cluster go beside, unless it is being ended.
async fn first_of_cluster(ctx: &Context, fleet: &FleetRow) -> Result<Option<InstanceRow>> {
    let chosen = fleet
        .current_master_instance_id
        .filter(|_| is_cluster(&fleet.spec));
    let Some(chosen) = chosen else {
        return Ok(None);
    };
    let found = ctx.deps.store.instance(chosen).await?.map(|found| found.instance);
    Ok(found.filter(|row| row.status().is_active()))
}

/// The first instance of a cluster goes anywhere, the others beside it: they wait until it is made. The fleet says which is
/// the first, and wakes the others.
fn anchor_of<'a>(row: &InstanceRow, fleet: &FleetRow, first: Option<&'a InstanceRow>) -> ClusterAnchor<'a> {
    let chosen = fleet.current_master_instance_id;
    if !is_cluster(&fleet.spec) || chosen == Some(row.id) {
        return ClusterAnchor::None;
    }
    let first = first.map(|first| (first.id, first.job_provisioning_data.as_deref()));
    match cluster_anchor(first.into_iter(), chosen) {
        ClusterAnchor::None => ClusterAnchor::Undecided, // another first one is to be chosen
        known => known,
    }
}

fn to_be_made(first: Option<&InstanceRow>) -> WaitReason {
    match first {
        Some(first) => WaitReason::ClusterMasterMade {
            instance: first.name.clone(),
        },
        None => WaitReason::ClusterMasterChosen,
    }
}
