//! Reconciles jobs that have been placed on an instance.

mod nodes;
pub(crate) mod requests;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::shim::{RUNNER_SSH_PORT, TaskInfo, TaskStatus};
use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobProvisioningData, JobRuntimeData, JobStatus, JobTerminationReason};
use dstack_plan::lifecycle::job::{Decision, Ended, Facts, Operation, Task, decide};
use dstack_plan::lifecycle::{Wait, WaitReason, policies};
use dstack_store::rows::{InstanceRow, JobRow, OperationKind, OperationRow, OperationState};
use dstack_store::{Changes, EntityRef, EventMaker, JobSnapshot, Json, Sealed};
use dstack_units::{JobId, Time};

use crate::Result;
use crate::context::Context;
use crate::observations::JobSeen;
use crate::operations::progress;
use crate::wakes::Key;
use crate::{follow, operations};

/// Decides about a job and does what was decided.
pub async fn reconcile(ctx: &Arc<Context>, id: JobId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.job(id).await? else {
        return Ok(());
    };
    if snapshot.job.status().is_finished() {
        ctx.finished(EntityRef::Job(id));
        return Ok(());
    }
    if snapshot.job.status() == JobStatus::Submitted {
        ctx.wakes.wake(Key::Schedule(snapshot.job.project_id));
        return Ok(());
    }
    requests::withdraw(ctx, &snapshot.job);
    let now = ctx.now();
    let seen = ctx.seen.job(id);
    let task = task_of(ctx, &snapshot);
    let nodes = nodes::waits(ctx, &snapshot, &task).await?;
    let seen = Seen {
        job: &seen,
        task: &task,
        nodes: &nodes,
        access_revoked: is_access_revoked(ctx, &snapshot).await?,
    };
    let change = change(ctx, &snapshot, &seen, now)?;
    ctx.wakes.wake_at(EntityRef::Job(id), change.job.next_wake_at());
    let (job, intended) = (change.job.clone(), change.operation.clone());
    commit(ctx, &snapshot, change, now).await?;
    continue_calls(ctx, &job, snapshot.operations.iter().chain(&intended));
    Ok(())
}

/// What is known of a job besides its rows.
struct Seen<'a> {
    /// What its runner said.
    job: &'a JobSeen,
    /// What the shim said of its task.
    task: &'a Option<Option<TaskInfo>>,
    /// What it waits for of other nodes.
    nodes: &'a nodes::Waits,
    /// Its instance is of another project's fleet, which its own does not import any more.
    access_revoked: bool,
}

async fn is_access_revoked(ctx: &Context, snapshot: &JobSnapshot) -> Result<bool> {
    let (project, instance) = (snapshot.job.project_id, snapshot.instance.as_ref());
    let others = instance.filter(|row| row.project_id != project);
    let Some(fleet) = others.and_then(|row| row.fleet_id) else {
        return Ok(false);
    };
    Ok(!ctx.deps.store.imports_fleet(project, fleet).await?)
}

/// Starts, after the commit, the calls and streams that the stored state wants.
fn continue_calls<'a>(ctx: &Arc<Context>, job: &JobRow, operations: impl Iterator<Item = &'a OperationRow>) {
    for operation in operations {
        if operation.state == OperationState::Intended {
            operations::ensure(ctx, EntityRef::Job(job.id), operation.kind);
        }
    }
    let listening = match job.status() {
        JobStatus::Running => true,
        JobStatus::Terminating => job.running_at.is_some() && !ctx.seen.job(job.id).drained,
        _ => false,
    };
    if listening {
        follow::runner::ensure(ctx, job.id);
    }
    match job.status() {
        JobStatus::Running => follow::probes::ensure(ctx, job),
        _ => follow::probes::stop(ctx, job.id),
    }
}

fn task_of(ctx: &Context, snapshot: &JobSnapshot) -> Option<Option<TaskInfo>> {
    let instance = snapshot.instance.as_ref()?;
    ctx.seen.task(instance.id, snapshot.job.id)
}

