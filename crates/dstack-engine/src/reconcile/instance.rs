//! Instances: whether their agent is in reach, and what becomes of those that clouds make for jobs and fleets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_model::fleets::FleetStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::runs::JobStatus;
use dstack_plan::fleets::is_of_clouds;
use dstack_plan::lifecycle::Wait;
use dstack_plan::lifecycle::instance::{
    Decision, Facts, Purpose, UNREACHABLE_TIMEOUT, decide, provisioning_timeout,
};
use dstack_plan::lifecycle::transitions::instance_allowed;
use dstack_plan::placement::Choice;
use dstack_store::rows::{FleetRow, InstanceRow, JobRow, OperationKind, OperationRow, OperationState};
use dstack_store::{Commit, EntityRef, InstanceSnapshot, Json, Put};
use dstack_units::{InstanceId, ProjectId, RunId, Time};

use super::capacity::counted;
use super::node;
use super::schedule::{self, Refused};
use crate::Result;
use crate::context::Context;
use crate::events::{self, Events};
use crate::follow;
use crate::operations::instances::{self as calls, Creation};
use crate::operations::progress;
use crate::wakes::Key;

/// Keeps the row of an instance true, and takes it to its end.
pub async fn reconcile(ctx: &Arc<Context>, id: InstanceId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.instance(id).await? else {
        return Ok(());
    };
    let before = &snapshot.instance;
    if before.deleted || before.status == InstanceStatus::Terminated {
        ctx.finished(EntityRef::Instance(id));
        return Ok(());
    }
    if let Some(address) = &before.agent {
        follow::shim::ensure(ctx, id, (**address).clone());
    }
    let change = change(ctx, &snapshot).await?;
    ctx.wakes
        .wake_at(EntityRef::Instance(id), change.row.next_wake_at);
    let commit = commit(&snapshot, change, ctx.now());
    let intended: Vec<OperationKind> = intended(&snapshot, &commit).collect();
    let placed = placed_jobs(&commit);
    let changed = status_changed(&snapshot, &commit);
    let health_changed = commit
        .puts
        .iter()
        .any(|put| matches!(put, Put::Instance(row) if row.health != before.health));
    ctx.commit(("instance.commit.before", "instance.commit.after"), commit)
        .await?;
    for kind in intended {
        calls::ensure(ctx, id, kind);
    }
    for (run, project) in placed {
        ctx.wakes.wake(EntityRef::Run(run));
        // The other nodes of the run may have waited for this one.
        ctx.wakes.wake(Key::Schedule(project));
    }
    if changed {
        tell_fleet(ctx, before);
    }
    if health_changed {
        // Jobs that wait may have a place now, or none any more.
        ctx.wakes.wake(Key::Schedule(before.project_id));
    }
    // One that waits for the instance to be made has nothing to decide.
    for job in snapshot
        .jobs
        .iter()
        .filter(|job| job.status != JobStatus::Submitted)
    {
        ctx.wakes.wake(EntityRef::Job(job.id));
    }
    Ok(())
}

fn status_changed(snapshot: &InstanceSnapshot, commit: &Commit) -> bool {
    let before = &snapshot.instance;
    let changes =
        |put: &Put| matches!(put, Put::Instance(row) if row.id == before.id && row.status != before.status);
    commit.puts.iter().any(changes)
}

/// The fleet decides about its size, and the jobs that want to be beside the first instance of a cluster know where it is.
fn tell_fleet(ctx: &Context, before: &InstanceRow) {
    if let Some(fleet) = before.fleet_id {
        ctx.wakes.wake(EntityRef::Fleet(fleet));
    }
    if before.status == InstanceStatus::Pending {
        ctx.wakes.wake(Key::Schedule(before.project_id));
    }
}

/// Whose runs and projects hear of it.
fn placed_jobs(commit: &Commit) -> Vec<(RunId, ProjectId)> {
    let of_jobs = commit.puts.iter().filter_map(|put| match put {
        Put::Job(job) if job.status == JobStatus::Provisioning => Some((job.run_id, job.project_id)),
        _ => None,
    });
    of_jobs.collect()
}

/// Calls that the stored state wants.
fn intended<'a>(
    snapshot: &'a InstanceSnapshot,
    commit: &'a Commit,
) -> impl Iterator<Item = OperationKind> + 'a {
    let new = commit.puts.iter().filter_map(|put| match put {
        Put::Operation(row) => Some(row),
        _ => None,
    });
    let all = snapshot.operations.iter().chain(new);
    all.filter(|row| row.state == OperationState::Intended)
        .map(|row| row.kind)
}

