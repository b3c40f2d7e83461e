//! One pass over the first of the waiting jobs: decided by the planner, written in one commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dstack_model::backends::BackendType;
use dstack_model::runs::{JobProvisioningData, JobStatus, JobTerminationReason};
use dstack_plan::compute_groups::{NodesMade, nodes_made};
use dstack_plan::offers::{AvailableOffers, Query};
use dstack_plan::placement::Request;
use dstack_plan::queue::{NewInstance, OfferSource, Placement, Placer};
use dstack_plan::volumes::Location;
use dstack_store::RunSnapshot;
use dstack_store::rows::JobRow;
use dstack_system::task;
use dstack_units::{FleetId, JobId, ProjectId, RunId, Time};

use super::assignments::Assignments;
use crate::Result;
use crate::context::Context;
use crate::job_volumes::{NoPlace, ProjectVolumes};
use crate::offer_cache;
use crate::reconcile::fleet_view::fleets;
use crate::reconcile::refusal::{Refused, ends, refuse, refuse_for, snapshots};
use crate::wakes::Key;

/// Pause before backends that could not be read are read again.
const BACKENDS_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often jobs that wait for a volume are looked at. Whoever drives it wakes the jobs of its own server only.
const VOLUMES_INTERVAL: Duration = Duration::from_secs(5);

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
    let (multinode, groups) = multinode.map_or((None, Vec::new()), |known| (Some(known.able), known.groups));
    let now = ctx.now();
    let volumes = ProjectVolumes::of_jobs(ctx, project, jobs.iter().map(|(job, _)| *job), now).await?;
    let placement = ctx.deps.store.placement(project).await?;
    let fleets = fleets(&placement, None);
    let mut pass = Pass {
        ctx,
        now,
        placer: Placer::new(&fleets).waiting_at(now),
        source: Source { ctx, project },
        assignments: Assignments::new(ctx, &placement, now),
        multinode,
        groups,
        grouped: HashSet::new(),
        volumes,
        fleets: HashMap::new(),
        masters: HashMap::new(),
        refused: Refused::new(),
        undecided: 0,
        again_at: None,
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
        again_at,
        ..
    } = pass;
    if again_at.is_some() {
        // One that is in reach again wakes as well.
        ctx.wakes.wake_at(Key::Schedule(project), again_at);
    }
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

/// What backends make of several nodes.
#[derive(Default)]
struct MultinodeBackends {
    /// Backends whose instances reach each other.
    able: Vec<BackendType>,
    /// Backends that make containers in groups.
    groups: Vec<BackendType>,
}

/// What the backends make of several nodes, if a job wants to know; `None`: they cannot be read now.
async fn multinode_backends(
    ctx: &Arc<Context>,
    project: ProjectId,
    jobs: &[(&JobRow, &RunSnapshot)],
) -> Option<MultinodeBackends> {
    let is_multinode =
        |(job, run): &(&JobRow, &RunSnapshot)| Request::new(&run.run.run_spec, &job.job_spec).multinode();
    if !jobs.iter().any(is_multinode) {
        return Some(MultinodeBackends::default());
    }
    match ctx.deps.backends.of_project(project).await {
        Ok(backends) => Some(MultinodeBackends {
            able: offer_cache::multinode_backends(&backends),
            groups: offer_cache::group_backends(&backends),
        }),
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
        let asker = Key::Schedule(self.project);
        offer_cache::available(self.ctx, asker, self.project, query, master)
    }
}

/// A replica of a run, in one of its attempts.
type Replica = (RunId, i64, i64);

struct Pass<'a> {
    ctx: &'a Arc<Context>,
    /// When the pass began.
    now: Time,
    placer: Placer<'a>,
    source: Source<'a>,
    assignments: Assignments<'a>,
    multinode: Option<Vec<BackendType>>,
    volumes: ProjectVolumes,
    /// Backends that make containers in groups.
    groups: Vec<BackendType>,
    /// Jobs about which is decided with the first node of theirs.
    grouped: HashSet<JobId>,
    /// The first job of a run that is placed says where the others go; the row of the run follows later.
    fleets: HashMap<RunId, FleetId>,
    /// Where first nodes are that have got an instance in this pass.
    masters: HashMap<Replica, JobProvisioningData>,
    refused: Refused,
    /// Jobs that must wait for others, or for what clouds have to say.
    undecided: usize,
    /// When they are looked at again, also if nobody wakes them: one waits for an instance that is away for a moment, or for a volume
    /// that is being detached.
    again_at: Option<Time>,
}

