//! The replicas of a run: those it starts with, and those of a service that come and go while it runs.

use std::time::Duration;

use dstack_model::runs::{JobSpec, JobStatus, JobTerminationReason, RunStatus, RunTerminationReason};
use dstack_plan::services::replicas::{self, Job, Slot};
use dstack_store::Json;
use dstack_store::rows::{JobRow, RunRow};
use dstack_units::Time;

use super::run::{Change, end_jobs};
use crate::context::Context;
use crate::events::{self, Events};
use crate::{InputError, Result};

/// When jobs that cannot be made are tried again: a registry may be away for a while.
const AGAIN: Duration = Duration::from_secs(60);

/// The latest submissions as the planner sees them.
fn planned<'a>(run: &RunRow, latest: &[&'a JobRow]) -> Vec<Job<'a>> {
    let job = |row: &&'a JobRow| Job {
        replica_num: row.replica_num,
        group: &row.job_spec.replica_group,
        status: row.status,
        reason: row.termination_reason,
        out_of_date: row.deployment_num < run.deployment_num,
        changed_at: row.last_processed_at,
        running_at: row.running_at,
        submission_num: row.submission_num,
    };
    latest.iter().map(job).collect()
}

/// All jobs of a run that has none, or none that lives.
pub(super) async fn start(
    ctx: &Context,
    maker: &Events,
    latest: &[&JobRow],
    change: &mut Change,
    now: Time,
) -> Result<()> {
    change.run.deadline_at = None;
    change.run.next_wake_at = None;
    let slots = match change.run.run_spec.configuration.service() {
        Some(service) => replicas::start(service, &planned(&change.run, latest)),
        None => replicas::first(&change.run.run_spec),
    };
    if slots.is_empty() {
        change.run.waiting_for = Some("replicas to be asked for: `replicas` is 0".to_owned());
        return Ok(());
    }
    match create(ctx, maker, &slots, latest, change, now).await? {
        Ok(()) => {
            change.run.status = RunStatus::Submitted;
            change.run.desired_replica_count = count(slots.len());
            change.run.waiting_for = Some("its jobs".to_owned());
        }
        Err(error) => give_up(maker, &error, change, now),
    }
    Ok(())
}

/// The next time of a schedule may find things better.
fn give_up(maker: &Events, error: &InputError, change: &mut Change, now: Time) {
    let run = &mut change.run;
    tracing::warn!(run.id = %run.id, run.name = %run.run_name, %error, "the jobs of a run cannot be made");
    run.status = RunStatus::Terminating;
    run.termination_reason = Some(RunTerminationReason::ServerError);
    run.next_wake_at = Some(now);
    run.waiting_for = Some("its end: its jobs cannot be made".to_owned());
    change.events.push(maker.event(
        format!("The run's jobs cannot be made: {error}"),
        vec![events::run(run)],
    ));
}

/// The next step towards as many replicas as the run asks for now, all of its newest deployment.
pub(super) async fn follow(
    ctx: &Context,
    maker: &Events,
    latest: &[&JobRow],
    change: &mut Change,
    now: Time,
) -> Result<()> {
    match keep_equal(ctx, latest, change).await? {
        Ok(false) => {}
        Ok(true) => {
            change.run.next_wake_at = Some(now);
            return Ok(());
        }
        Err(error) => {
            wait_for_inputs(&error, change, now);
            return Ok(());
        }
    }
    let Some(service) = change.run.run_spec.configuration.service() else {
        return Ok(());
    };
    let next = replicas::next(service, &planned(&change.run, latest), now);
    change.run.desired_replica_count = next.wanted;
    change.run.next_wake_at = next.wake_at;
    let stopped: Vec<&JobRow> = latest
        .iter()
        .filter(|job| next.stop.contains(&job.replica_num))
        .copied()
        .collect();
    end_jobs(
        maker,
        &stopped,
        JobTerminationReason::ScaledDown,
        None,
        change,
        now,
    );
    if !next.start.is_empty()
        && let Err(error) = create(ctx, maker, &next.start, latest, change, now).await?
    {
        wait_for_inputs(&error, change, now);
    }
    Ok(())
}

/// What runs goes on.
fn wait_for_inputs(error: &InputError, change: &mut Change, now: Time) {
    let run = &mut change.run;
    tracing::warn!(run.id = %run.id, run.name = %run.run_name, %error, "the jobs of a deployment cannot be made");
    run.waiting_for = Some(format!("the jobs of deployment {}: {error}", run.deployment_num));
    run.next_wake_at = Some(now + AGAIN);
    run.deadline_at = run.next_wake_at;
}

/// Jobs that a deployment leaves as they are belong to it from now on. True if there were any.
async fn keep_equal(
    ctx: &Context,
    latest: &[&JobRow],
    change: &mut Change,
) -> Result<std::result::Result<bool, InputError>> {
    let deployment = change.run.deployment_num;
    let older = |job: &&&JobRow| {
        job.deployment_num < deployment && !job.status.is_finished() && job.status != JobStatus::Terminating
    };
    let older: Vec<&JobRow> = latest.iter().filter(older).copied().collect();
    let specs = match change.run.run_spec.configuration.service() {
        _ if older.is_empty() => return Ok(Ok(false)),
        Some(_) => match ctx.deps.inputs.jobs(&change.run, &slots(&older)).await? {
            Ok(specs) => Some(specs),
            Err(error) => return Ok(Err(error)),
        },
        // All that may change of others while they run leaves their jobs alone.
        None => None,
    };
    let equal = |job: &&JobRow| specs.as_ref().is_none_or(|specs| is_wanted(&job.job_spec, specs));
    let kept: Vec<JobRow> = older
        .into_iter()
        .filter(equal)
        .map(|job| JobRow {
            deployment_num: deployment,
            ..job.clone()
        })
        .collect();
    let any = !kept.is_empty();
    change.jobs.extend(kept);
    Ok(Ok(any))
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

/// New submissions for these replicas, as the run asks for them now.
async fn create(
    ctx: &Context,
    maker: &Events,
    slots: &[Slot],
    latest: &[&JobRow],
    change: &mut Change,
    now: Time,
) -> Result<std::result::Result<(), InputError>> {
    let specs = match ctx.deps.inputs.jobs(&change.run, slots).await? {
        Ok(specs) => specs,
        Err(error) => return Ok(Err(error)),
    };
    let text = match latest.is_empty() {
        true => "Job created on run submission. Status: SUBMITTED",
        false => "Job created on new submission. Status: SUBMITTED",
    };
    for spec in specs {
        let mut job = JobRow::submitted(
            ctx.deps.random.ordered_uuid(now).into(),
            &change.run,
            Json::new(spec),
            now,
        );
        let before = latest
            .iter()
            .find(|other| (other.replica_num, other.job_num) == (job.replica_num, job.job_num));
        job.submission_num = before.map_or(0, |before| before.submission_num + 1);
        change.events.push(maker.event(text, vec![events::job(&job)]));
        change.jobs.push(job);
    }
    Ok(Ok(()))
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
