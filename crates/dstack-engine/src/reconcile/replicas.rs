//! The replicas of a run: those it starts with, and those of a service that come and go while it runs.

use std::time::Duration;

use dstack_model::configurations::service::{ScalingSpec, ServiceConfiguration};
use dstack_model::runs::{JobSpec, JobStatus, JobTerminationReason, RunStatus, RunTerminationReason};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::services::autoscaling::Demand;
use dstack_plan::services::pages::Told;
use dstack_plan::services::registration::{self, Standing};
use dstack_plan::services::replicas::{self, Changes, Job, Slot};
use dstack_plan::services::signals::Signals;
use dstack_store::rows::{JobRow, RunRow, TransitionError};
use dstack_store::{Json, Sealed};
use dstack_units::{JobId, Time};

use super::job::requests::is_told_to_router;
use super::rollout;
use super::run::{Change, Jobs, end_jobs, in_a_row};
use crate::context::Context;
use crate::services::Worker;
use crate::{InputsError, Result};

/// When jobs that cannot be made are tried again: a registry may be away for a while.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The latest submissions as the planner sees them.
pub(super) fn planned<'a>(ctx: &Context, run: &RunRow, jobs: Jobs<'a>) -> Vec<Job<'a>> {
    let job = |row: &&'a JobRow| Job {
        replica_num: row.replica_num,
        group: &row.job_spec.replica_group,
        status: row.status(),
        reason: row.termination_reason(),
        out_of_date: row.deployment_num < run.deployment_num,
        submitted_at: row.submitted_at,
        changed_at: row.last_processed_at,
        running_at: row.running_at,
        serves: serves(ctx, run, row),
        probed: !row.job_spec.probes.is_empty(),
        in_a_row: in_a_row(jobs.all, row),
    };
    jobs.latest.iter().map(job).collect()
}

/// Whether a running job gets requests, or would if its service did not route them itself.
fn serves(ctx: &Context, run: &RunRow, job: &JobRow) -> bool {
    // One of a version that asked no probes has served, and gets requests at the first look at it.
    job.probes.is_none()
        || match job.standing(run) {
            Some(standing) => standing.registered && is_reached(ctx, run, job),
            None => job.ready && is_routed(ctx, run, job),
        }
}

/// Whether a job that others pass requests on to gets some from them, with the same benefit of the doubt as in [`is_reached`].
fn is_routed(ctx: &Context, run: &RunRow, job: &JobRow) -> bool {
    let is_out_of_date = job.deployment_num < run.deployment_num;
    is_out_of_date
        || !is_told_to_router(run, job)
        || matches!(
            ctx.deps.services.worker(run.id, job.id),
            Worker::Added | Worker::Unknown(_)
        )
}

/// Whether requests reach a registered job. Those that are to be replaced count as reached as long as nobody knows better: they
/// stay until others surely are.
fn is_reached(ctx: &Context, run: &RunRow, job: &JobRow) -> bool {
    let is_out_of_date = job.deployment_num < run.deployment_num;
    is_out_of_date || ctx.deps.services.is_published(job.id, run.gateway_id)
}

/// What is known of the requests to a service.
fn demand(ctx: &Context, run: &RunRow, service: &ServiceConfiguration, jobs: Jobs<'_>) -> Demand {
    let services = &ctx.deps.services;
    let mut demand = Demand {
        scales: run.desired_replica_counts.as_deref().cloned().unwrap_or_default(),
        awaited: services.is_awaited(run.id),
        ..Demand::default()
    };
    for group in service.replica_groups() {
        let (name, Some(rules)) = (group.name.unwrap_or_default(), group.scaling) else {
            continue;
        };
        let load = services.load(run.id, run.gateway_id, rules.effective_window());
        demand.loads.extend(load.map(|load| (name.clone(), load)));
        if !rules.signals.is_empty() {
            let signals = signals(ctx, run, &rules, &serving(ctx, run, jobs, &name));
            demand.signals.insert(name, signals);
        }
    }
    demand
}