impl Pass<'_> {
    fn place(&mut self, job: &JobRow, snapshot: &RunSnapshot) -> Result<()> {
        if self.grouped.contains(&job.id) {
            return Ok(());
        }
        // Of all nodes, before any of them costs money.
        let nodes = waiting_nodes(job, snapshot);
        let mut places = Vec::with_capacity(nodes.len());
        for node in &nodes {
            match self.volumes.places(&node.job_spec) {
                Ok(found) => places.push(found),
                Err(NoPlace::Never(error)) => return self.refuse_volumes(&nodes, &error),
                Err(NoPlace::Until(until)) => {
                    self.wait_for_volumes(&nodes, until);
                    return Ok(());
                }
            }
        }
        // Those of the job itself.
        let places = places.into_iter().next().unwrap_or_default();
        match self.decide(job, snapshot, &places) {
            Placement::Pending => self.undecided += 1,
            Placement::Away(until) => {
                self.undecided += 1;
                self.again_at = Some(self.again_at.map_or(until, |first| first.min(until)));
            }
            Placement::Instance(choice) => {
                self.fleets.insert(job.run_id, choice.fleet_id);
                let instance = match self.assignments.assign(job, &choice, &mut self.volumes)? {
                    Ok(instance) => instance,
                    Err(error) => return self.refuse_volumes(&[job], &error),
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
                self.make(job, snapshot, *new)?;
            }
            Placement::Impossible(reason) => self.refuse(job, reason)?,
        }
        Ok(())
    }

    fn refuse(&mut self, job: &JobRow, reason: String) -> Result<()> {
        let refused = refuse(self.ctx, job, reason)?;
        self.refused.entry(job.run_id).or_default().push(refused);
        Ok(())
    }

    /// An instance is made for the job; those of all nodes of its replica as one, where the cloud makes them so.
    fn make(&mut self, job: &JobRow, snapshot: &RunSnapshot, new: NewInstance) -> Result<()> {
        let nodes = waiting_nodes(job, snapshot);
        let made = match nodes.len() > 1 {
            true => nodes_made(&new.offers, |offer| self.groups.contains(&offer.backend)),
            false => NodesMade::Apart((*new.offers).clone()),
        };
        let offers = match made {
            NodesMade::Apart(offers) => {
                let offers = Arc::new(offers);
                let new = NewInstance { offers, ..new };
                let made = self.assignments.make(&snapshot.run, job, &new, &mut self.volumes);
                return match made {
                    Ok(()) => Ok(()),
                    Err(error) => self.wait_or_refuse_volumes(&[job], &new, &error),
                };
            }
            NodesMade::AsOne(offers) => Arc::new(offers),
        };
        self.grouped.extend(nodes.iter().map(|node| node.id));
        let request = Request::new(&snapshot.run.run_spec, &job.job_spec);
        let others = i64::try_from(nodes.len() - 1).unwrap_or(i64::MAX);
        if let Err(reason) = self.placer.make_more(&request, new.fleet, others) {
            for node in nodes {
                self.refuse(node, reason.clone())?;
            }
            return Ok(());
        }
        let new = NewInstance { offers, ..new };
        match self
            .assignments
            .make_group(&snapshot.run, &nodes, &new, &mut self.volumes)
        {
            Ok(()) => Ok(()),
            Err(error) => self.wait_or_refuse_volumes(&nodes, &new, &error),
        }
    }

    /// Nothing that is offered is where all jobs have their volumes. What backends offer that are late may be: then it is waited for.
    fn wait_or_refuse_volumes(&mut self, jobs: &[&JobRow], new: &NewInstance, error: &str) -> Result<()> {
        if new.unanswered.is_none() {
            return self.refuse_volumes(jobs, error);
        }
        self.undecided += jobs.len();
        self.grouped.extend(jobs.iter().map(|job| job.id));
        Ok(())
    }

    /// The jobs wait for a volume that is being detached. It wakes them in time, if this server drives it.
    fn wait_for_volumes(&mut self, jobs: &[&JobRow], until: Time) {
        self.undecided += jobs.len();
        self.grouped.extend(jobs.iter().map(|job| job.id));
        let again = until.min(self.now + VOLUMES_INTERVAL);
        self.again_at = Some(self.again_at.map_or(again, |first| first.min(again)));
    }

    /// The jobs end, as they do not get their network volumes.
    fn refuse_volumes(&mut self, jobs: &[&JobRow], error: &str) -> Result<()> {
        for job in jobs {
            let refused = refuse_for(self.ctx, job, JobTerminationReason::VolumeError, error.to_owned())?;
            self.refused.entry(job.run_id).or_default().push(refused);
        }
        self.grouped.extend(jobs.iter().map(|job| job.id));
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

/// All nodes of the replica whose first the job is, in order; none but that one where some have a place already.
fn waiting_nodes<'a>(job: &'a JobRow, snapshot: &'a RunSnapshot) -> Vec<&'a JobRow> {
    let of_replica = |other: &&JobRow| replica(other) == replica(job) && is_waiting(other);
    let mut nodes: Vec<&JobRow> = snapshot.jobs.iter().filter(of_replica).collect();
    nodes.sort_by_key(|node| node.job_num);
    let is_complete = u32::try_from(nodes.len()).is_ok_and(|count| count == job.job_spec.jobs_per_replica);
    match job.job_num == 0 && is_complete {
        true => nodes,
        false => vec![job],
    }
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
