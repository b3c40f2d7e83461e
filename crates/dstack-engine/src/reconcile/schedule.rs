//! Jobs that wait for a place: highest priority first, then oldest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_plan::placement::{Candidate, Choice, Request, choose};
use dstack_store::rows::{AgentAddress, JobRow, RunRow};
use dstack_store::{Changes, Commit, EntityRef, EventMaker, PlacementSnapshot, RunSnapshot};
use dstack_units::{FleetId, JobId, ProjectId, RunId};
use futures_util::future::join_all;

use super::capacity::{self, Provisioning};
use super::run;
use crate::Result;
use crate::context::Context;
use crate::wakes::Key;

/// Jobs read in one go, in their order. To find the first of many takes the database as long as to find all of them; one of
/// a higher priority that comes meanwhile is looked at after these.
const BATCH_SIZE: usize = 1024;

/// Jobs looked at in one go: those that are refused are written in one commit.
const JOBS_PER_PASS: usize = 64;

/// Places every waiting job of the project, has an instance made for it, or says why neither can be.
pub async fn reconcile(ctx: &Arc<Context>, project: ProjectId) -> Result<()> {
    // Jobs that were looked at and must wait for others, or for what clouds have to say.
    let mut undecided = 0;
    loop {
        let limit = BATCH_SIZE + undecided;
        let waiting = ctx.deps.store.waiting(&ctx.owner, project, limit).await?;
        undecided = 0;
        for some in waiting.chunks(JOBS_PER_PASS) {
            undecided += pass(ctx, project, some).await?;
        }
        if waiting.len() < limit {
            // Whatever came meanwhile has woken us again.
            return Ok(());
        }
    }
}

/// Decides about these jobs; how many must wait.
async fn pass(ctx: &Arc<Context>, project: ProjectId, waiting: &[(JobId, RunId)]) -> Result<usize> {
    let runs = snapshots(ctx, waiting.iter().map(|(_, run)| *run)).await?;
    let mut placement = ctx.deps.store.placement(project).await?;
    let mut refused = Refused::new();
    let mut undecided = 0;
    // The first job of a run that is placed says where the others go; the row of the run follows later.
    let mut fleets: HashMap<RunId, FleetId> = HashMap::new();
    for (job, snapshot) in waiting
        .iter()
        .filter_map(|(job, run)| waits(*job, runs.get(run)?))
    {
        let (run, master) = (&snapshot.run, capacity::master(job, snapshot));
        let fleet = run.fleet_id.or(fleets.get(&run.id).copied());
        let request = request(run, job, fleet.or(master.and_then(|job| job.fleet_id)));
        let reason = match choose(&request, &candidates(&placement)) {
            Ok(choice) => {
                fleets.insert(run.id, choice.fleet_id);
                assign(ctx, job, &mut placement, &choice).await?;
                continue;
            }
            Err(reason) => reason,
        };
        match provisioning(ctx, &placement, request, job, master) {
            Provisioning::Pending => undecided += 1,
            Provisioning::Ready(new) => {
                fleets.insert(run.id, new.fleet);
                capacity::provision(ctx, run, job, *new, &mut placement).await?;
            }
            Provisioning::Impossible(other) => {
                let ended = refuse(ctx, job, other.unwrap_or(reason))?;
                refused.entry(run.id).or_default().push(ended);
            }
        }
    }
    let ends = ends(ctx, refused, runs).await?;
    commit(ctx, ends.into_commit()).await?;
    Ok(undecided)
}

/// Whether an instance can be made for the job; one of several nodes goes where the first of them is.
fn provisioning(
    ctx: &Arc<Context>,
    placement: &PlacementSnapshot,
    request: Request<'_>,
    job: &JobRow,
    master: Option<&JobRow>,
) -> Provisioning {
    let beside = master.map(|master| master.job_provisioning_data.as_deref());
    match beside {
        Some(None) => Provisioning::Pending,
        Some(master) => capacity::plan_provisioning(ctx, placement, &Request { master, ..request }, job),
        None => capacity::plan_provisioning(ctx, placement, &request, job),
    }
}

/// The runs with their jobs, each read once.
pub(super) async fn snapshots(
    ctx: &Context,
    runs: impl Iterator<Item = RunId>,
) -> Result<BTreeMap<RunId, RunSnapshot>> {
    let runs: BTreeSet<RunId> = runs.collect();
    let mut found = BTreeMap::new();
    for snapshot in join_all(runs.into_iter().map(|run| ctx.deps.store.run(run))).await {
        found.extend(snapshot?.map(|snapshot| (snapshot.run.id, snapshot)));
    }
    Ok(found)
}

/// The job, if it still waits for a place, and its run.
fn waits(job: JobId, snapshot: &RunSnapshot) -> Option<(&JobRow, &RunSnapshot)> {
    let job = snapshot.jobs.iter().find(|row| row.id == job)?;
    (job.status() == JobStatus::Submitted && job.instance_id.is_none()).then_some((job, snapshot))
}

async fn commit(ctx: &Context, commit: Commit) -> Result<()> {
    ctx.commit(("schedule.commit.before", "schedule.commit.after"), commit)
        .await
}

