//! Jobs that wait for a place: highest priority first, then oldest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_plan::placement::{Candidate, Choice, Request, choose};
use dstack_store::rows::{InstanceRow, JobRow, RunRow};
use dstack_store::{Commit, EntityRef, Json, NewEvent, PlacementSnapshot, Put, RunSnapshot};
use dstack_units::{FleetId, JobId, ProjectId, RunId};
use futures_util::future::join_all;

use super::capacity::{self, Outlook};
use super::run;
use crate::Result;
use crate::context::Context;
use crate::events::Events;
use crate::wakes::Key;

/// Jobs read in one go, in their order. To find the first of many takes the database as long as to find all of them; one of
/// a higher priority that comes meanwhile is looked at after these.
const READ: usize = 1024;

/// Jobs looked at in one go: those that are refused are written in one commit.
const AT_ONCE: usize = 64;

/// Places every waiting job of the project, has an instance made for it, or says why neither can be.
pub async fn reconcile(ctx: &Arc<Context>, project: ProjectId) -> Result<()> {
    // Jobs that were looked at and must wait for others, or for what clouds have to say.
    let mut undecided = 0;
    loop {
        let limit = READ + undecided;
        let waiting = ctx.deps.store.waiting(&ctx.owner, project, limit).await?;
        undecided = 0;
        for some in waiting.chunks(AT_ONCE) {
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
        match outlook(ctx, &placement, request, job, master) {
            Outlook::Later => undecided += 1,
            Outlook::Yes(new) => {
                fleets.insert(run.id, new.fleet);
                capacity::provision(ctx, run, job, *new, &mut placement).await?;
            }
            Outlook::No(other) => {
                let ended = refuse(ctx, job, other.unwrap_or(reason));
                refused.entry(run.id).or_default().push(ended);
            }
        }
    }
    let commit = ends(ctx, refused, runs).await?;
    self::commit(ctx, commit).await?;
    Ok(undecided)
}

/// Whether an instance can be made for the job; one of several nodes goes where the first of them is.
fn outlook(
    ctx: &Arc<Context>,
    placement: &PlacementSnapshot,
    request: Request<'_>,
    job: &JobRow,
    master: Option<&JobRow>,
) -> Outlook {
    let beside = master.map(|master| master.job_provisioning_data.as_deref());
    match beside {
        Some(None) => Outlook::Later,
        Some(master) => capacity::look(ctx, placement, &Request { master, ..request }, job),
        None => capacity::look(ctx, placement, &request, job),
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
    (job.status == JobStatus::Submitted && job.instance_id.is_none()).then_some((job, snapshot))
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
                instance_id: instance.id,
                instance_name: &instance.name,
                instance_num: instance.instance_num,
                status: instance.status,
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
    let instance = InstanceRow {
        busy_blocks: was.busy_blocks + i64::from(choice.offer.blocks),
        status: InstanceStatus::Busy,
        last_processed_at: now,
        ..was.clone()
    };
    let job = JobRow {
        status: JobStatus::Provisioning,
        instance_id: Some(instance.id),
        used_instance_id: Some(instance.id),
        fleet_id: Some(choice.fleet_id),
        job_provisioning_data: was.job_provisioning_data.clone(),
        job_runtime_data: Some(Json::new(choice.runtime_data(
            ctx.deps.settings.host_network,
            before.job_spec.jobs_per_replica > 1,
        ))),
        last_processed_at: now,
        next_wake_at: Some(now),
        waiting_for: Some(format!("the agent of {}", instance.name)),
        ..before.clone()
    };
    let maker = Events::system(now, ctx.deps.random.clone());
    let mut events = vec![maker.assigned(&job, &instance), maker.job_status(before, &job)];
    if was.status != instance.status {
        events.push(maker.instance_status(&was, &instance));
    }
    let puts = vec![Put::Instance(instance.clone()), Put::Job(job.clone())];
    // The commit hands the job over to whoever drives the instance.
    let ours = ctx.owned.has(EntityRef::Instance(instance.id));
    if !ours {
        ctx.owned.remove(EntityRef::Job(job.id));
    }
    let placed = Commit {
        puts,
        events,
        owner: None,
    };
    if let Err(error) = commit(ctx, placed).await {
        ctx.owned.extend([EntityRef::Job(job.id)]);
        return Err(error);
    }
    // As it is stored now, for the next job.
    *slot = InstanceRow {
        version: instance.version + 1,
        ..instance
    };
    tracing::info!(job.id = %job.id, job.name = %job.job_name, instance.name = %slot.name, "job placed");
    ctx.wakes.wake(EntityRef::Run(job.run_id));
    if job.job_spec.jobs_per_replica > 1 {
        // The other nodes may have waited for this one.
        ctx.wakes.wake(Key::Schedule(job.project_id));
    }
    Ok(())
}

/// Jobs that get no place, as they end, with the events of that; by run.
pub(super) type Refused = BTreeMap<RunId, Vec<(JobRow, [NewEvent; 2])>>;

/// The ends of jobs and, in the same commit, what follows for their runs.
pub(super) async fn ends(
    ctx: &Context,
    refused: Refused,
    mut runs: BTreeMap<RunId, RunSnapshot>,
) -> Result<Commit> {
    let mut all = Commit::default();
    for (run, ended) in refused {
        let ours = ctx.owned.has(EntityRef::Run(run));
        let snapshot = runs.remove(&run);
        let snapshot = snapshot.filter(|snapshot| ours && !snapshot.run.status.is_finished());
        let after = snapshot.map(|snapshot| RunSnapshot {
            jobs: replaced(snapshot.jobs, &ended),
            ..snapshot
        });
        for (job, events) in ended {
            all.puts.push(Put::Job(job));
            all.events.extend(events);
        }
        if let Some(after) = after {
            let follows = run::advance(ctx, &after).await?;
            all.puts.extend(follows.puts);
            all.events.extend(follows.events);
        }
    }
    Ok(all)
}

/// The jobs with those that have ended as they are then.
fn replaced(mut jobs: Vec<JobRow>, ended: &[(JobRow, [NewEvent; 2])]) -> Vec<JobRow> {
    for job in &mut jobs {
        if let Some((ended, _)) = ended.iter().find(|(ended, _)| ended.id == job.id) {
            job.clone_from(ended);
        }
    }
    jobs
}

/// The job ends without having had a place: nothing of it is anywhere, so that both steps are taken at once.
pub(super) fn refuse(ctx: &Context, before: &JobRow, message: String) -> (JobRow, [NewEvent; 2]) {
    let now = ctx.now();
    let reason = JobTerminationReason::FailedToStartDueToNoCapacity;
    let ending = JobRow {
        status: JobStatus::Terminating,
        termination_reason: Some(reason),
        termination_reason_message: Some(message),
        ..before.clone()
    };
    // Events are listed by time.
    let ended_at = now + Duration::from_micros(1);
    let ended = JobRow {
        status: reason.status(),
        instance_id: None,
        finished_at: Some(ended_at),
        last_processed_at: ended_at,
        deadline_at: None,
        next_wake_at: None,
        waiting_for: None,
        ..ending.clone()
    };
    let random = &ctx.deps.random;
    let events = [
        Events::system(now, random.clone()).job_status(before, &ending),
        Events::system(ended_at, random.clone()).job_status(&ending, &ended),
    ];
    (ended, events)
}
