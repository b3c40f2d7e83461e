//! Instances: whether their agent is in reach, and what becomes of those that clouds make for jobs and fleets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::shim::TaskStatus;
use dstack_compute::Sign;
use dstack_model::fleets::FleetStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::runs::{JobProvisioningData, JobStatus, JobTerminationReason};
use dstack_plan::hosts;
use dstack_plan::lifecycle::compute_group::ComputeGroupState;
use dstack_plan::lifecycle::instance::{
    AgentTrouble, CloudSign, Decision, Facts, Purpose, Repair, UNREACHABLE_TIMEOUT, decide,
};
use dstack_plan::lifecycle::job::Progress;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::placement::Choice;
use dstack_store::rows::{
    AgentAddress, AttachmentRow, FleetRow, InstanceRow, JobRow, OperationKind, OperationRow, OperationState,
};
use dstack_store::writes::Change as StoredChange;
use dstack_store::{
    AttachmentsOf, Changes, Commit, EntityRef, EventMaker, InstanceSnapshot, Json, Put, Sealed, events,
};
use dstack_units::{InstanceId, ProjectId, RunId, Time};

use super::fleet_view::counted;
use super::node;
use super::refusal::{Refused, ends, refuse, snapshots};
use crate::Result;
use crate::context::Context;
use crate::follow;
use crate::hosts::ReadyHost;
use crate::job_volumes::{ProjectVolumes, kept, not_attached};
use crate::operations::containers::{self, ReadyContainer};
use crate::operations::instances::OfferAttempts;
use crate::operations::{self, last_of, progress};
use crate::running::Work;
use crate::wakes::Key;

/// Keeps the row of an instance true, and takes it to its end.
pub async fn reconcile(ctx: &Arc<Context>, id: InstanceId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.instance(id).await? else {
        return Ok(());
    };
    let before = &snapshot.instance;
    if before.deleted || before.status() == InstanceStatus::Terminated {
        ctx.finished(EntityRef::Instance(id));
        return Ok(());
    }
    if let Some(address) = &before.agent {
        follow::shim::ensure(ctx, before, (**address).clone());
    }
    let change = change(ctx, &snapshot).await?;
    match is_looked_at(&snapshot, &change.row) {
        true => ctx.looks.follow(&change.row),
        false => ctx.looks.forget(id),
    }
    ctx.wakes
        .wake_at(EntityRef::Instance(id), change.row.next_wake_at());
    let changed = change.row.status() != before.status();
    let is_over = change.row.status() == InstanceStatus::Terminated;
    let takes_more = change.row.health != before.health
        || change.row.unreachable != before.unreachable
        || change.row.leaving_because != before.leaving_because;
    let commit = commit(&snapshot, change, ctx.now());
    let intended: Vec<OperationKind> = operations::intended(&snapshot.operations, &commit).collect();
    let given_up: Vec<OperationKind> = operations::given_up(&commit).collect();
    let placed = placed_jobs(&commit);
    ctx.commit(("instance.commit.before", "instance.commit.after"), commit)
        .await?;
    for kind in given_up {
        ctx.running
            .cut_off(Work::Operation(EntityRef::Instance(id), kind));
    }
    for kind in intended {
        operations::ensure(ctx, EntityRef::Instance(id), kind);
    }
    if is_over && let Some(host) = operations::hosts::host_of(&snapshot) {
        let prepared = operations::hosts::preparation(&snapshot);
        ctx.deps.hosts.forget(host, prepared.as_ref());
    }
    for (run, project) in placed {
        ctx.wakes.wake(EntityRef::Run(run));
        // The other nodes of the run may have waited for this one.
        ctx.wakes.wake(Key::Schedule(project));
    }
    if changed {
        tell_fleet(ctx, before);
        // Where that cannot be read now, they are looked at with all rows, half a minute later at most.
        if let Err(error) = wake_volumes(ctx, &snapshot).await {
            ctx.report("wake volumes", &error);
        }
    }
    if takes_more {
        // Jobs that wait may have a place now, or none any more.
        ctx.wakes.wake(Key::Schedule(before.project_id));
    }
    // One that waits for the instance to be made has nothing to decide.
    for job in snapshot
        .jobs
        .iter()
        .filter(|job| job.status() != JobStatus::Submitted)
    {
        ctx.wakes.wake(EntityRef::Job(job.id));
    }
    Ok(())
}

/// What makes it: its own operation, or that of the group that it belongs to.
fn creation(snapshot: &InstanceSnapshot) -> Option<&OperationRow> {
    let operations = match &snapshot.group {
        Some(group) => &group.operations,
        None => &snapshot.operations,
    };
    last_of(operations, OperationKind::Create)
}