fn request<'a>(run: &'a RunRow, job: &'a JobRow, run_fleet: Option<FleetId>) -> Request<'a> {
    Request {
        run_fleet,
        ..Request::new(&run.run_spec, &job.job_spec)
    }
}

/// The instances as the planner sees them.
pub fn candidates(placement: &PlacementSnapshot) -> Vec<Candidate<'_>> {
    let mut found = Vec::new();
    for fleet in &placement.fleets {
        for instance in placement
            .instances
            .iter()
            .filter(|instance| instance.fleet_id == Some(fleet.id))
        {
            found.push(Candidate {
                fleet_id: fleet.id,
                fleet_name: &fleet.name,
                fleet_spec: &fleet.spec,
                local: fleet.local,
                rules: instance.agent.as_deref().map(AgentAddress::rules),
                instance_id: instance.id,
                instance_name: &instance.name,
                instance_num: instance.instance_num,
                status: instance.status(),
                unreachable: instance.unreachable,
                health: instance.health,
                total_blocks: instance.total_blocks,
                busy_blocks: instance.busy_blocks,
                offer: instance.offer.as_deref(),
                provisioning: instance.job_provisioning_data.as_deref(),
            });
        }
    }
    found
}

async fn assign(
    ctx: &Context,
    before: &JobRow,
    placement: &mut PlacementSnapshot,
    choice: &Choice,
) -> Result<()> {
    let Some(slot) = placement
        .instances
        .iter_mut()
        .find(|row| row.id == choice.instance_id)
    else {
        return Ok(());
    };
    let (was, now) = (slot.clone(), ctx.now());
    let mut instance = was.clone();
    instance.occupy(i64::from(choice.offer.blocks), now)?;
    let runtime = choice.runtime_data(
        ctx.deps.settings.host_network,
        before.job_spec.jobs_per_replica > 1,
    );
    let mut job = before.clone();
    job.assign(&was, choice.fleet_id, runtime, now)?;
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let assigned = changes.maker().assigned(&job, &instance);
    changes.event(assigned);
    changes.update(before, job.clone());
    changes.update(&was, instance.clone());
    // The commit hands the job over to whoever drives the instance.
    let ours = ctx.owned.has(EntityRef::Instance(instance.id));
    if !ours {
        ctx.owned.remove(EntityRef::Job(job.id));
    }
    if let Err(error) = commit(ctx, changes.into_commit()).await {
        ctx.owned.extend([EntityRef::Job(job.id)]);
        return Err(error);
    }
    // As it is stored now, for the next job.
    *slot = instance;
    slot.version += 1;
    tracing::info!(job.id = %job.id, job.name = %job.job_name, instance.name = %slot.name, "job placed");
    ctx.wakes.wake(EntityRef::Run(job.run_id));
    if job.job_spec.jobs_per_replica > 1 {
        // The other nodes may have waited for this one.
        ctx.wakes.wake(Key::Schedule(job.project_id));
    }
    Ok(())
}

/// A job that gets no place, in the two steps of its end.
pub(super) struct RefusedJob {
    before: JobRow,
    ending: JobRow,
    ended: JobRow,
}

/// Jobs that get no place, by run.
pub(super) type Refused = BTreeMap<RunId, Vec<RefusedJob>>;

/// The ends of jobs and, in the same commit, what follows for their runs.
pub(super) async fn ends(
    ctx: &Context,
    refused: Refused,
    mut runs: BTreeMap<RunId, RunSnapshot>,
) -> Result<Changes> {
    let mut all = Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()));
    for (run, jobs) in refused {
        let ours = ctx.owned.has(EntityRef::Run(run));
        let snapshot = runs.remove(&run);
        let snapshot = snapshot.filter(|snapshot| ours && !snapshot.run.status().is_finished());
        let after = snapshot.map(|snapshot| RunSnapshot {
            jobs: replaced(snapshot.jobs, &jobs),
            ..snapshot
        });
        for job in jobs {
            all.update(&job.before, job.ending.clone());
            all.update(&job.ending, job.ended);
        }
        if let Some(after) = after {
            all.extend(run::advance(ctx, &after).await?.into_commit());
        }
    }
    Ok(all)
}

/// The jobs with those that have ended as they are then.
fn replaced(mut jobs: Vec<JobRow>, refused: &[RefusedJob]) -> Vec<JobRow> {
    for job in &mut jobs {
        if let Some(refused) = refused.iter().find(|refused| refused.ended.id == job.id) {
            job.clone_from(&refused.ended);
        }
    }
    jobs
}

/// The job ends without having had a place: nothing of it is anywhere, so that both steps are taken at once.
pub(super) fn refuse(ctx: &Context, before: &JobRow, message: String) -> Result<RefusedJob> {
    let now = ctx.now();
    let reason = JobTerminationReason::FailedToStartDueToNoCapacity;
    let mut ending = before.clone();
    ending.terminate(reason, Some(message), now)?;
    // Events are listed by time.
    let ended_at = now + Duration::from_micros(1);
    let mut ended = ending.clone();
    ended.finish(reason.status(), ended_at)?;
    ended.last_processed_at = ended_at;
    Ok(RefusedJob {
        before: before.clone(),
        ending,
        ended,
    })
}