fn facts(ctx: &Context, snapshot: &JobSnapshot, all: &Seen<'_>) -> Facts {
    let (job, seen, task) = (&snapshot.job, all.job, all.task);
    let instance = snapshot.instance.as_ref();
    let max_duration = job
        .job_spec
        .max_duration
        .and_then(|seconds| u64::try_from(seconds).ok());
    Facts {
        status: job.status(),
        placed_at: snapshot
            .operations
            .first()
            .map_or(job.last_processed_at, |first| first.created_at),
        running_at: job.running_at,
        disconnected_at: job.disconnected_at.or(seen.disconnected_at),
        stop_requested_at: job.stop_requested_at,
        remove_at: job.remove_at,
        requests_until: requests::until(ctx, job, &snapshot.run),
        requests_awaited: None,
        stored_wait: job.stored_wait(),
        task_waits_for: all.nodes.task.clone(),
        start_waits_for: all.nodes.start.clone(),
        start_impossible: all.nodes.impossible.clone(),
        start_intended_at: start_of(snapshot).map(|start| start.created_at),
        termination_reason: job.termination_reason(),
        max_duration: max_duration.map(Duration::from_secs),
        unwanted: unwanted(snapshot, seen),
        access_revoked: all.access_revoked,
        attended_until: ctx.attended_until(&snapshot.job),
        spot: job
            .job_provisioning_data
            .as_ref()
            .is_some_and(|data| data.instance_type.resources.spot),
        instance_alive: instance.is_some_and(|row| {
            !matches!(
                row.status(),
                InstanceStatus::Terminating | InstanceStatus::Terminated
            )
        }),
        instance_leaves: instance.and_then(|row| row.leaving_because.clone()),
        instance_ready: instance.is_some_and(|row| row.status().is_available()),
        agent_unreachable_since: instance.and_then(|row| ctx.seen.instance(row.id).1),
        agent_unreachable_because: instance.and_then(|row| ctx.seen.unreachable_because(row.id)),
        instance_name: instance.map(|row| row.name.clone()).unwrap_or_default(),
        task: task_facts(task, job),
        ended: seen.ended.clone(),
        drained: seen.drained,
        volumes: volumes::facts(snapshot),
        submit_task: progress(&snapshot.operations, OperationKind::SubmitTask),
        start_job: progress(&snapshot.operations, OperationKind::StartJob),
        stop_job: progress(&snapshot.operations, OperationKind::StopJob),
        remove_task: progress(&snapshot.operations, OperationKind::RemoveTask),
    }
}

/// Whether a policy of the run wants the job ended (dstack 0.22.5: pipelines §6.3).
fn unwanted(snapshot: &JobSnapshot, seen: &JobSeen) -> Option<Ended> {
    let ended = |reason, message| Ended {
        reason,
        message: Some(message),
        exit_status: None,
    };
    if let Some(message) = &seen.unused_gpus {
        let reason = JobTerminationReason::TerminatedDueToUtilizationPolicy;
        return Some(ended(reason, message.clone()));
    }
    let AnyRunConfiguration::DevEnvironment(dev) = &snapshot.run.run_spec.configuration else {
        return None;
    };
    let seconds = seen.no_connections_secs?;
    let alone = Duration::from_secs(u64::try_from(seconds).ok()?);
    policies::inactive(dev, alone).then(|| {
        let allowed = dev.inactivity_duration.unwrap_or_default();
        let message = format!(
            "The job was inactive for {seconds} seconds, exceeding the inactivity_duration of {allowed} seconds"
        );
        ended(JobTerminationReason::InactivityDurationExceeded, message)
    })
}

fn task_facts(task: &Option<Option<TaskInfo>>, job: &JobRow) -> Task {
    match task {
        None => Task::Unknown,
        // The list may be older than our own submission: only a task that was there can be missing.
        Some(None)
            if job.status() == JobStatus::Pulling
                && job.job_runtime_data.as_ref().is_none_or(|d| d.ports.is_none()) =>
        {
            Task::Unknown
        }
        Some(None) => Task::Missing,
        Some(Some(info)) => match info.status {
            TaskStatus::Terminated => Task::Terminated {
                reason: crate::reasons::from_agent(&info.termination_reason),
                message: info.termination_message.clone(),
            },
            TaskStatus::Running if info.ports.is_some() => Task::Running,
            TaskStatus::Running => Task::Starting(WaitReason::ContainerPorts),
            TaskStatus::Pulling => Task::Starting(WaitReason::ImagePulled),
            TaskStatus::Creating => Task::Starting(WaitReason::ContainerCreated),
            TaskStatus::Pending | TaskStatus::Preparing => Task::Starting(WaitReason::TaskPrepared),
        },
    }
}

/// The rows as they shall be.
struct Change {
    job: JobRow,
    instance: Option<InstanceRow>,
    operation: Option<OperationRow>,
    volumes: volumes::Change,
}