/// The offers that are tried for it.
fn attempts_of(snapshot: &InstanceSnapshot) -> Option<OfferAttempts> {
    let attempts = creation(snapshot).and_then(OfferAttempts::read)?;
    let Some(group) = &snapshot.group else {
        return Some(attempts);
    };
    let node = group
        .row
        .members
        .iter()
        .position(|id| *id == snapshot.instance.id)?;
    Some(attempts.of_member(node))
}

/// How far it is made, and how far it is removed. A member of a group goes with all of it: that is waited for.
fn made_and_removed(snapshot: &InstanceSnapshot) -> (Progress, Progress) {
    let of = |operations: &[OperationRow]| {
        (
            progress(operations, OperationKind::Create),
            progress(operations, OperationKind::Remove),
        )
    };
    let Some(group) = &snapshot.group else {
        return of(&snapshot.operations);
    };
    let (create, remove) = of(&group.operations);
    match (group.row.status(), remove) {
        (ComputeGroupState::Terminated, _) => (create, Progress::Done),
        (_, Progress::None) => (create, Progress::Intended(None)),
        (_, remove) => (create, remove),
    }
}

/// Whether the cloud is asked how an instance is: one that it has made, and that is to go on.
fn is_looked_at(snapshot: &InstanceSnapshot, row: &InstanceRow) -> bool {
    let is_made = creation(snapshot).is_some();
    is_made && row.job_provisioning_data.is_some() && row.status().is_active()
}

/// The fleet decides about its size, its compute group about its end, and the jobs that want to be beside the first instance of a cluster know where it is.
fn tell_fleet(ctx: &Context, before: &InstanceRow) {
    if let Some(fleet) = before.fleet_id {
        ctx.wakes.wake(EntityRef::Fleet(fleet));
    }
    if let Some(group) = before.compute_group_id {
        ctx.wakes.wake(EntityRef::ComputeGroup(group));
    }
    if before.status() == InstanceStatus::Pending {
        ctx.wakes.wake(Key::Schedule(before.project_id));
    }
}

/// Volumes come when an instance is ready, and those that it was made with are free when it is gone.
async fn wake_volumes(ctx: &Context, snapshot: &InstanceSnapshot) -> Result<()> {
    // A container has those that it was made with also when its job is over.
    let may_have_some = snapshot.jobs.iter().any(JobRow::mounts_volumes) || containers::is_made(snapshot);
    if !may_have_some {
        return Ok(());
    }
    let instance = snapshot.instance.id;
    let attached = ctx.deps.store.attachments(AttachmentsOf::Instance(instance));
    for volume in attached.await? {
        ctx.wakes.wake(EntityRef::Attachment(volume.row.id));
    }
    Ok(())
}

/// Whose runs and projects hear of it.
fn placed_jobs(commit: &Commit) -> Vec<(RunId, ProjectId)> {
    let of_jobs = commit.puts().iter().filter_map(|put| match put {
        Put::Job(job) if job.status() == JobStatus::Provisioning => Some((job.run_id, job.project_id)),
        _ => None,
    });
    of_jobs.collect()
}

/// The rows as they shall be.
struct Change {
    row: InstanceRow,
    /// What is written with it.
    side_effects: Changes,
}

