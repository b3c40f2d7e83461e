//! Instances that a fleet wants for itself: of which offers they are made.

use std::sync::Arc;

use dstack_model::runs::JobProvisioningData;
use dstack_plan::fleets::{available, is_cluster, none_for_fleet, own_capacity, own_idle_for};
use dstack_plan::lifecycle::Wait;
use dstack_store::rows::{FleetRow, OperationKind, OperationRow};
use dstack_store::{EntityRef, InstanceSnapshot, Json};

use crate::Result;
use crate::context::Context;
use crate::market;
use crate::operations::instances::{Creation, intend};
use crate::wakes::Key;

/// Whether an instance of a fleet can be had.
pub(super) enum Outlook {
    /// No, and why.
    No(String),
    /// Not known yet: the instance is woken when it is.
    Later(Wait),
    /// Yes: what is to be asked of the clouds.
    Yes(Box<OperationRow>),
}

/// Looks for offers. Calls no cloud.
pub(super) async fn look(ctx: &Arc<Context>, snapshot: &InstanceSnapshot) -> Result<Outlook> {
    let (row, Some(fleet)) = (&snapshot.instance, &snapshot.fleet) else {
        return Ok(later("its fleet"));
    };
    let master = match beside(ctx, snapshot, fleet).await? {
        Beside::Unknown(whom) => return Ok(later(&whom)),
        Beside::Nobody => None,
        Beside::Master(place) => Some(place),
    };
    let query = own_capacity(&fleet.spec, master.as_deref());
    let asker = Key::Entity(EntityRef::Instance(row.id));
    let Some(offers) = market::offers(ctx, asker, row.project_id, &query) else {
        return Ok(later("the offers of the clouds"));
    };
    let offers = available(&offers, master.as_deref());
    if offers.is_empty() {
        return Ok(Outlook::No(none_for_fleet(0, &[])));
    }
    let creation = Creation::of(&offers, ctx.deps.settings.offers_tried, own_idle_for(&fleet.spec))
        .for_fleet()
        .reserved(query.requirements.reservation);
    let operation = OperationRow {
        result: Some(Json::new(creation.to_json())),
        ..intend(ctx, row.id, OperationKind::CreateInstance, ctx.now())
    };
    Ok(Outlook::Yes(Box::new(operation)))
}

fn later(what: &str) -> Outlook {
    let mut wait = Wait::for_nothing();
    wait.reason = what.to_owned();
    Outlook::Later(wait)
}

enum Beside {
    /// Anywhere.
    Nobody,
    /// Where the first instance of the cluster is.
    Master(Json<JobProvisioningData>),
    /// What is waited for until that is known.
    Unknown(String),
}

/// The first instance of a cluster goes anywhere, the others beside it: they wait until it is made. The fleet says which is
/// the first, and wakes the others.
async fn beside(ctx: &Context, snapshot: &InstanceSnapshot, fleet: &FleetRow) -> Result<Beside> {
    if !is_cluster(&fleet.spec) {
        return Ok(Beside::Nobody);
    }
    let Some(master) = fleet.current_master_instance_id else {
        return Ok(Beside::Unknown(
            "the first instance of the cluster to be chosen".to_owned(),
        ));
    };
    if master == snapshot.instance.id {
        return Ok(Beside::Nobody);
    }
    let master = ctx.deps.store.instance(master).await?.map(|found| found.instance);
    let Some(master) = master.filter(|row| row.status.is_active()) else {
        return Ok(Beside::Unknown(
            "another first instance of the cluster to be chosen".to_owned(),
        ));
    };
    match master.job_provisioning_data {
        Some(place) => Ok(Beside::Master(place)),
        None => Ok(Beside::Unknown(format!(
            "{}, the first instance of the cluster, to be made",
            master.name
        ))),
    }
}