/// What is decided, and what follows from it without waiting for anyone: it is written in one commit.
fn change(ctx: &Context, snapshot: &JobSnapshot, seen: &Seen<'_>, now: Time) -> Result<Change> {
    let mut change = Change {
        job: snapshot.job.clone(),
        instance: None,
        operation: None,
        volumes: volumes::Change::default(),
    };
    if counts_inactivity(&snapshot.run.run_spec.configuration) {
        change.job.inactivity_secs = seen.job.no_connections_secs.or(change.job.inactivity_secs);
    }
    observe(
        &mut change.job,
        seen.job,
        seen.task.as_ref().and_then(Option::as_ref),
    );
    requests::observe(&mut change.job, &snapshot.run, seen.job);
    let known = Facts {
        requests_awaited: requests::awaited(ctx, &change.job, &snapshot.run),
        ..facts(ctx, snapshot, seen)
    };
    let mut decision = decide(&known, now);
    loop {
        apply(ctx, snapshot, &decision, &mut change, now)?;
        if !matches!(
            decision,
            Decision::Terminate(_) | Decision::Stop { ask: false, .. }
        ) {
            requests::register(&mut change.job, &snapshot.run);
            return Ok(change);
        }
        let ending = JobSnapshot {
            job: change.job.clone(),
            ..snapshot.clone()
        };
        decision = decide(&facts(ctx, &ending, seen), now);
        // One status a commit: each has its event. The job is woken at once.
        if matches!(decision, Decision::Finish(_) | Decision::Abandon(_)) {
            return Ok(change);
        }
    }
}

fn apply(
    ctx: &Context,
    snapshot: &JobSnapshot,
    decision: &Decision,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    match decision {
        Decision::Intend(operation, wait) => {
            change.operation = Some(intend(ctx, snapshot, *operation, now));
            change.job.wait(wait.clone());
        }
        Decision::Wait(wait) => change.job.wait(wait.clone()),
        Decision::Detach(wait) => {
            change.volumes = volumes::detached(snapshot, &change.job, now)?;
            change.job.wait(wait.clone());
        }
        Decision::Advance(status) => advance(snapshot, &mut change.job, *status, now)?,
        Decision::Terminate(ended) => terminate(&mut change.job, ended, now)?,
        Decision::Stop { drain_until, ask } => {
            change.job.remove_at = Some(*drain_until);
            if *ask {
                change.job.stop_requested_at = Some(now);
                change.operation = Some(intend(ctx, snapshot, Operation::StopJob, now));
            }
            change.job.wait(Wait::until(*drain_until, WaitReason::LastOutput));
        }
        Decision::Finish(status) => {
            change.volumes = volumes::left(snapshot, &change.job, now)?;
            finish(snapshot, change, *status, now)?;
        }
        Decision::Abandon(status) => {
            change.volumes = volumes::left(snapshot, &change.job, now)?;
            change.job.abandon(*status, now)?;
        }
    }
    Ok(())
}

/// Whether anybody wants to know for how long nobody was connected.
pub fn counts_inactivity(configuration: &AnyRunConfiguration) -> bool {
    let environment = configuration.dev_environment();
    environment.is_some_and(|environment| environment.inactivity_duration.is_some())
}

/// What the streams said and is worth keeping.
fn observe(job: &mut JobRow, seen: &JobSeen, task: Option<&TaskInfo>) {
    if seen.cursor > job.runner_timestamp.unwrap_or(0) {
        job.runner_timestamp = Some(seen.cursor);
    }
    job.disconnected_at = seen.disconnected_at;
    let Some(task) = task else { return };
    job.image_pull_progress = task.image_pull_progress.map(|p| {
        Json::new(dstack_model::runs::ImagePullProgress {
            downloaded_bytes: i64::try_from(p.downloaded_bytes).unwrap_or(i64::MAX),
            extracted_bytes: i64::try_from(p.extracted_bytes).unwrap_or(i64::MAX),
            total_bytes: i64::try_from(p.total_bytes).unwrap_or(i64::MAX),
            is_total_bytes_final: p.is_total_bytes_final,
        })
    });
    if let Some(ports) = task.ports.as_ref().filter(|_| task.status == TaskStatus::Running) {
        keep_ports(job, ports);
    }
}

fn keep_ports(job: &mut JobRow, ports: &[dstack_agent_api::shim::PortMapping]) {
    let Some(runtime) = &job.job_runtime_data else {
        return;
    };
    if runtime.ports.is_some() {
        return;
    }
    let mapped = ports.iter().map(|port| (port.container, port.host)).collect();
    job.job_runtime_data = Some(Json::new(JobRuntimeData {
        ports: Some(mapped),
        ..JobRuntimeData::clone(runtime)
    }));
    // Without a host sshd clients go straight to the job's own SSH server, wherever it is mapped.
    let ssh = ports
        .iter()
        .find(|port| port.container == RUNNER_SSH_PORT)
        .map(|port| port.host.into());
    if let Some(data) = job.job_provisioning_data.as_ref().filter(|data| !data.dockerized) {
        let data = JobProvisioningData {
            ssh_port: ssh.or(data.ssh_port),
            ..JobProvisioningData::clone(data)
        };
        job.job_provisioning_data = Some(Sealed::new(data));
    }
}