async fn change(ctx: &Arc<Context>, snapshot: &InstanceSnapshot) -> Result<Change> {
    let now = ctx.now();
    let mut change = Change {
        row: snapshot.instance.clone(),
        side_effects: Changes::new(EventMaker::system(now, ctx.deps.random.clone())),
    };
    let attempts = attempts_of(snapshot);
    let (in_reach, unreachable_since) = ctx.seen.instance(snapshot.instance.id);
    observe_health(ctx, &mut change.row);
    observe_reach(&mut change.row, in_reach, unreachable_since);
    observe_machine(ctx, &mut change.row);
    let sign = ctx.seen.sign(snapshot.instance.id);
    observe_place(snapshot, &mut change, sign.as_ref());
    observe_notice(&mut change.row, sign.as_ref());
    let mut facts = facts(snapshot, attempts.as_ref(), in_reach);
    facts.timeout = provisioning_timeout(ctx, &snapshot.instance);
    facts.trouble = agent_trouble(ctx, snapshot, in_reach);
    facts.sign = cloud_sign(&change.row, sign);
    facts.unreachable_because = ctx.seen.unreachable_because(snapshot.instance.id);
    facts.unreachable_until = change.row.unreachable.then(|| lost_at(&snapshot.instance, now));
    let size = match facts.idle_for {
        Some(_) => Size::of_fleet(ctx, snapshot).await?,
        None => Size::Any,
    };
    if matches!(size, Size::Smallest) {
        facts.idle_for = None;
    }
    let released = release_abandoned(ctx, snapshot, in_reach, &mut change, now);
    let decision = decide(&facts, now);
    apply(ctx, snapshot, decision, attempts.as_ref(), size, &mut change).await?;
    // These say more.
    let is_told = matches!(
        change.row.waiting_for(),
        Some(WaitReason::HostSetUpAgain { .. } | WaitReason::JobsEndedBefore { .. })
    );
    if change.row.unreachable && change.row.status().is_available() && !is_told {
        let reason = WaitReason::AgentReachableAgain {
            instance: change.row.name.clone(),
            error: facts.unreachable_because.clone(),
        };
        let wait = Wait {
            deadline: change.row.deadline_at(),
            wake_at: change.row.next_wake_at(),
            reason: Some(reason),
        };
        change.row.wait(wait);
    }
    if released {
        // It may be idle now: decided upon with nothing held.
        change.row.wake_at(now);
    }
    let (from, to) = (snapshot.instance.status(), change.row.status());
    if from != to {
        tracing::info!(instance.name = change.row.name, ?from, ?to, "instance changed");
    }
    Ok(change)
}

async fn apply(
    ctx: &Arc<Context>,
    snapshot: &InstanceSnapshot,
    decision: Decision,
    attempts: Option<&OfferAttempts>,
    size: Size,
    change: &mut Change,
) -> Result<()> {
    let now = ctx.now();
    match decision {
        Decision::Stay => change.row.wait(Wait::none()),
        Decision::Wait(wait) => change.row.wait(wait),
        Decision::BringUp => bring_up(ctx, snapshot, change, now).await?,
        Decision::Made => made(ctx, snapshot, attempts, change, now).await?,
        Decision::NotMade(error) => not_made(ctx, snapshot, error, change, now).await?,
        Decision::Ready(status) => change.row.make_ready(status)?,
        Decision::End(reason, message) => {
            let message = Some(message).filter(|message| !message.is_empty());
            change.row.terminate(reason, message, now)?;
            // Two that are idle for too long at the same time do not end both where one of them is wanted.
            if let (InstanceTerminationReason::IdleTimeout, Size::Larger(fleet)) = (reason, size) {
                change.side_effects.touch(counted(&fleet, now));
            }
        }
        Decision::IntendPreparation(wait) => intend(ctx, snapshot, OperationKind::Prepare, wait, change),
        Decision::IntendRelease(wait) => intend(ctx, snapshot, OperationKind::Release, wait, change),
        Decision::Prepared if snapshot.instance.status() == InstanceStatus::Provisioning => {
            agent_brought(snapshot, change, now)?;
        }
        Decision::Prepared => prepared(ctx, snapshot, change, now).await?,
        Decision::PrepareAgain(repair, wait) => prepare_again(ctx, snapshot, repair, wait, change),
        Decision::PreparedAgain => {
            if let Some(PreparedAgain { agent, host }) = PreparedAgain::of(snapshot) {
                change.row.host_ready_again(host, agent);
            }
            change.row.wait(Wait::none());
        }
        Decision::GiveUpPreparation => {
            give_up(snapshot, OperationKind::Prepare, change);
            change.row.wait(Wait::briefly(now, WaitReason::InstanceEnded));
        }
        Decision::LeftBehind(error) => {
            note(change, format!("Agent is left on the host: {error}"));
            give_up(snapshot, OperationKind::Release, change);
            change.row.finish(now)?;
        }
        Decision::IntendTermination(wait) => {
            remember_place(attempts, &mut change.row);
            intend(ctx, snapshot, OperationKind::Remove, wait, change);
        }
        Decision::Gone => {
            let message = "The instance that was being made for the job was terminated";
            refuse_waiting(ctx, snapshot, message, change).await?;
            give_up(snapshot, OperationKind::Prepare, change);
            give_up(snapshot, OperationKind::Release, change);
            change.row.finish(now)?;
        }
    }
    Ok(())
}

/// Writes down what is to be done, and waits for it.
fn intend(ctx: &Context, snapshot: &InstanceSnapshot, kind: OperationKind, wait: Wait, change: &mut Change) {
    let subject = EntityRef::Instance(snapshot.instance.id);
    let operation = operations::intend(ctx, subject, kind, ctx.now());
    change.side_effects.intend(operation);
    change.row.wait(wait);
}

