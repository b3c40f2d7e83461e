//! Runs: their status follows from their jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_model::profiles::StopCriteria;
use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus};
use dstack_plan::lifecycle::retry::RetryFacts;
use dstack_plan::lifecycle::run::{Decision, Facts, JobFacts, decide};
use dstack_plan::lifecycle::transitions::{job_allowed, run_allowed};
use dstack_plan::schedule::next_trigger;
use dstack_store::rows::{JobRow, RunRow};
use dstack_store::{Commit, EntityRef, NewEvent, Put, RunSnapshot};
use dstack_units::{RunId, Time};

use super::replicas;
use crate::Result;
use crate::context::Context;
use crate::events::{self, Events};

/// Decides about a run and does what was decided.
pub async fn reconcile(ctx: &Arc<Context>, id: RunId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.run(id).await? else {
        return Ok(());
    };
    if snapshot.run.status.is_finished() {
        ctx.finished(EntityRef::Run(id));
        return Ok(());
    }
    let commit = advance(ctx, &snapshot).await?;
    ctx.commit(("run.commit.before", "run.commit.after"), commit)
        .await
}

/// What becomes of a run that is not finished, and sets its timer; nothing when that is not allowed.
pub(super) async fn advance(ctx: &Context, snapshot: &RunSnapshot) -> Result<Commit> {
    let id = snapshot.run.id;
    let latest = latest(&snapshot.jobs);
    // Events are listed by time: what follows from a change is later than it, however quick it was.
    let changed = latest.iter().map(|job| job.last_processed_at).max();
    let now = changed.map_or(ctx.now(), |at| ctx.now().max(at + Duration::from_micros(1)));
    let mut change = Change {
        run: snapshot.run.clone(),
        jobs: Vec::new(),
        events: Vec::new(),
    };
    // Several steps in one commit, as long as they concern the run alone.
    for at in (0..STEPS).map(|step| now + Duration::from_micros(step)) {
        let (before, events) = (change.run.clone(), change.events.len());
        step(ctx, snapshot, &latest, &mut change, at).await?;
        let to = change.run.status;
        if to == before.status {
            break;
        }
        if !run_allowed(before.status, to) {
            tracing::error!(run.id = %id, from = ?before.status, ?to, "transition is not allowed");
            return Ok(Commit::default());
        }
        // The change of the run's status comes before those of its jobs that follow from it.
        let event = Events::system(at, ctx.deps.random.clone()).run_status(&before, &change.run);
        change.events.insert(events, event);
        tracing::info!(run.id = %id, run.name = %before.run_name, from = ?before.status, ?to, "run changed");
        if to.is_finished() || !change.jobs.is_empty() {
            break;
        }
    }
    ctx.wakes.wake_at(EntityRef::Run(id), change.run.next_wake_at);
    Ok(commit(snapshot, change, now))
}

/// More steps than a run can take without its jobs.
const STEPS: u64 = 4;

async fn step(
    ctx: &Context,
    snapshot: &RunSnapshot,
    latest: &[&JobRow],
    change: &mut Change,
    now: Time,
) -> Result<()> {
    let decision = decide(&facts(&change.run, &snapshot.jobs, latest), now);
    let maker = Events::system(now, ctx.deps.random.clone());
    // Replicas of a service are made anew: what it asks for may have changed since the last time.
    if decision == Decision::Resubmit && (latest.is_empty() || is_service(&change.run)) {
        return replicas::start(ctx, &maker, latest, change, now).await;
    }
    let settled = matches!(&decision, Decision::Follow { retry_replicas, .. } if retry_replicas.is_empty());
    apply(ctx, &maker, latest, decision, change, now);
    if settled {
        replicas::follow(ctx, &maker, latest, change, now).await?;
    }
    Ok(())
}

fn is_service(run: &RunRow) -> bool {
    run.run_spec.configuration.service().is_some()
}

/// The latest submission of each job.
fn latest(jobs: &[JobRow]) -> Vec<&JobRow> {
    let mut latest: BTreeMap<(i64, i64), &JobRow> = BTreeMap::new();
    for job in jobs {
        let slot = latest.entry((job.replica_num, job.job_num)).or_insert(job);
        if job.submission_num > slot.submission_num {
            *slot = job;
        }
    }
    latest.into_values().collect()
}