/// The jobs of a group that serve; of a replica of several nodes, the first one.
fn serving(ctx: &Context, run: &RunRow, jobs: Jobs<'_>, group: &str) -> Vec<JobId> {
    let of_group = jobs.latest.iter().filter(|job| {
        let is_first_of = job.job_num == 0 && job.job_spec.replica_group == group;
        is_first_of && job.status() == JobStatus::Running && serves(ctx, run, job)
    });
    of_group.map(|job| job.id).collect()
}

/// What the signals of a group's rules say, which these jobs serve. What the replicas tell themselves of the time to the first token
/// counts more than what was measured on the way to them.
fn signals(ctx: &Context, run: &RunRow, rules: &ScalingSpec, serving: &[JobId]) -> Signals {
    let (services, window) = (&ctx.deps.services, rules.effective_window());
    let told = match rules.signals.iter().any(|signal| signal.metric.is_on_page()) {
        true => services.told(serving, rules.metrics_path(), window),
        false => Told::default(),
    };
    let measured = services.measured(run.id, run.gateway_id, window);
    Signals {
        serving: count(serving.len()),
        concurrency: measured.concurrency,
        queue: told.queue,
        first_tokens: told.first_tokens.or(measured.first_pieces),
    }
}

/// The replicas with which a run starts.
fn first(ctx: &Context, run: &RunRow, jobs: Jobs<'_>, now: Time) -> Changes {
    match run.run_spec.configuration.service() {
        Some(service) => replicas::start(
            service,
            &planned(ctx, run, jobs),
            &demand(ctx, run, service, jobs),
            now,
        ),
        None => {
            let start = replicas::first(&run.run_spec);
            Changes {
                wanted: count(start.len()),
                start,
                ..Changes::default()
            }
        }
    }
}

/// All jobs of a run that has none, or none that lives.
pub(super) async fn start(ctx: &Context, jobs: Jobs<'_>, change: &mut Change, now: Time) -> Result<()> {
    let first = first(ctx, &change.run, jobs, now);
    change.look_at = first.look_at;
    if first.start.is_empty() {
        change.want(&first);
        // It rests: the next attempt is a first one.
        change.run.resubmission_attempt = 0;
        let reason = match first.wanted_of.is_empty() {
            true => WaitReason::Replicas,
            false => WaitReason::Requests,
        };
        change.run.wait(Wait::indefinite(reason));
        return Ok(());
    }
    match create(ctx, &change.run.clone(), &first.start, jobs.latest, change, now).await {
        Ok(()) => {
            change.run.follow_jobs(RunStatus::Submitted)?;
            change.want(&first);
            Ok(())
        }
        Err(InputsError::Refused(reason)) => give_up(&reason, change, now),
        Err(error @ InputsError::Transient(_)) => {
            wait_for_inputs(&error, change, now);
            Ok(())
        }
    }
}

impl Change {
    /// So many replicas are wanted from now on.
    pub(super) fn want(&mut self, next: &Changes) {
        let run = &mut self.run;
        run.desired_replica_count = next.wanted;
        if run.desired_replica_counts.as_deref() != Some(&next.wanted_of) {
            let scales = !next.wanted_of.is_empty();
            run.desired_replica_counts = scales.then(|| Json::new(next.wanted_of.clone()));
        }
    }
}

/// The next time of a schedule may find things better.
fn give_up(reason: &str, change: &mut Change, now: Time) -> Result<()> {
    let run = &mut change.run;
    tracing::warn!(run.id = %run.id, run.name = %run.run_name, reason, "the jobs of a run cannot be made");
    run.terminate(RunTerminationReason::ServerError, now)?;
    run.wait(Wait::briefly(now, WaitReason::EndWithoutJobs));
    change.note(format!("The run's jobs cannot be made: {reason}"));
    Ok(())
}