/// Adds an event to the story of the instance.
fn note(change: &mut Change, text: String) {
    let maker = change.side_effects.maker();
    let event = maker.event(text, vec![events::instance(&change.row)]);
    change.side_effects.event(event);
}

/// An operation that is under way ends as it is, whatever its call may still come to.
fn give_up(snapshot: &InstanceSnapshot, kind: OperationKind, change: &mut Change) {
    let last = last_of(&snapshot.operations, kind);
    if let Some(under_way) = last.filter(|operation| operation.state == OperationState::Intended) {
        let given_up = operations::hosts::given_up_as_it_is(under_way);
        change.side_effects.intend(given_up);
    }
}

/// What is to be told of an agent on a host that SSH reaches; `None`: nothing, or nobody knows.
fn agent_trouble(ctx: &Context, snapshot: &InstanceSnapshot, in_reach: bool) -> Option<AgentTrouble> {
    snapshot.instance.agent.as_deref()?.reach()?;
    if !in_reach {
        let silent = ctx.seen.silent_since(snapshot.instance.id);
        let mute = || ctx.seen.mute_since(snapshot.instance.id);
        let silent = silent.map(AgentTrouble::Silent);
        return silent.or_else(|| mute().map(AgentTrouble::Mute));
    }
    let ready = operations::hosts::ready_host(snapshot)?;
    let ours = ctx.deps.hosts.build(&ready.report.arch)?;
    (ready.build != Some(ours)).then_some(AgentTrouble::OtherBuild)
}

fn prepare_again(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    repair: Repair,
    wait: Wait,
    change: &mut Change,
) {
    note(change, format!("Host is set up again: {repair}"));
    match last_of(&snapshot.operations, OperationKind::Prepare) {
        None => intend(ctx, snapshot, OperationKind::Prepare, wait, change),
        Some(last) => {
            change.side_effects.intend(last.clone().anew(ctx.now()));
            change.row.wait(wait);
        }
    }
}

/// How the agent of a host is reached from now on.
fn address(ready: &ReadyHost, project: ProjectId) -> AgentAddress {
    AgentAddress::Ssh {
        reach: Box::new(hosts::with_project_key(ready.reach.clone(), project)),
        shim_port: ready.shim_port,
        runtime: ready.report.runtime.clone(),
    }
}

/// What the last preparation of a host that is in use has brought.
struct PreparedAgain {
    agent: AgentAddress,
    /// What the host offers; `None`: as before, since jobs have a share of it, or since it cannot be what its fleet wants.
    host: Option<hosts::PreparedHost>,
}

impl PreparedAgain {
    /// `None`: nothing that is not so already.
    fn of(snapshot: &InstanceSnapshot) -> Option<Self> {
        let row = &snapshot.instance;
        let ready = operations::hosts::ready_host(snapshot).filter(|ready| ready.build.is_some())?;
        let agent = address(&ready, row.project_id);
        let is_free = row.status() == InstanceStatus::Idle && row.busy_blocks == 0;
        let host = is_free.then(|| offered_now(snapshot, &ready)).flatten();
        let is_known = row.agent.as_deref() == Some(&agent) && host.is_none();
        (!is_known).then_some(Self { agent, host })
    }
}

/// What a host offers by its report, where that is not what it offered.
fn offered_now(snapshot: &InstanceSnapshot, ready: &ReadyHost) -> Option<hosts::PreparedHost> {
    let row = &snapshot.instance;
    let known = row.job_provisioning_data.as_deref()?;
    let (place, blocks) = hosts::as_configured(&snapshot.fleet.as_ref()?.spec, known);
    let (info, arch) = (&ready.report.host_info, &ready.report.arch);
    let host = hosts::prepared(&ready.reach, &place, blocks, info, arch).ok()?;
    let is_same = host.place == *known
        && row.offer.as_deref() == Some(&host.offer)
        && row.total_blocks == Some(host.total_blocks);
    (!is_same).then_some(host)
}

/// The agent was brought to a machine or a container of a cloud: it takes jobs once the agent has told all its tasks.
fn agent_brought(snapshot: &InstanceSnapshot, change: &mut Change, now: Time) -> Result<()> {
    let machine = || operations::hosts::ready_host(snapshot);
    let container = || ReadyContainer::of(snapshot).map(ReadyContainer::address);
    let project = change.row.project_id;
    let agent = machine().map(|ready| address(&ready, project)).or_else(container);
    let Some(agent) = agent else {
        let message = "what the host has is stored in a form that this version cannot read";
        let reason = InstanceTerminationReason::Error;
        return Ok(change.row.terminate(reason, Some(message.to_owned()), now)?);
    };
    change.row.agent = Some(Json::new(agent));
    // Decided upon again, with the agent followed.
    change.row.wake_at(now);
    Ok(())
}

