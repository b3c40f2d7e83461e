//! One pass over the first of the waiting jobs: decided by the planner, written in one commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dstack_model::backends::BackendType;
use dstack_model::runs::{JobProvisioningData, JobStatus, JobTerminationReason};
use dstack_plan::offers::{AvailableOffers, Query};
use dstack_plan::placement::Request;
use dstack_plan::queue::{OfferSource, Placement, Placer};
use dstack_plan::volumes::Location;
use dstack_store::RunSnapshot;
use dstack_store::rows::JobRow;
use dstack_system::task;
use dstack_units::{FleetId, JobId, ProjectId, RunId};

use super::assignments::Assignments;
use crate::Result;
use crate::context::Context;
use crate::job_volumes::ProjectVolumes;
use crate::offer_cache;
use crate::reconcile::fleet_view::fleets;
use crate::reconcile::refusal::{Refused, ends, refuse, refuse_for, snapshots};
use crate::wakes::Key;

/// Pause before backends that could not be read are read again.
const BACKENDS_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Decides about these jobs; returns how many must wait.
pub(super) async fn place_all(
    ctx: &Arc<Context>,
    project: ProjectId,
    waiting: &[(JobId, RunId)],
) -> Result<usize> {
    if waiting.is_empty() {
        return Ok(0);
    }
    let runs = snapshots(ctx, waiting.iter().map(|(_, run)| *run)).await?;
    let jobs = in_order(waiting, &runs);
    let multinode = multinode_backends(ctx, project, &jobs).await;
    let volumes = ProjectVolumes::of_jobs(ctx, project, jobs.iter().map(|(job, _)| *job)).await?;
    let placement = ctx.deps.store.placement(project).await?;
    let fleets = fleets(&placement, None);
    let mut pass = Pass {
        ctx,
        placer: Placer::new(&fleets),
        source: Source { ctx, project },
        assignments: Assignments::new(ctx, &placement),
        multinode,
        volumes,
        fleets: HashMap::new(),
        masters: HashMap::new(),
        refused: Refused::new(),
        undecided: 0,
    };
    for (job, snapshot) in jobs {
        // One that cannot be decided holds up no other.
        match task::contained("place a job", async { pass.place(job, snapshot) }).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                ctx.report("place a job", &error);
                pass.undecided += 1;
            }
            Err(task::Panicked) => pass.undecided += 1,
        }
    }
    let Pass {
        assignments,
        refused,
        undecided,
        ..
    } = pass;
    let ends = ends(ctx, refused, runs).await?;
    assignments.commit(ends).await?;
    Ok(undecided)
}

/// The jobs that still wait, with their runs. All nodes of a replica come together, however many jobs were asked for.
fn in_order<'r>(
    waiting: &[(JobId, RunId)],
    runs: &'r BTreeMap<RunId, RunSnapshot>,
) -> Vec<(&'r JobRow, &'r RunSnapshot)> {
    let mut seen = HashSet::new();
    let mut found = Vec::with_capacity(waiting.len());
    for (id, run) in waiting {
        let Some(snapshot) = runs.get(run) else { continue };
        let Some(first) = snapshot.jobs.iter().find(|row| row.id == *id) else {
            continue;
        };
        let replica = snapshot
            .jobs
            .iter()
            .filter(|row| row.replica_num == first.replica_num && row.submission_num == first.submission_num);
        for job in replica {
            if is_waiting(job) && seen.insert(job.id) {
                found.push((job, snapshot));
            }
        }
    }
    found
}

fn is_waiting(job: &JobRow) -> bool {
    job.status() == JobStatus::Submitted && job.instance_id.is_none()
}

/// Backends whose instances reach each other, if a job wants to know; `None`: they cannot be read now.
async fn multinode_backends(
    ctx: &Arc<Context>,
    project: ProjectId,
    jobs: &[(&JobRow, &RunSnapshot)],
) -> Option<Vec<BackendType>> {
    let is_multinode =
        |(job, run): &(&JobRow, &RunSnapshot)| Request::new(&run.run.run_spec, &job.job_spec).multinode();
    if !jobs.iter().any(is_multinode) {
        return Some(Vec::new());
    }
    match ctx.deps.backends.of_project(project).await {
        Ok(backends) => Some(offer_cache::multinode_backends(&backends)),
        Err(error) => {
            tracing::warn!(project.id = %project, %error, "the backends of a project are not known now: asked again");
            let again = ctx.now() + BACKENDS_RETRY_INTERVAL;
            ctx.wakes.wake_at(Key::Schedule(project), Some(again));
            None
        }
    }
}

