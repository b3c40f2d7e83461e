//! Jobs that wait for a place: highest priority first, then oldest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_plan::placement::{Candidate, Choice, Request, choose};
use dstack_store::rows::{InstanceRow, JobRow, RunRow};
use dstack_store::{Commit, EntityRef, Json, PlacementSnapshot, Put};
use dstack_units::{FleetId, ProjectId, RunId};

use crate::Result;
use crate::context::Context;
use crate::events::Events;

/// Jobs looked at in one go: those that are refused are written in one commit.
const AT_ONCE: usize = 64;

/// Places every waiting job of the project, or says why it cannot be.
pub async fn reconcile(ctx: &Arc<Context>, project: ProjectId) -> Result<()> {
    loop {
        let waiting = ctx.deps.store.waiting(&ctx.owner, project, AT_ONCE).await?;
        if waiting.is_empty() {
            return Ok(());
        }
        let mut placement = ctx.deps.store.placement(project).await?;
        let mut refused = Commit::default();
        // The first job of a run that is placed says where the others go; the row of the run follows later.
        let mut fleets: HashMap<RunId, FleetId> = HashMap::new();
        for (job, run) in &waiting {
            let fleet = run.fleet_id.or(fleets.get(&run.id).copied());
            match choose(&request(run, job, fleet), &candidates(&placement)) {
                Ok(choice) => {
                    fleets.insert(run.id, choice.fleet_id);
                    assign(ctx, job, &mut placement, &choice).await?;
                }
                Err(reason) => refuse(ctx, job, reason, &mut refused),
            }
        }
        commit(ctx, refused).await?;
        if waiting.len() < AT_ONCE {
            // Whatever came meanwhile has woken us again.
            return Ok(());
        }
    }
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
    Ok(())
}

/// The job ends without having had a place: nothing of it is anywhere, so that both steps are taken at once.
fn refuse(ctx: &Context, before: &JobRow, message: String, into: &mut Commit) {
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
        finished_at: Some(ended_at),
        last_processed_at: ended_at,
        deadline_at: None,
        next_wake_at: None,
        waiting_for: None,
        ..ending.clone()
    };
    let random = &ctx.deps.random;
    into.events
        .push(Events::system(now, random.clone()).job_status(before, &ending));
    into.events
        .push(Events::system(ended_at, random.clone()).job_status(&ending, &ended));
    into.puts.push(Put::Job(ended));
}