/// A host's agent answers: it takes jobs, unless it cannot be what its fleet wants, or its machine is another host already.
async fn prepared(ctx: &Context, snapshot: &InstanceSnapshot, change: &mut Change, now: Time) -> Result<()> {
    let ready = operations::hosts::ready_host(snapshot);
    if let Some(machine) = ready.as_ref().and_then(|ready| ready.machine.clone()) {
        let (instance, project) = (snapshot.instance.id, snapshot.instance.project_id);
        let mut others = ctx.deps.store.hosts_on(&machine).await?;
        others.retain(|other| other.id != instance);
        let is_same = |other: &&InstanceRow| {
            let other_way = other.agent.as_deref().and_then(AgentAddress::reach);
            let own_way = ready.as_ref().map(|ready| &ready.reach);
            own_way.is_some_and(|way| hosts::are_one_machine((project, way), (other.project_id, other_way)))
        };
        if let Some(other) = others.iter().find(is_same) {
            return taken(ctx, snapshot, other, change, now).await;
        }
        change.row.machine = Some(machine.clone());
        // Whoever is first has it: the other decides again.
        let expected = StoredChange::ExpectOwnMachine {
            instance,
            machine,
            apart: others.iter().map(|other| other.id).collect(),
        };
        change.side_effects.directory(expected);
    }
    let (row, Some(ready)) = (&mut change.row, ready) else {
        let message = "what the host has is stored in a form that this version cannot read";
        let reason = InstanceTerminationReason::Error;
        return Ok(change.row.terminate(reason, Some(message.to_owned()), now)?);
    };
    let agent = address(&ready, row.project_id);
    // It is reached for its end as well.
    row.agent = Some(Json::new(agent.clone()));
    let Some(before) = row.job_provisioning_data.clone() else {
        return Ok(row.terminate(InstanceTerminationReason::Error, None, now)?);
    };
    let reach = agent.reach();
    let info = &ready.report.host_info;
    let host = reach.map(|reach| hosts::prepared(reach, &before, row.total_blocks, info, &ready.report.arch));
    match host {
        Some(Ok(host)) => row.host_ready(host, agent, now)?,
        Some(Err(problem)) => {
            row.terminate(InstanceTerminationReason::Error, Some(problem.to_string()), now)?;
        }
        None => {}
    }
    Ok(())
}

/// The machine is another host already, which is set up again: its agent may have been replaced by the one of this. Nothing is
/// released: what stands there is the other's.
async fn taken(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    other: &InstanceRow,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    let row = &mut change.row;
    let message = operations::hosts::is_machine_of(row, other);
    row.terminate(InstanceTerminationReason::Error, Some(message.clone()), now)?;
    if let Some(last) = last_of(&snapshot.operations, OperationKind::Prepare) {
        let ended = operations::hosts::left_alone(last.clone(), message, now);
        change.side_effects.intend(ended);
    }
    if let Some(again) = operations::hosts::prepared_anew(ctx, other.id).await? {
        change.side_effects.intend(again);
    }
    Ok(())
}

/// Gives back what jobs held that were given up while the agent was out of reach, once nothing of them is left; whether there
/// was something to give back.
fn release_abandoned(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    in_reach: bool,
    change: &mut Change,
    now: Time,
) -> bool {
    let mut released = false;
    for before in snapshot.jobs.iter().filter(|job| job.status().is_finished()) {
        let task = ctx.seen.task(snapshot.instance.id, before.id);
        let is_gone = match task {
            Some(None) => true,
            Some(Some(task)) => task.status == TaskStatus::Terminated,
            None => false,
        };
        // What was on an instance that is being ended goes with it.
        let ends = change.row.status() == InstanceStatus::Terminating;
        if (in_reach && is_gone) || ends {
            let mut job = before.clone();
            job.leave_instance();
            change.row.release(super::job::blocks_of(before), now);
            let event = change.side_effects.maker().unassigned(before, &change.row);
            change.side_effects.event(event);
            change.side_effects.update(before, job);
            released = true;
        }
    }
    released
}

/// Takes over what the agent last said of the GPUs. The health of an instance that is ending is of no interest.
fn observe_health(ctx: &Context, row: &mut InstanceRow) {
    if let Some(health) = ctx.seen.health(row.id).filter(|_| row.status().is_active()) {
        row.health = health;
    }
}

