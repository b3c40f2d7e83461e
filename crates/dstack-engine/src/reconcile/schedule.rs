//! Jobs that wait for a place: highest priority first, then oldest.

use std::sync::Arc;

use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_plan::placement::{Candidate, Choice, Request, choose};
use dstack_store::rows::{InstanceRow, JobRow, RunRow};
use dstack_store::{Commit, EntityRef, Json, PlacementSnapshot, Put};
use dstack_units::{JobId, ProjectId, Time};

use crate::Result;
use crate::context::Context;
use crate::events::Events;

/// Places every waiting job of the project, or says why it cannot be.
pub async fn reconcile(ctx: &Arc<Context>, project: ProjectId) -> Result<()> {
    let mut seen: Option<PlacementSnapshot> = None;
    for id in ctx.deps.store.waiting_jobs(project).await? {
        let placement = match seen.take() {
            Some(placement) => placement,
            None => ctx.deps.store.placement(project).await?,
        };
        // Instances change when one is taken; a refusal leaves them as they are.
        if place(ctx, &placement, id).await? == Placed::Refused {
            seen = Some(placement);
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placed {
    Assigned,
    Refused,
}

async fn place(ctx: &Arc<Context>, placement: &PlacementSnapshot, id: JobId) -> Result<Placed> {
    let Some(snapshot) = ctx.deps.store.job(id).await? else {
        return Ok(Placed::Refused);
    };
    if snapshot.job.status != JobStatus::Submitted {
        return Ok(Placed::Refused);
    }
    let now = ctx.now();
    let (placed, commit) = match choose(&request(&snapshot.run, &snapshot.job), &candidates(placement)) {
        Ok(choice) => (
            Placed::Assigned,
            assign(ctx, &snapshot.job, placement, &choice, now),
        ),
        Err(reason) => (Placed::Refused, refuse(ctx, &snapshot.job, reason, now)),
    };
    ctx.commit(("schedule.commit.before", "schedule.commit.after"), commit)
        .await?;
    ctx.wakes.wake(EntityRef::Run(snapshot.run.id));
    Ok(placed)
}

fn request<'a>(run: &'a RunRow, job: &'a JobRow) -> Request<'a> {
    Request {
        run_fleet: run.fleet_id,
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

fn assign(
    ctx: &Context,
    before: &JobRow,
    placement: &PlacementSnapshot,
    choice: &Choice,
    now: Time,
) -> Commit {
    let Some(was) = placement
        .instances
        .iter()
        .find(|row| row.id == choice.instance_id)
    else {
        return Commit::default();
    };
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
        job_runtime_data: Some(Json::new(choice.runtime_data())),
        last_processed_at: now,
        next_wake_at: Some(now),
        waiting_for: Some(format!("the agent of {}", instance.name)),
        ..before.clone()
    };
    let maker = Events::system(now, ctx.deps.random.clone());
    let mut events = vec![maker.assigned(&job, &instance), maker.job_status(before, &job)];
    if was.status != instance.status {
        events.push(maker.instance_status(was, &instance));
    }
    tracing::info!(job.id = %job.id, job.name = %job.job_name, instance.name = %instance.name, "job placed");
    Commit {
        puts: vec![Put::Instance(instance), Put::Job(job)],
        events,
        lease: None,
    }
}

fn refuse(ctx: &Context, before: &JobRow, message: String, now: Time) -> Commit {
    let job = JobRow {
        status: JobStatus::Terminating,
        termination_reason: Some(JobTerminationReason::FailedToStartDueToNoCapacity),
        termination_reason_message: Some(message),
        last_processed_at: now,
        next_wake_at: Some(now),
        waiting_for: None,
        ..before.clone()
    };
    let maker = Events::system(now, ctx.deps.random.clone());
    let event = maker.job_status(before, &job);
    Commit {
        puts: vec![Put::Job(job)],
        events: vec![event],
        lease: None,
    }
}