/// What clouds offer, as far as it is known; what is not known is asked for.
struct Source<'a> {
    ctx: &'a Arc<Context>,
    project: ProjectId,
}

impl OfferSource for Source<'_> {
    fn offers(&mut self, query: &Query, master: Option<&JobProvisioningData>) -> Option<AvailableOffers> {
        let known = offer_cache::offers(self.ctx, Key::Schedule(self.project), self.project, query)?;
        let limit = self.ctx.deps.settings.offers_tried;
        Some(AvailableOffers::select(&known, master, limit))
    }
}

/// A replica of a run, in one of its attempts.
type Replica = (RunId, i64, i64);

struct Pass<'a> {
    ctx: &'a Arc<Context>,
    placer: Placer<'a>,
    source: Source<'a>,
    assignments: Assignments<'a>,
    multinode: Option<Vec<BackendType>>,
    volumes: ProjectVolumes,
    /// The first job of a run that is placed says where the others go; the row of the run follows later.
    fleets: HashMap<RunId, FleetId>,
    /// Where first nodes are that have got an instance in this pass.
    masters: HashMap<Replica, JobProvisioningData>,
    refused: Refused,
    /// Jobs that must wait for others, or for what clouds have to say.
    undecided: usize,
}

impl Pass<'_> {
    fn place(&mut self, job: &JobRow, snapshot: &RunSnapshot) -> Result<()> {
        let places = match self.volumes.places(&job.job_spec) {
            Ok(places) => places,
            Err(error) => return self.refuse_volumes(job, error),
        };
        match self.decide(job, snapshot, &places) {
            Placement::Pending => self.undecided += 1,
            Placement::Instance(choice) => {
                self.fleets.insert(job.run_id, choice.fleet_id);
                let instance = match self.assignments.assign(job, &choice, &mut self.volumes)? {
                    Ok(instance) => instance,
                    Err(error) => return self.refuse_volumes(job, error),
                };
                let place = instance.and_then(|instance| instance.job_provisioning_data.as_deref());
                if job.job_num == 0
                    && let Some(place) = place
                {
                    self.masters.insert(replica(job), place.clone());
                }
            }
            Placement::New(new) => {
                self.fleets.insert(job.run_id, new.fleet);
                self.assignments.make(&snapshot.run, job, &new);
            }
            Placement::Impossible(reason) => {
                let refused = refuse(self.ctx, job, reason)?;
                self.refused.entry(job.run_id).or_default().push(refused);
            }
        }
        Ok(())
    }

    /// The job ends, as it does not get its network volumes.
    fn refuse_volumes(&mut self, job: &JobRow, error: String) -> Result<()> {
        let reason = JobTerminationReason::VolumeError;
        let refused = refuse_for(self.ctx, job, reason, error)?;
        self.refused.entry(job.run_id).or_default().push(refused);
        Ok(())
    }

    fn decide(&mut self, job: &JobRow, snapshot: &RunSnapshot, places: &[Location]) -> Placement {
        let (run, first) = (&snapshot.run, first_node(job, snapshot));
        let master = match first {
            None => None,
            Some(first) => {
                let known = self.masters.get(&replica(job));
                match known.or(first.job_provisioning_data.as_deref()) {
                    Some(place) => Some(place),
                    // The others go where the first one is: that is not known yet.
                    None => return Placement::Pending,
                }
            }
        };
        let run_fleet = run.fleet_id.or_else(|| self.fleets.get(&run.id).copied());
        let request = Request {
            run_fleet: run_fleet.or_else(|| first.and_then(|first| first.fleet_id)),
            master,
            volumes: places,
            multinode_backends: self.multinode.as_deref(),
            ..Request::new(&run.run_spec, &job.job_spec)
        };
        if request.multinode() && self.multinode.is_none() {
            return Placement::Pending;
        }
        self.placer.place(&request, &mut self.source)
    }
}

const fn replica(job: &JobRow) -> Replica {
    (job.run_id, job.replica_num, job.submission_num)
}

/// The first node of the job's replica, unless that is the job itself.
fn first_node<'a>(job: &JobRow, snapshot: &'a RunSnapshot) -> Option<&'a JobRow> {
    let mut jobs = snapshot.jobs.iter().filter(|_| job.job_num != 0);
    jobs.find(|other| {
        other.replica_num == job.replica_num
            && other.job_num == 0
            && other.submission_num == job.submission_num
    })
}