/// Takes over whether the agent answers. One that is still being set up, or ended, need not.
fn observe_reach(row: &mut InstanceRow, in_reach: bool, unreachable_since: Option<Time>) {
    if row.status().is_available() && (in_reach || unreachable_since.is_some()) {
        row.unreachable = unreachable_since.is_some();
        row.unreachable_since = unreachable_since;
    }
}

/// A host that was started again goes on as the machine that it is now.
fn observe_machine(ctx: &Context, row: &mut InstanceRow) {
    if let Some(machine) = ctx.seen.machine(row.id)
        && row.status().is_available()
    {
        row.machine = Some(machine);
    }
}

/// Follows an instance that its cloud has moved to another address; so do its jobs, which clients reach there.
fn observe_place(snapshot: &InstanceSnapshot, change: &mut Change, sign: Option<&Sign<JobProvisioningData>>) {
    let Some(Sign::Moved(place)) = sign else { return };
    let row = &mut change.row;
    if row.job_provisioning_data.as_deref() == Some(place) || !row.status().is_active() {
        return;
    }
    let before = row.job_provisioning_data.replace(Sealed::new(place.clone()));
    let moved = row.agent.as_deref().and_then(|agent| agent.moved_to(place));
    if let Some(agent) = moved {
        row.agent = Some(Json::new(agent));
    }
    let port = before.as_deref().and_then(|before| before.ssh_port);
    for job in snapshot.jobs.iter().filter(|job| !job.status().is_finished()) {
        let Some(known) = job.job_provisioning_data.as_deref() else {
            continue;
        };
        let mut moved = job.clone();
        moved.job_provisioning_data = Some(Sealed::new(JobProvisioningData {
            hostname: place.hostname.clone(),
            internal_ip: place.internal_ip.clone(),
            // Where its container has a port of its own, that is the same.
            ssh_port: match known.ssh_port == port {
                true => place.ssh_port,
                false => known.ssh_port,
            },
            ssh_proxy: place.ssh_proxy.clone(),
            ..known.clone()
        }));
        change.side_effects.update(job, moved);
    }
}

/// Keeps what its cloud says of the end of the instance, until the cloud says otherwise.
fn observe_notice(row: &mut InstanceRow, sign: Option<&Sign<JobProvisioningData>>) {
    match sign {
        Some(Sign::Ending { at, why }) => {
            row.leaving_because = Some(why.clone());
            row.leaving_at = *at;
        }
        Some(Sign::Well | Sign::Moved(_)) => {
            row.leaving_because = None;
            row.leaving_at = None;
        }
        // It was not looked at yet, or is gone: neither takes back what was said.
        Some(Sign::Lost(_)) | None => {}
    }
}

fn cloud_sign(row: &InstanceRow, sign: Option<Sign<JobProvisioningData>>) -> Option<CloudSign> {
    if let Some(Sign::Lost(why)) = sign {
        return Some(CloudSign::Lost(why));
    }
    let why = row.leaving_because.clone()?;
    let at = row.leaving_at;
    Some(CloudSign::Ending { at, why })
}

/// Until when an agent that is out of reach is waited for.
fn lost_at(before: &InstanceRow, now: Time) -> Time {
    let known = before.deadline_at().filter(|_| before.unreachable);
    known.unwrap_or(now + UNREACHABLE_TIMEOUT)
}

/// How long it may take until its agent answers; nothing before its backend has made it.
fn provisioning_timeout(ctx: &Context, row: &InstanceRow) -> Duration {
    let place = row.job_provisioning_data.as_deref();
    place.map_or(Duration::ZERO, |place| {
        let instance_type = &place.instance_type.name;
        ctx.deps
            .backends
            .provisioning_timeout(place.backend, instance_type)
    })
}