/// The next step towards as many replicas as the run asks for now, all of its newest deployment.
pub(super) async fn follow(ctx: &Context, jobs: Jobs<'_>, change: &mut Change, now: Time) -> Result<()> {
    let latest = jobs.latest;
    if rollout::abort(latest, change, now)? {
        change.run.wake_at(now);
        return Ok(());
    }
    // What is new began after all that is to go on was found.
    let kept = match rollout::has_begun(latest, &change.run) {
        true => Ok(false),
        false => keep_equal(ctx, latest, change).await,
    };
    match kept {
        Ok(false) => {}
        Ok(true) => {
            change.run.wake_at(now);
            return Ok(());
        }
        Err(error) => {
            wait_for_inputs(&error, change, now);
            return Ok(());
        }
    }
    if reroute(latest, change, now) {
        change.run.wake_at(now);
        return Ok(());
    }
    if let Some(reason) = refusal(ctx, &change.run) {
        return Ok(end_unpublished(&reason, change, now)?);
    }
    let Some(service) = change.run.run_spec.configuration.service() else {
        return Ok(());
    };
    let demand = demand(ctx, &change.run, service, jobs);
    if rollout::follow(ctx, jobs, &demand, change, now).await? {
        return Ok(());
    }
    let Some(service) = change.run.run_spec.configuration.service() else {
        return Ok(());
    };
    let next = replicas::next(service, &planned(ctx, &change.run, jobs), &demand, now);
    change.want(&next);
    for scaled in &next.scaled {
        change.note(format!("Replicas {scaled}"));
    }
    change.look_at = next.look_at;
    if let Some(at) = next.wake_at {
        change.run.wake_at(at);
    }
    let stopped: Vec<&JobRow> = latest
        .iter()
        .filter(|job| next.stop.contains(&job.replica_num))
        .copied()
        .collect();
    end_jobs(&stopped, JobTerminationReason::ScaledDown, None, change, now)?;
    if !next.start.is_empty()
        && let Err(error) = create(ctx, &change.run.clone(), &next.start, latest, change, now).await
    {
        wait_for_inputs(&error, change, now);
    }
    Ok(())
}

/// Why the gateway of a service does not take it.
fn refusal(ctx: &Context, run: &RunRow) -> Option<String> {
    ctx.deps.services.refusal(run.id, run.gateway_id?)
}

/// A service that its gateway does not take is reached by nobody (dstack 0.22.5: pipelines §2).
fn end_unpublished(reason: &str, change: &mut Change, now: Time) -> Result<(), TransitionError> {
    let run = &mut change.run;
    tracing::warn!(run.id = %run.id, run.name = %run.run_name, reason, "the gateway does not take a service");
    run.terminate(RunTerminationReason::GatewayError, now)?;
    run.wait(Wait::briefly(now, WaitReason::JobsEnded));
    change.note(format!("The gateway does not take the service: {reason}"));
    Ok(())
}

/// Takes the requests from replicas whose probes fail, as long as others get them. True if something changes.
fn reroute(latest: &[&JobRow], change: &mut Change, now: Time) -> bool {
    let mut changes = false;
    for (side, beside) in rollout::sides(latest, &change.run) {
        changes |= reroute_side(&side, beside, change, now);
    }
    changes
}

/// The same of replicas that may take one another's requests. `beside`: one that takes them all, if there is one.
fn reroute_side(side: &[&JobRow], beside: Option<&JobRow>, change: &mut Change, now: Time) -> bool {
    let standing = side
        .iter()
        .filter_map(|job| Some((*job, job.standing(&change.run)?)));
    let (jobs, standings): (Vec<&JobRow>, Vec<Standing>) = standing.unzip();
    let changes = match beside {
        Some(_) => registration::changes_beside(&standings),
        None => registration::changes(&standings),
    };
    for (place, registered) in &changes {
        if let Some(job) = jobs.get(*place) {
            let mut after = (*job).clone();
            after.registered = *registered;
            after.last_processed_at = now;
            change.change_job(job, after);
        }
    }
    // One that the others leave their requests to is still there when that is written.
    let stays = jobs
        .iter()
        .zip(&standings)
        .find(|(_, one)| one.registered && !one.failing);
    let stays = beside.or(stays.map(|(job, _)| *job));
    if let Some(job) = stays.filter(|_| !changes.is_empty()) {
        change.expect_job(job);
    }
    !changes.is_empty()
}