fn intend(ctx: &Context, snapshot: &JobSnapshot, operation: Operation, now: Time) -> OperationRow {
    let kind = match operation {
        Operation::SubmitTask => OperationKind::SubmitTask,
        Operation::StartJob => OperationKind::StartJob,
        Operation::StopJob => OperationKind::StopJob,
        Operation::RemoveTask => OperationKind::RemoveTask,
    };
    operations::intend(ctx, EntityRef::Job(snapshot.job.id), kind, now)
}

fn start_of(snapshot: &JobSnapshot) -> Option<&OperationRow> {
    let mut operations = snapshot.operations.iter();
    operations.find(|row| row.kind == OperationKind::StartJob)
}

fn advance(snapshot: &JobSnapshot, job: &mut JobRow, status: JobStatus, now: Time) -> Result<()> {
    job.advance(status, now)?;
    if status == JobStatus::Running {
        let started = start_of(snapshot);
        let text = |name: &str| {
            let value = started?.notes.as_ref()?.get(name)?.as_str()?;
            Some(value.to_owned()).filter(|value| !value.is_empty())
        };
        if let Some(runtime) = &job.job_runtime_data {
            job.job_runtime_data = Some(Json::new(JobRuntimeData {
                working_dir: text("working_dir"),
                username: text("username"),
                ..JobRuntimeData::clone(runtime)
            }));
        }
    }
    Ok(())
}

fn terminate(job: &mut JobRow, ended: &Ended, now: Time) -> Result<()> {
    job.terminate(ended.reason, ended.message.clone(), now)?;
    job.exit_status = ended.exit_status.or(job.exit_status);
    Ok(())
}

fn finish(snapshot: &JobSnapshot, change: &mut Change, status: JobStatus, now: Time) -> Result<()> {
    change.job.finish(status, now)?;
    if snapshot.job.instance_id.is_none() {
        return Ok(());
    }
    change.instance = snapshot.instance.clone().map(|mut instance| {
        instance.release(blocks_of(&change.job), now);
        instance
    });
    Ok(())
}

/// Blocks of its instance that a job takes.
pub fn blocks_of(job: &JobRow) -> i64 {
    job.job_runtime_data
        .as_ref()
        .and_then(|data| data.offer.as_ref())
        .map_or(1, |offer| offer.blocks.into())
}

async fn commit(ctx: &Arc<Context>, snapshot: &JobSnapshot, change: Change, now: Time) -> Result<()> {
    let before = &snapshot.job;
    let mut job = change.job;
    if job != *before {
        job.last_processed_at = now;
    }
    let (run, from, to) = (job.run_id, before.status(), job.status());
    // What it waits for may be there since it looked: its run looks once more.
    let waits_for_nodes =
        job.waiting_for() != before.waiting_for() && job.waiting_for().is_some_and(WaitReason::is_for_nodes);
    let concerns_run = from != to || waits_for_nodes || requests::concerns_run(before, &job);
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    changes.update(before, job);
    if let Some(operation) = change.operation {
        changes.intend(operation);
    }
    change.volumes.add_to(&mut changes);
    if let (Some(mut row), Some(was)) = (change.instance, &snapshot.instance) {
        row.last_processed_at = now;
        let event = changes.maker().unassigned(before, &row);
        changes.event(event);
        changes.update(was, row);
    }
    ctx.commit(("job.commit.before", "job.commit.after"), changes.into_commit())
        .await?;
    if concerns_run {
        ctx.wakes.wake(EntityRef::Run(run));
    }
    if from != to {
        tracing::info!(job.id = %before.id, job.name = %before.job_name, ?from, ?to, "job changed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn inactivity_counts_only_where_it_was_asked_for() {
        for (configuration, expected) in [
            (json!({"type": "task", "commands": ["x"]}), false),
            (json!({"type": "dev-environment", "ide": "vscode"}), false),
            (
                json!({"type": "dev-environment", "ide": "vscode", "inactivity_duration": "off"}),
                false,
            ),
            (
                json!({"type": "dev-environment", "ide": "vscode", "inactivity_duration": "1h"}),
                true,
            ),
        ] {
            let read: AnyRunConfiguration = serde_json::from_value(configuration.clone()).unwrap();
            assert_eq!(counts_inactivity(&read), expected, "{configuration}");
        }
    }
}