fn facts(snapshot: &InstanceSnapshot, attempts: Option<&OfferAttempts>, in_reach: bool) -> Facts {
    let row = &snapshot.instance;
    let place = row.job_provisioning_data.as_deref();
    let idle = row.status() == InstanceStatus::Idle;
    let (create, terminate) = made_and_removed(snapshot);
    Facts {
        name: row.name.clone(),
        status: row.status(),
        purpose: purpose(snapshot, attempts),
        fleet_ends: snapshot
            .fleet
            .as_ref()
            .is_some_and(|fleet| fleet.status() == FleetStatus::Terminating),
        create,
        terminate,
        prepare: progress(&snapshot.operations, OperationKind::Prepare),
        prepared_step_at: operations::hosts::last_step_at(snapshot),
        prepare_again_at: last_of(&snapshot.operations, OperationKind::Prepare)
            .and_then(|ended| ended.next_attempt_at),
        prepared_anew: PreparedAgain::of(snapshot).is_some(),
        trouble: None,
        release: progress(&snapshot.operations, OperationKind::Release),
        stored: row.stored_wait(),
        has_agent: operations::hosts::has_agent(snapshot),
        lacks_agent: row.agent.is_none() && place.is_some(),
        jobs: snapshot.jobs.len(),
        in_reach,
        asked_at: creation(snapshot).map_or(row.created_at, |asked| asked.created_at),
        started_at: row.started_at,
        timeout: Duration::ZERO,
        one_job: place.is_some_and(|place| !place.dockerized),
        idle_since: row
            .last_job_processed_at
            .or(row.started_at)
            .unwrap_or(row.created_at),
        idle_for: attempts.filter(|_| idle).and_then(OfferAttempts::idle_for),
        unreachable_until: None,
        unreachable_because: None,
        sign: None,
    }
}

fn purpose(snapshot: &InstanceSnapshot, attempts: Option<&OfferAttempts>) -> Purpose {
    if let Some(attempts) = attempts {
        return attempts.purpose();
    }
    let is_host = |fleet: &FleetRow| fleet.spec.configuration.ssh_config.is_some();
    if snapshot.fleet.as_ref().is_some_and(is_host) {
        return Purpose::Host;
    }
    match snapshot.jobs.is_empty() && snapshot.fleet.is_some() {
        true => Purpose::Fleet,
        false => Purpose::Job,
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
            .filter(|row| row.status().is_active())
            .count();
        Ok(match i64::try_from(active).unwrap_or(i64::MAX) <= min {
            true => Self::Smallest,
            false => Self::Larger(Box::new(found.fleet)),
        })
    }
}

/// The fleet wants it: what is asked of the clouds is written down, if they have something.
async fn bring_up(
    ctx: &Arc<Context>,
    snapshot: &InstanceSnapshot,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    match node::plan_provisioning(ctx, snapshot).await? {
        node::Provisioning::Pending(wait) => change.row.wait(wait),
        node::Provisioning::Impossible(message) => nothing_for_fleet(&mut change.row, message)?,
        node::Provisioning::Ready(operation) => {
            // Written with it, so that an instance that is ended at the same time is not made.
            change.row.wait(Wait::briefly(now, WaitReason::CloudAsked));
            change.row.last_processed_at = now;
            change.side_effects.intend(*operation);
        }
    }
    Ok(())
}

/// Where the cloud has made it, and of what.
fn remember_place(attempts: Option<&OfferAttempts>, row: &mut InstanceRow) {
    let Some((offer, place)) = attempts.and_then(OfferAttempts::created) else {
        return;
    };
    if row.job_provisioning_data.is_none() {
        *row = row.clone().offering(offer.clone(), place.clone());
    }
}

async fn made(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    attempts: Option<&OfferAttempts>,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    let row = &mut change.row;
    remember_place(attempts, row);
    row.provision(now)?;
    row.total_blocks = Some(row.offer.as_deref().map_or(1, |offer| offer.total_blocks.into()));
    let place = row.job_provisioning_data.clone();
    row.agent = place
        .and_then(|place| ctx.deps.agents.address(row.id, &place))
        .map(Json::new);
    for before in snapshot
        .jobs
        .iter()
        .filter(|job| job.status() == JobStatus::Submitted)
    {
        let Some(mut job) = placed(ctx, before, &change.row, now)? else {
            continue;
        };
        let volumes = keep_volumes(ctx, change, &mut job, now).await?;
        let assigned = change.side_effects.maker().assigned(&job, &change.row);
        change.side_effects.event(assigned);
        change.side_effects.update(before, job.clone());
        if let Err(error) = volumes {
            let mut ending = job.clone();
            ending.terminate(JobTerminationReason::VolumeError, Some(error), now)?;
            change.side_effects.update(&job, ending);
        }
    }
    Ok(())
}