/// The rows as they shall be.
struct Change {
    row: InstanceRow,
    /// What is written with it.
    also: Commit,
}

async fn change(ctx: &Arc<Context>, snapshot: &InstanceSnapshot) -> Result<Change> {
    let now = ctx.now();
    let mut change = Change {
        row: snapshot.instance.clone(),
        also: Commit::default(),
    };
    let creation = operation(snapshot, OperationKind::CreateInstance).and_then(Creation::read);
    let (in_reach, unreachable_since) = ctx.seen.instance(snapshot.instance.id);
    health(ctx, &mut change, now);
    reach(ctx, &mut change, in_reach, unreachable_since, now);
    let mut facts = facts(snapshot, creation.as_ref(), in_reach);
    facts.unreachable_until = change.row.unreachable.then(|| lost_at(&snapshot.instance, now));
    let size = match facts.idle_for {
        Some(_) => Size::of_fleet(ctx, snapshot).await?,
        None => Size::Any,
    };
    if matches!(size, Size::Smallest) {
        facts.idle_for = None;
    }
    match decide(&facts, now) {
        Decision::Stay => wait_for(&mut change.row, Wait::for_nothing()),
        Decision::Wait(wait) => wait_for(&mut change.row, wait),
        Decision::BringUp => bring_up(ctx, snapshot, &mut change, now).await?,
        Decision::Made => made(ctx, snapshot, creation.as_ref(), &mut change, now),
        Decision::NotMade(error) => not_made(ctx, snapshot, error, &mut change, now).await?,
        Decision::Ready(status) => {
            wait_for(&mut change.row, Wait::for_nothing());
            change.row.status = status;
        }
        Decision::End(reason, message) => {
            end(&mut change.row, reason, message, now);
            // Two that are idle for too long at the same time do not end both where one of them is wanted.
            if let (InstanceTerminationReason::IdleTimeout, Size::Larger(fleet)) = (reason, size) {
                change.also.puts.push(Put::Fleet(counted(&fleet, now)));
            }
        }
        Decision::IntendTermination(wait) => {
            remember_place(creation.as_ref(), &mut change.row);
            let operation = calls::intend(ctx, snapshot.instance.id, OperationKind::TerminateInstance, now);
            change.also.puts.push(Put::Operation(operation));
            wait_for(&mut change.row, wait);
        }
        Decision::Gone => {
            let message = "The instance that was being made for the job was terminated";
            refuse_waiting(ctx, snapshot, message, &mut change).await?;
            gone(&mut change.row, now);
        }
    }
    if change.row.unreachable && change.row.status.is_available() {
        change.row.waiting_for = Some(format!("the agent of {} to be reachable again", change.row.name));
    }
    let (from, to) = (snapshot.instance.status, change.row.status);
    if from != to && !instance_allowed(from, to) {
        tracing::error!(instance.id = %snapshot.instance.id, ?from, ?to, "transition is not allowed");
        return Ok(Change {
            row: snapshot.instance.clone(),
            also: Commit::default(),
        });
    }
    if from != to {
        let maker = Events::system(now, ctx.deps.random.clone());
        let event = maker.instance_status(&snapshot.instance, &change.row);
        change.also.events.insert(0, event);
        tracing::info!(instance.name = change.row.name, ?from, ?to, "instance changed");
    }
    Ok(change)
}

/// How the GPUs are, by the agent's last word. Of one that is going nobody wants to know.
fn health(ctx: &Context, change: &mut Change, now: Time) {
    let row = &change.row;
    let told = ctx.seen.health(row.id).filter(|_| row.status.is_active());
    let Some(is) = told.filter(|is| *is != row.health) else {
        return;
    };
    let was = row.clone();
    change.row.health = is;
    let maker = Events::system(now, ctx.deps.random.clone());
    change.also.events.push(maker.instance_health(&was, &change.row));
}

/// Whether the agent answers. One that is still being set up, or ended, need not.
fn reach(ctx: &Context, change: &mut Change, in_reach: bool, unreachable_since: Option<Time>, now: Time) {
    if !change.row.status.is_available() || (!in_reach && unreachable_since.is_none()) {
        return;
    }
    let was = change.row.unreachable;
    change.row.unreachable = unreachable_since.is_some();
    if change.row.unreachable == was {
        return;
    }
    let text = if was {
        "Instance became reachable"
    } else {
        "Instance became unreachable"
    };
    let maker = Events::system(now, ctx.deps.random.clone());
    let event = maker.event(text, vec![events::instance(&change.row)]);
    change.also.events.push(event);
}

