//! New instances for jobs that no existing one can take.

use std::sync::Arc;

use dstack_model::fleets::FleetStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_plan::fleets::{
    Beside, Fleet, NoCapacity, all_failed, available, beside, best, eligible, idle_for, is_cluster,
    new_capacity, obstacle, refusal,
};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::placement::Request;
use dstack_store::rows::{FleetRow, InstanceRow, JobRow, OperationKind, OperationRow, RunRow};
use dstack_store::{Changes, EventMaker, Json, PlacementSnapshot, RunSnapshot};
use dstack_units::{FleetId, Time};

use super::schedule::candidates;
use crate::Result;
use crate::context::Context;
use crate::market;
use crate::operations::instances::{Creation, intend};
use crate::wakes::Key;

/// Whether a new instance is available for a job.
pub(super) enum Provisioning {
    /// It is not, for this reason.
    Impossible(String),
    /// Not known yet: scheduling is woken when it is.
    Pending,
    /// It is, of one of these offers.
    Ready(Box<New>),
}

/// What is to be made.
pub(super) struct New {
    /// In which fleet.
    pub(super) fleet: FleetId,
    creation: Creation,
}

/// The fleets of a project that are not being ended, with their instances: those with instances first as dstack 0.22.5 has
/// them, oldest first otherwise.
pub fn fleets<'a>(placement: &'a PlacementSnapshot, project: Option<&'a str>) -> Vec<Fleet<'a>> {
    let instances = candidates(placement);
    let mut fleets: Vec<Fleet<'a>> = placement
        .fleets
        .iter()
        .filter(|row| row.status() != FleetStatus::Terminating)
        .map(|row| Fleet {
            id: row.id,
            name: &row.name,
            project,
            own: true,
            spec: &row.spec,
            master: match cluster(placement, row) {
                Beside::First(place) => Some(place),
                Beside::Nobody | Beside::Unknown => None,
            },
            instances: instances
                .iter()
                .filter(|instance| instance.fleet_id == row.id)
                .copied()
                .collect(),
        })
        .collect();
    fleets.sort_by_key(|fleet| fleet.instances.is_empty());
    fleets
}

/// Beside whom a new instance of the fleet goes.
fn cluster<'a>(placement: &'a PlacementSnapshot, fleet: &FleetRow) -> Beside<'a> {
    if !is_cluster(&fleet.spec) {
        return Beside::Nobody;
    }
    let alive = placement
        .instances
        .iter()
        .filter(|row| row.fleet_id == Some(fleet.id) && row.status().is_active());
    let places = alive.map(|row| (row.id, row.job_provisioning_data.as_deref()));
    beside(places, fleet.current_master_instance_id)
}

/// Whether nobody knows yet where the instances of the fleet will be.
fn undecided(placement: &PlacementSnapshot, fleet: FleetId) -> bool {
    let row = placement.fleets.iter().find(|row| row.id == fleet);
    row.is_some_and(|row| cluster(placement, row) == Beside::Unknown)
}

/// Where the first node of a replica is; the others go beside it.
pub(super) fn master<'a>(job: &JobRow, snapshot: &'a RunSnapshot) -> Option<&'a JobRow> {
    let first = |other: &&JobRow| {
        other.replica_num == job.replica_num
            && other.job_num == 0
            && other.submission_num == job.submission_num
    };
    snapshot.jobs.iter().find(first).filter(|_| job.job_num != 0)
}