fn facts<'a>(run: &RunRow, jobs: &'a [JobRow], latest: &[&'a JobRow]) -> Facts<'a> {
    let profile = run.run_spec.merged_profile();
    let provisioned_at = |job: &JobRow| {
        let same = |other: &&JobRow| {
            (other.replica_num, other.job_num) == (job.replica_num, job.job_num)
                && other.job_provisioning_data.is_some()
        };
        jobs.iter()
            .filter(same)
            .map(|other| other.last_processed_at)
            .max()
    };
    Facts {
        status: run.status,
        termination_reason: run.termination_reason,
        resubmission_attempt: run.resubmission_attempt,
        jobs_changed_at: latest
            .iter()
            .map(|job| job.last_processed_at)
            .max()
            .unwrap_or(run.submitted_at),
        master_done_ends: profile.params.stop_criteria == Some(StopCriteria::MasterDone),
        service: is_service(run),
        scheduled: profile.params.schedule.is_some(),
        next_triggered_at: run.next_triggered_at,
        jobs: latest
            .iter()
            .map(|job| JobFacts {
                replica_num: job.replica_num,
                job_num: job.job_num,
                status: job.status,
                reason: job.termination_reason,
                superseded: is_service(run)
                    && job.status.is_finished()
                    && job.deployment_num < run.deployment_num,
                retry: RetryFacts {
                    retry: job.job_spec.retry.as_ref(),
                    reason: job.termination_reason,
                    run_started_at: run.next_triggered_at.unwrap_or(run.submitted_at),
                    last_provisioned_at: provisioned_at(job),
                },
            })
            .collect(),
    }
}

/// What is to be written.
pub(super) struct Change {
    pub(super) run: RunRow,
    pub(super) jobs: Vec<JobRow>,
    pub(super) events: Vec<NewEvent>,
}

fn apply(
    ctx: &Context,
    maker: &Events,
    latest: &[&JobRow],
    decision: Decision,
    change: &mut Change,
    now: Time,
) {
    let run = &mut change.run;
    run.next_wake_at = None;
    run.deadline_at = None;
    run.waiting_for = None;
    match decision {
        Decision::Stay { wake_at, waiting_for } => {
            run.next_wake_at = wake_at;
            run.deadline_at = wake_at;
            run.waiting_for = waiting_for.map(str::to_owned);
        }
        Decision::Follow {
            status,
            retry_replicas,
        } => {
            run.status = status;
            if status == RunStatus::Provisioning {
                run.resubmission_attempt = 0;
            }
            if run.fleet_id.is_none() {
                run.fleet_id = latest.iter().find_map(|job| job.fleet_id);
            }
            run.waiting_for = Some("its jobs".to_owned());
            for job in latest
                .iter()
                .filter(|job| retry_replicas.contains(&job.replica_num))
            {
                retry(ctx, maker, job, change, now);
            }
        }
        Decision::Requeue { attempt } => {
            run.status = RunStatus::Pending;
            run.resubmission_attempt = attempt;
            run.fleet_id = None;
            let ended = JobTerminationReason::TerminatedByServer;
            end_jobs(
                maker,
                latest,
                ended,
                Some("Run is to be resubmitted"),
                change,
                now,
            );
        }
        Decision::Resubmit => {
            run.status = RunStatus::Submitted;
            for job in latest {
                resubmit(ctx, maker, job, change, now);
            }
        }
        Decision::Terminate(reason) => {
            run.status = RunStatus::Terminating;
            run.termination_reason = Some(reason);
            run.next_wake_at = Some(now);
        }
        Decision::EndJobs(reason) => {
            run.waiting_for = Some("its jobs to end".to_owned());
            end_jobs(maker, latest, reason, None, change, now);
        }
        Decision::Finish(status) => run.status = status,
        Decision::Reschedule => {
            run.status = RunStatus::Pending;
            run.termination_reason = None;
            run.fleet_id = None;
            run.resubmission_attempt = 0;
            run.next_triggered_at = next_trigger(&run.run_spec, now);
        }
    }
}

/// A new submission of a replica's job; a sibling that still lives is ended first.
fn retry(ctx: &Context, maker: &Events, job: &JobRow, change: &mut Change, now: Time) {
    if !job.status.is_finished() {
        let reason = JobTerminationReason::TerminatedByServer;
        end_jobs(
            maker,
            &[job],
            reason,
            Some("Run is to be resubmitted"),
            change,
            now,
        );
        return;
    }
    resubmit(ctx, maker, job, change, now);
}

fn resubmit(ctx: &Context, maker: &Events, job: &JobRow, change: &mut Change, now: Time) {
    let id = ctx.deps.random.ordered_uuid(now).into();
    let next = JobRow {
        submission_num: job.submission_num + 1,
        deployment_num: job.deployment_num,
        ..JobRow::submitted(id, &change.run, job.job_spec.clone(), now)
    };
    change.events.push(maker.event(
        "Job created on retry. Status: SUBMITTED",
        vec![events::job(&next)],
    ));
    change.jobs.push(next);
}

pub(super) fn end_jobs(
    maker: &Events,
    jobs: &[&JobRow],
    reason: JobTerminationReason,
    message: Option<&str>,
    change: &mut Change,
    now: Time,
) {
    for job in jobs
        .iter()
        .filter(|job| job_allowed(job.status, JobStatus::Terminating))
    {
        let ending = JobRow {
            status: JobStatus::Terminating,
            termination_reason: Some(reason),
            termination_reason_message: message.map(str::to_owned),
            last_processed_at: now,
            next_wake_at: Some(now),
            waiting_for: Some("the job to be ended".to_owned()),
            ..(*job).clone()
        };
        change.events.push(maker.job_status(job, &ending));
        change.jobs.push(ending);
    }
}

fn commit(snapshot: &RunSnapshot, mut change: Change, now: Time) -> Commit {
    let mut commit = Commit {
        events: change.events,
        ..Commit::default()
    };
    if change.run != snapshot.run {
        change.run.last_processed_at = now;
        commit.puts.push(Put::Run(change.run));
    }
    commit.puts.extend(change.jobs.into_iter().map(Put::Job));
    commit
}