/// The job keeps the network volumes that were taken for it when the instance was asked for, or the reason why it does not.
async fn keep_volumes(
    ctx: &Context,
    change: &mut Change,
    job: &mut JobRow,
    now: Time,
) -> Result<Result<(), String>> {
    if !job.mounts_volumes() {
        return Ok(Ok(()));
    }
    let instance = &change.row;
    let all = ctx.deps.store.attachments(AttachmentsOf::Instance(instance.id));
    let rows = all.await?.into_iter().map(|volume| volume.row);
    let rows: Vec<AttachmentRow> = rows.filter(|row| row.job_id == job.id).collect();
    let names = match rows.is_empty() {
        // It has waited since before volumes were taken with the instance that is asked for.
        true => {
            let mut volumes = ProjectVolumes::load(ctx, job.project_id, now).await?;
            volumes.give(ctx, &mut change.side_effects, instance, job)
        }
        false => kept(&job.job_spec, &rows).and_then(|rows| names_there(&rows, instance)),
    };
    Ok(match names {
        Ok(names) => {
            job.mount(names);
            Ok(())
        }
        Err(error) => Err(not_attached(&error)),
    })
}

/// Names of the volumes, all of which can be used on the instance.
fn names_there(volumes: &[(&AttachmentRow, &str)], instance: &InstanceRow) -> Result<Vec<String>, String> {
    let mut names = Vec::with_capacity(volumes.len());
    for (row, _) in volumes {
        check_zone(row, instance)?;
        names.push(row.name.clone());
    }
    Ok(names)
}

/// A cloud may not have said before in which zone a machine would be.
fn check_zone(volume: &AttachmentRow, instance: &InstanceRow) -> Result<(), String> {
    let place = instance.job_provisioning_data.as_deref();
    let zone = place.and_then(|place| place.availability_zone.as_deref());
    let (Some(zone), Some(own)) = (zone, &volume.volume.availability_zone) else {
        return Ok(());
    };
    match own.eq_ignore_ascii_case(zone) {
        true => Ok(()),
        false => Err(format!(
            "{}: it is in {own}, and {} was made in {zone}",
            volume.name, instance.name
        )),
    }
}

/// A job whose instance has been made.
fn placed(ctx: &Context, before: &JobRow, instance: &InstanceRow, now: Time) -> Result<Option<JobRow>> {
    let (Some(fleet), Some(offer)) = (instance.fleet_id, instance.offer.as_deref()) else {
        return Ok(None);
    };
    let choice = Choice {
        fleet_id: fleet,
        instance_id: instance.id,
        offer: offer.clone(),
        whole: true,
        local: false,
    };
    let runtime = choice.runtime_data(
        ctx.deps.settings.host_network,
        before.job_spec.jobs_per_replica > 1,
    );
    let mut job = before.clone();
    job.assign(instance, fleet, runtime, now)?;
    Ok(Some(job))
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
    let attempts = attempts_of(snapshot);
    if purpose(snapshot, attempts.as_ref()) == Purpose::Fleet {
        return nothing_for_fleet(&mut change.row, error);
    }
    change.row.give_up(InstanceTerminationReason::NoOffers, error)?;
    change.row.finish(now)?;
    Ok(())
}

/// Nothing was made for the fleet. It is shown with the reason, until the fleet decides what to do.
fn nothing_for_fleet(row: &mut InstanceRow, message: String) -> Result<()> {
    Ok(row.give_up(InstanceTerminationReason::NoOffers, message)?)
}

/// Ends the jobs that still wait for the instance: nobody else would.
async fn refuse_waiting(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    message: &str,
    change: &mut Change,
) -> Result<()> {
    let mut refused = Refused::new();
    let is_waiting = |job: &&JobRow| job.status() == JobStatus::Submitted;
    let waiting = || snapshot.jobs.iter().filter(is_waiting);
    let project = snapshot.instance.project_id;
    let now = change.side_effects.maker().now;
    let mut volumes = ProjectVolumes::of_jobs(ctx, project, waiting(), now).await?;
    for job in waiting() {
        let ended = refuse(ctx, job, message.to_owned())?;
        refused.entry(job.run_id).or_default().push(ended);
        // Nothing of the instance is left that may have them.
        volumes.give_back(&mut change.side_effects, snapshot.instance.id, job.id);
    }
    let runs: BTreeMap<_, _> = snapshots(ctx, refused.keys().copied()).await?;
    let ends = ends(ctx, refused, runs).await?;
    change.side_effects.extend(ends.into_commit());
    Ok(())
}

/// The event of the instance comes before those that follow from it.
fn commit(snapshot: &InstanceSnapshot, change: Change, now: Time) -> Commit {
    let Change {
        mut row,
        side_effects,
    } = change;
    if row != snapshot.instance {
        row.last_processed_at = now;
    }
    let mut changes = Changes::new(side_effects.maker().clone());
    changes.update(&snapshot.instance, row);
    changes.extend(side_effects.into_commit());
    changes.into_commit()
}