/// Until when an agent that is out of reach is waited for.
fn lost_at(before: &InstanceRow, now: Time) -> Time {
    let known = before.deadline_at.filter(|_| before.unreachable);
    known.unwrap_or(now + UNREACHABLE_TIMEOUT)
}

fn operation(snapshot: &InstanceSnapshot, kind: OperationKind) -> Option<&OperationRow> {
    snapshot.operations.iter().find(|row| row.kind == kind)
}

fn facts(snapshot: &InstanceSnapshot, creation: Option<&Creation>, in_reach: bool) -> Facts {
    let row = &snapshot.instance;
    let place = row.job_provisioning_data.as_deref();
    let idle = row.status == InstanceStatus::Idle;
    Facts {
        name: row.name.clone(),
        status: row.status,
        purpose: purpose(snapshot, creation),
        fleet_ends: snapshot
            .fleet
            .as_ref()
            .is_some_and(|fleet| fleet.status == FleetStatus::Terminating),
        create: progress(&snapshot.operations, OperationKind::CreateInstance),
        terminate: progress(&snapshot.operations, OperationKind::TerminateInstance),
        jobs: snapshot.jobs.len(),
        in_reach,
        asked_at: operation(snapshot, OperationKind::CreateInstance)
            .map_or(row.created_at, |asked| asked.created_at),
        started_at: row.started_at,
        timeout: place.map_or(Duration::ZERO, |place| {
            provisioning_timeout(place.backend, &place.instance_type.name)
        }),
        one_job: place.is_some_and(|place| !place.dockerized),
        idle_since: row
            .last_job_processed_at
            .or(row.started_at)
            .unwrap_or(row.created_at),
        idle_for: creation.filter(|_| idle).and_then(Creation::idle_for),
        unreachable_until: None,
    }
}

fn purpose(snapshot: &InstanceSnapshot, creation: Option<&Creation>) -> Purpose {
    if let Some(creation) = creation {
        return creation.purpose();
    }
    let of_clouds = snapshot
        .fleet
        .as_ref()
        .is_some_and(|fleet| is_of_clouds(&fleet.spec));
    match of_clouds && snapshot.jobs.is_empty() {
        true => Purpose::Fleet,
        false => Purpose::Host,
    }
}

/// How many instances a fleet has.
enum Size {
    /// It does not matter.
    Any,
    /// As few as it may have.
    Smallest,
    /// More than it must have; the fleet as it was when they were counted.
    Larger(Box<FleetRow>),
}

impl Size {
    async fn of_fleet(ctx: &Context, snapshot: &InstanceSnapshot) -> Result<Self> {
        let Some(fleet) = &snapshot.fleet else {
            return Ok(Self::Any);
        };
        let min = fleet.spec.configuration.nodes.map_or(0, |nodes| nodes.min);
        if min == 0 {
            return Ok(Self::Any);
        }
        let Some(found) = ctx.deps.store.fleet(fleet.id).await? else {
            return Ok(Self::Any);
        };
        let active = found
            .instances
            .iter()
            .filter(|row| row.status.is_active())
            .count();
        Ok(match i64::try_from(active).unwrap_or(i64::MAX) <= min {
            true => Self::Smallest,
            false => Self::Larger(Box::new(found.fleet)),
        })
    }
}

fn wait_for(row: &mut InstanceRow, wait: Wait) {
    row.deadline_at = wait.deadline;
    row.next_wake_at = wait.wake_at;
    row.waiting_for = Some(wait.reason).filter(|reason| !reason.is_empty());
}

/// The fleet wants it: what is asked of the clouds is written down, if they have something.
async fn bring_up(
    ctx: &Arc<Context>,
    snapshot: &InstanceSnapshot,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    match node::look(ctx, snapshot).await? {
        node::Outlook::Later(wait) => wait_for(&mut change.row, wait),
        node::Outlook::No(message) => nothing_for_fleet(&mut change.row, message),
        node::Outlook::Yes(operation) => {
            // Written with it, so that an instance that is ended at the same time is not made.
            change.row.next_wake_at = Some(now);
            change.row.waiting_for = Some("the cloud to be asked".to_owned());
            change.row.last_processed_at = now;
            change.also.puts.push(Put::Operation(*operation));
        }
    }
    Ok(())
}

/// Where the cloud has made it, and of what.
fn remember_place(creation: Option<&Creation>, row: &mut InstanceRow) {
    let Some((offer, place)) = creation.and_then(Creation::made) else {
        return;
    };
    if row.job_provisioning_data.is_none() {
        *row = row.clone().offering(offer.clone(), place.clone());
    }
}

