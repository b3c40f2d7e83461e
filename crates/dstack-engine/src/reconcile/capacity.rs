//! New instances for jobs that no existing one can take.

use std::sync::Arc;

use dstack_model::fleets::FleetStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_plan::fleets::{Fleet, NoCapacity, all_failed, best, eligible, idle_for, new_capacity};
use dstack_plan::placement::Request;
use dstack_store::rows::{InstanceRow, JobRow, OperationKind, OperationRow, RunRow};
use dstack_store::{Commit, Json, PlacementSnapshot, Put, RunSnapshot};
use dstack_units::FleetId;

use super::schedule::candidates;
use crate::Result;
use crate::context::Context;
use crate::market;
use crate::operations::instances::{Creation, intend};

/// Whether a new instance can be had for a job.
pub(super) enum Outlook {
    /// No, and why; `None`: no fleet could get one.
    No(Option<String>),
    /// Not known yet: scheduling is woken when it is.
    Later,
    /// Yes, of one of these offers.
    Yes(Box<New>),
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
        .filter(|row| row.status != FleetStatus::Terminating)
        .map(|row| Fleet {
            id: row.id,
            name: &row.name,
            project,
            own: true,
            spec: &row.spec,
            master: None,
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
pub(super) fn look(
    ctx: &Arc<Context>,
    placement: &PlacementSnapshot,
    request: &Request<'_>,
    job: &JobRow,
) -> Outlook {
    let fleets = fleets(placement, None);
    let mut open = Vec::new();
    let mut offers: Vec<Vec<Offer>> = Vec::new();
    let (mut later, mut full) = (false, None);
    for one in eligible(request, &fleets) {
        let query = match new_capacity(request, one.fleet) {
            Ok(query) => query,
            Err(reason @ (NoCapacity::Full { .. } | NoCapacity::Conflict(_))) => {
                full.get_or_insert_with(|| format!("Fleet {} {reason}", one.fleet.name));
                continue;
            }
            Err(_) => continue,
        };
        match market::offers(ctx, job.project_id, &query) {
            Some(known) => {
                let available = known.iter().filter(|offer| offer.availability.is_available());
                offers.push(available.cloned().collect());
                open.push(one);
            }
            None => later = true,
        }
    }
    if later {
        return Outlook::Later;
    }
    let Some((fleet, offers)) =
        best(&open, &offers).and_then(|at| Some((open.get(at)?.fleet, offers.get(at)?)))
    else {
        return Outlook::No(full);
    };
    if offers.is_empty() {
        return Outlook::No(Some(all_failed(fleet.name, 0, 0, &[])));
    }
    let idle_for = match idle_for(fleet.spec, request.run_spec) {
        Ok(idle_for) => idle_for,
        Err(conflict) => return Outlook::No(Some(conflict.to_string())),
    };
    Outlook::Yes(Box::new(New {
        fleet: fleet.id,
        creation: Creation::of(offers, ctx.deps.settings.offers_tried, idle_for),
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
    let Some(fleet) = placement.fleets.iter().find(|fleet| fleet.id == new.fleet) else {
        return Ok(());
    };
    let now = ctx.now();
    let num = free_num(placement, fleet.id);
    let instance = InstanceRow {
        // Nobody else gets it.
        busy_blocks: 1,
        next_wake_at: Some(now),
        waiting_for: Some("the cloud to be asked".to_owned()),
        ..InstanceRow::pending(ctx.deps.random.ordered_uuid(now).into(), fleet, num, now)
    };
    let job = JobRow {
        instance_id: Some(instance.id),
        waiting_for: Some(format!("a new instance: {}", instance.name)),
        ..before.clone()
    };
    let operation = OperationRow {
        result: Some(Json::new(new.creation.to_json())),
        ..intend(ctx, instance.id, OperationKind::CreateInstance, now)
    };
    tracing::info!(job.id = %job.id, job.name = %job.job_name, run.name = run.run_name, instance.name, "a new instance is made");
    let commit = Commit {
        puts: vec![
            Put::Instance(instance.clone()),
            Put::Job(job),
            Put::Operation(operation),
        ],
        ..Commit::default()
    };
    ctx.commit(("capacity.commit.before", "capacity.commit.after"), commit)
        .await?;
    placement.instances.push(InstanceRow {
        version: 1,
        ..instance
    });
    Ok(())
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