/// Looks for a fleet that could get a new instance for the job.
pub(super) fn plan_provisioning(
    ctx: &Arc<Context>,
    placement: &PlacementSnapshot,
    request: &Request<'_>,
    job: &JobRow,
) -> Provisioning {
    let fleets = fleets(placement, None);
    let mut open = Vec::new();
    let mut offers: Vec<Vec<Offer>> = Vec::new();
    let mut reservations = Vec::new();
    let (mut later, mut full) = (false, None);
    let eligible = eligible(request, &fleets);
    for one in &eligible {
        let query = match new_capacity(request, one.fleet) {
            Ok(query) => query,
            Err(reason @ (NoCapacity::Full { .. } | NoCapacity::Conflict(_))) => {
                full.get_or_insert_with(|| obstacle(one.fleet.name, &reason));
                continue;
            }
            Err(_) => continue,
        };
        match market::offers(ctx, Key::Schedule(job.project_id), job.project_id, &query) {
            Some(known) => {
                offers.push(available(&known, one.fleet.master.or(request.master)));
                reservations.push(query.requirements.reservation);
                open.push(one);
            }
            None => later = true,
        }
    }
    if later {
        return Provisioning::Pending;
    }
    let chosen = best(&open, &offers)
        .and_then(|at| Some((open.get(at)?.fleet, offers.get(at)?, reservations.get(at)?)));
    let Some((fleet, offers, reservation)) = chosen else {
        return Provisioning::Impossible(refusal(request, &fleets, &eligible, full.as_deref()));
    };
    if undecided(placement, fleet.id) {
        return Provisioning::Pending;
    }
    if offers.is_empty() {
        return Provisioning::Impossible(all_failed(fleet.name, 0, 0, &[]));
    }
    let idle_for = match idle_for(fleet.spec, request.run_spec) {
        Ok(idle_for) => idle_for,
        Err(conflict) => {
            let obstacle = obstacle(fleet.name, &conflict.into());
            return Provisioning::Impossible(refusal(request, &fleets, &eligible, Some(&obstacle)));
        }
    };
    Provisioning::Ready(Box::new(New {
        fleet: fleet.id,
        creation: Creation::of(offers, ctx.deps.settings.offers_tried, idle_for)
            .reserved(reservation.clone()),
    }))
}

/// Writes down that an instance is to be made for the job, which has it from now on, and what is asked of the cloud. The
/// row is added to `placement`.
pub(super) async fn provision(
    ctx: &Context,
    run: &RunRow,
    before: &JobRow,
    new: New,
    placement: &mut PlacementSnapshot,
) -> Result<()> {
    let Some(at) = placement.fleets.iter().position(|fleet| fleet.id == new.fleet) else {
        return Ok(());
    };
    let Some(fleet) = placement.fleets.get(at) else {
        return Ok(());
    };
    let now = ctx.now();
    let counted = counted(fleet, now);
    let num = free_num(placement, fleet.id);
    let id = ctx.deps.random.ordered_uuid(now).into();
    let mut instance = InstanceRow::pending(id, fleet, num, now);
    // Nobody else gets it.
    instance.busy_blocks = 1;
    instance.wait(Wait::briefly(now, WaitReason::CloudAsked));
    let mut job = before.clone();
    job.reserve(&instance);
    let operation = OperationRow {
        result: Some(Json::new(new.creation.to_json())),
        ..intend(ctx, instance.id, OperationKind::CreateInstance, now)
    };
    tracing::info!(job.id = %job.id, job.name = %job.job_name, run.name = run.run_name, instance.name, "a new instance is made");
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    changes.touch(counted.clone());
    changes.insert_silently(instance.clone());
    changes.update(before, job);
    changes.intend(operation);
    let commit = changes.into_commit();
    ctx.commit(("capacity.commit.before", "capacity.commit.after"), commit)
        .await?;
    if let Some(fleet) = placement.fleets.get_mut(at) {
        *fleet = counted;
        fleet.version += 1;
    }
    instance.version = 1;
    placement.instances.push(instance);
    Ok(())
}

/// The fleet as it is written whenever its instances were counted to decide about one of them: of two who count at the same
/// time, one counts again. So a fleet is never larger or smaller than it may be.
pub(super) fn counted(fleet: &FleetRow, now: Time) -> FleetRow {
    let mut counted = fleet.clone();
    counted.last_processed_at = now;
    counted
}

/// The lowest number that no instance of the fleet has.
fn free_num(placement: &PlacementSnapshot, fleet: FleetId) -> i64 {
    let taken: std::collections::BTreeSet<i64> = placement
        .instances
        .iter()
        .filter(|row| row.fleet_id == Some(fleet))
        .map(|row| row.instance_num)
        .collect();
    (0..).find(|num| !taken.contains(num)).unwrap_or(0)
}