fn made(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    creation: Option<&Creation>,
    change: &mut Change,
    now: Time,
) {
    let row = &mut change.row;
    remember_place(creation, row);
    row.status = InstanceStatus::Provisioning;
    row.started_at = Some(now);
    row.total_blocks = Some(row.offer.as_deref().map_or(1, |offer| offer.total_blocks.into()));
    let place = row.job_provisioning_data.clone();
    row.agent = place
        .and_then(|place| ctx.deps.agents.address(row.id, &place))
        .map(Json::new);
    row.next_wake_at = Some(now);
    let maker = Events::system(now, ctx.deps.random.clone());
    for before in snapshot
        .jobs
        .iter()
        .filter(|job| job.status == JobStatus::Submitted)
    {
        let Some(job) = placed(ctx, before, row, now) else {
            continue;
        };
        change.also.events.push(maker.assigned(&job, row));
        change.also.events.push(maker.job_status(before, &job));
        change.also.puts.push(Put::Job(job));
    }
}

/// A job whose instance has been made.
fn placed(ctx: &Context, before: &JobRow, instance: &InstanceRow, now: Time) -> Option<JobRow> {
    let choice = Choice {
        fleet_id: instance.fleet_id?,
        instance_id: instance.id,
        offer: instance.offer.as_deref()?.clone(),
        whole: true,
        local: false,
    };
    let runtime = choice.runtime_data(
        ctx.deps.settings.host_network,
        before.job_spec.jobs_per_replica > 1,
    );
    Some(JobRow {
        status: JobStatus::Provisioning,
        used_instance_id: Some(instance.id),
        fleet_id: Some(choice.fleet_id),
        job_provisioning_data: instance.job_provisioning_data.clone(),
        job_runtime_data: Some(Json::new(runtime)),
        last_processed_at: now,
        next_wake_at: Some(now),
        waiting_for: Some(format!("the agent of {}", instance.name)),
        ..before.clone()
    })
}

/// No offer worked: the jobs end as those do for which there is no place.
async fn not_made(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    error: String,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    refuse_waiting(ctx, snapshot, &error, change).await?;
    let creation = operation(snapshot, OperationKind::CreateInstance).and_then(Creation::read);
    if purpose(snapshot, creation.as_ref()) == Purpose::Fleet {
        nothing_for_fleet(&mut change.row, error);
        return Ok(());
    }
    change.row.termination_reason = Some(InstanceTerminationReason::NoOffers);
    change.row.termination_reason_message = Some(error);
    gone(&mut change.row, now);
    Ok(())
}

/// Nothing was made for the fleet. It is shown with the reason, until the fleet decides what to do.
fn nothing_for_fleet(row: &mut InstanceRow, message: String) {
    row.status = InstanceStatus::Terminated;
    row.termination_reason = Some(InstanceTerminationReason::NoOffers);
    row.termination_reason_message = Some(message);
    wait_for(row, Wait::for_nothing());
}

/// Ends the jobs that still wait for the instance: nobody else would.
async fn refuse_waiting(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    message: &str,
    change: &mut Change,
) -> Result<()> {
    let mut refused = Refused::new();
    for job in snapshot
        .jobs
        .iter()
        .filter(|job| job.status == JobStatus::Submitted)
    {
        let ended = schedule::refuse(ctx, job, message.to_owned());
        refused.entry(job.run_id).or_default().push(ended);
    }
    let runs: BTreeMap<_, _> = schedule::snapshots(ctx, refused.keys().copied()).await?;
    let ends = schedule::ends(ctx, refused, runs).await?;
    change.also.puts.extend(ends.puts);
    change.also.events.extend(ends.events);
    Ok(())
}

fn end(row: &mut InstanceRow, reason: InstanceTerminationReason, message: String, now: Time) {
    row.status = InstanceStatus::Terminating;
    row.termination_reason = Some(reason);
    row.termination_reason_message = Some(message).filter(|message| !message.is_empty());
    row.next_wake_at = Some(now);
    row.waiting_for = Some("the instance to be ended".to_owned());
}

fn gone(row: &mut InstanceRow, now: Time) {
    row.status = InstanceStatus::Terminated;
    row.busy_blocks = 0;
    row.finished_at = Some(now);
    row.deleted = true;
    row.deleted_at = Some(now);
    row.deadline_at = None;
    row.next_wake_at = None;
    row.waiting_for = None;
}

fn commit(snapshot: &InstanceSnapshot, change: Change, now: Time) -> Commit {
    let Change {
        mut row,
        also: mut commit,
    } = change;
    if row != snapshot.instance {
        row.last_processed_at = now;
        commit.puts.push(Put::Instance(row));
    }
    commit
}