/// What runs goes on.
pub(super) fn wait_for_inputs(error: &InputsError, change: &mut Change, now: Time) {
    let run = &mut change.run;
    let text = match error {
        InputsError::Refused(reason) => reason.clone(),
        InputsError::Transient(cause) => cause.to_string(),
    };
    tracing::warn!(run.id = %run.id, run.name = %run.run_name, error = text, "the jobs of a deployment cannot be made now");
    let reason = WaitReason::JobsMade {
        deployment: run.deployment_num,
        error: text,
    };
    run.wait(Wait::until(now + RETRY_INTERVAL, reason).or_stored(&change.stored_wait, now));
}

/// Jobs that a deployment leaves as they are belong to it from now on. True if there were any.
async fn keep_equal(ctx: &Context, latest: &[&JobRow], change: &mut Change) -> Result<bool, InputsError> {
    let deployment = change.run.deployment_num;
    let older = |job: &&&JobRow| {
        job.deployment_num < deployment
            && !job.status().is_finished()
            && job.status() != JobStatus::Terminating
    };
    let older: Vec<&JobRow> = latest.iter().filter(older).copied().collect();
    let specs = match change.run.run_spec.configuration.service() {
        _ if older.is_empty() => return Ok(false),
        Some(_) => Some(ctx.deps.inputs.jobs(&change.run, &slots(&older)).await?),
        // All that may change of others while they run leaves their jobs alone.
        None => None,
    };
    let equal = |job: &&JobRow| specs.as_ref().is_none_or(|specs| is_wanted(&job.job_spec, specs));
    let kept: Vec<&JobRow> = older.into_iter().filter(equal).collect();
    for job in &kept {
        let mut after = (*job).clone();
        after.deployment_num = deployment;
        change.change_job(job, after);
    }
    Ok(!kept.is_empty())
}

fn slots(jobs: &[&JobRow]) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for job in jobs {
        if slots.iter().all(|slot| slot.num != job.replica_num) {
            slots.push(Slot {
                group: Some(job.job_spec.replica_group.clone()),
                num: job.replica_num,
            });
        }
    }
    slots
}

/// Whether a job is what it would be made as now.
fn is_wanted(job: &JobSpec, specs: &[JobSpec]) -> bool {
    let same_place = |spec: &&JobSpec| (spec.replica_num, spec.job_num) == (job.replica_num, job.job_num);
    specs.iter().find(same_place).is_some_and(|spec| {
        let mut job = job.clone();
        job.ssh_key.clone_from(&spec.ssh_key);
        // Which architecture an image has may not be known any more.
        if spec.requirements.resources.cpu.arch.is_none() {
            job.requirements.resources.cpu.arch = None;
        }
        job == *spec
    })
}

/// New submissions for these replicas, as this run asks for them: as it is now, or as it was before a roll-out.
pub(super) async fn create(
    ctx: &Context,
    run: &RunRow,
    slots: &[Slot],
    latest: &[&JobRow],
    change: &mut Change,
    now: Time,
) -> Result<(), InputsError> {
    let specs = ctx.deps.inputs.jobs(run, slots).await?;
    let text = match latest.is_empty() {
        true => "Job created on run submission. Status: SUBMITTED",
        false => "Job created on new submission. Status: SUBMITTED",
    };
    for spec in specs {
        let mut job = JobRow::submitted(
            ctx.deps.random.ordered_uuid(now).into(),
            run,
            Sealed::new(spec),
            now,
        );
        let before = latest
            .iter()
            .find(|other| (other.replica_num, other.job_num) == (job.replica_num, job.job_num));
        job.submission_num = before.map_or(0, |before| before.submission_num + 1);
        change.add_job(job, text);
    }
    Ok(())
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
