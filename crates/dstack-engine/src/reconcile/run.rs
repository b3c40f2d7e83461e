//! Runs: their status follows from their jobs.

use std::sync::Arc;
use std::time::Duration;

use dstack_model::profiles::StopCriteria;
use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus};
use dstack_plan::lifecycle::retry::RetryFacts;
use dstack_plan::lifecycle::run::{Decision, Facts, JobFacts, decide};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::schedule::next_trigger;
use dstack_plan::services::replicas::starts_on_request;
use dstack_plan::services::rollout::state::Rollout;
use dstack_store::rows::{JobRow, RunRow};
use dstack_store::{Changes, EntityRef, EventMaker, RunSnapshot, events};
use dstack_units::{RunId, Time};

use super::{replicas, rollout};
use crate::Result;
use crate::context::Context;
use crate::peers::{free_nodes, latest};

/// Decides about a run and does what was decided.
pub async fn reconcile(ctx: &Arc<Context>, id: RunId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.run(id).await? else {
        return Ok(());
    };
    if snapshot.run.status().is_finished() {
        ctx.finished(EntityRef::Run(id));
        return Ok(());
    }
    let changes = advance(ctx, &snapshot).await?;
    ctx.commit(("run.commit.before", "run.commit.after"), changes.into_commit())
        .await?;
    wake_ready_nodes(ctx, &snapshot);
    Ok(())
}

/// Wakes the nodes that others kept waiting, and keep no more.
fn wake_ready_nodes(ctx: &Context, snapshot: &RunSnapshot) {
    let jobs = latest(&snapshot.jobs);
    for job in free_nodes(&snapshot.run, &jobs) {
        ctx.wakes.wake(EntityRef::Job(job));
    }
}

/// What becomes of a run that is not finished, and sets its timer.
///
/// # Errors
/// The store, what the run's jobs need, or a status that must not follow the present one.
pub(super) async fn advance(ctx: &Context, snapshot: &RunSnapshot) -> Result<Changes> {
    let id = snapshot.run.id;
    let latest = latest(&snapshot.jobs);
    // Events are listed by time: what follows from a change is later than it, however quick it was.
    let changed = latest.iter().map(|job| job.last_processed_at).max();
    let now = changed.map_or(ctx.now(), |at| ctx.now().max(at + Duration::from_micros(1)));
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut change = Change::of(&snapshot.run);
    // Several steps in one commit, as long as they concern the run alone.
    for _ in 0..STEPS {
        let before = change.run.clone();
        change.look_at = None;
        step(ctx, snapshot, &latest, &mut change, now).await?;
        let (from, to) = (before.status(), change.run.status());
        // The change of the run's status comes before those of its jobs that follow from it.
        changes.update(&before, change.run.clone());
        let has_jobs = change.tell_jobs(&mut changes);
        if from == to {
            break;
        }
        tracing::info!(run.id = %id, run.name = %before.run_name, ?from, ?to, "run changed");
        if to.is_finished() || has_jobs {
            break;
        }
    }
    let look_at = change.run.next_wake_at().into_iter().chain(change.look_at);
    ctx.wakes.wake_at(EntityRef::Run(id), look_at.min());
    if change.run != snapshot.run {
        change.run.last_processed_at = now;
        changes.touch(change.run);
    }
    Ok(changes)
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
    let jobs = Jobs {
        all: &snapshot.jobs,
        latest,
    };
    let decision = decide(&facts(&change.run, jobs.all, latest), now);
    // Replicas of a service are made anew: what it asks for may have changed since the last time.
    if decision == Decision::Resubmit && (latest.is_empty() || is_service(&change.run)) {
        rollout::give_up(latest, change, now)?;
        return replicas::start(ctx, jobs, change, now).await;
    }
    let settled = matches!(&decision, Decision::Follow { retry_replicas, .. } if retry_replicas.is_empty());
    apply(ctx, latest, decision, change, now)?;
    if settled {
        replicas::follow(ctx, jobs, change, now).await?;
    }
    Ok(())
}

fn is_service(run: &RunRow) -> bool {
    run.run_spec.configuration.service().is_some()
}

fn facts<'a>(run: &RunRow, jobs: &[JobRow], latest: &[&'a JobRow]) -> Facts<'a> {
    let profile = run.run_spec.merged_profile();
    Facts {
        status: run.status(),
        termination_reason: run.termination_reason(),
        resubmission_attempt: run.resubmission_attempt,
        jobs_changed_at: latest
            .iter()
            .map(|job| job.last_processed_at)
            .max()
            .unwrap_or(run.submitted_at),
        master_done_ends: profile.params.stop_criteria == Some(StopCriteria::MasterDone),
        service: is_service(run),
        may_rest: run
            .run_spec
            .configuration
            .service()
            .is_some_and(starts_on_request),
        scheduled: profile.params.schedule.is_some(),
        next_triggered_at: run.next_triggered_at,
        jobs: latest
            .iter()
            .map(|job| JobFacts {
                replica_num: job.replica_num,
                job_num: job.job_num,
                status: job.status(),
                reason: job.termination_reason(),
                superseded: is_service(run)
                    && (!rollout::lives(job) && job.deployment_num < oldest_deployment(run)
                        || job.status().is_finished() && is_outlived(job, latest)
                        || rollout::has_other_side(job, latest, run)),
                changed_at: job.last_processed_at,
                in_a_row: in_a_row(jobs, job),
                retry: retry_facts(run, jobs, job),
            })
            .collect(),
    }
}

/// Jobs of earlier deployments do not matter any more once they end.
fn oldest_deployment(run: &RunRow) -> i64 {
    let rollout = run.rollout_under_way();
    rollout.map_or(run.deployment_num, Rollout::oldest_deployment)
}

/// Whether a job of a service failed for good before others were started, which do without it.
fn is_outlived(job: &JobRow, latest: &[&JobRow]) -> bool {
    let failed = job.status() != JobStatus::Done && job.job_spec.retry.is_none();
    failed
        && latest
            .iter()
            .any(|other| other.submitted_at > job.last_processed_at)
}

/// How many submissions of a job in a row, up to this one, have ended for the same reason, of all `jobs` of its run.
pub(super) fn in_a_row(jobs: &[JobRow], job: &JobRow) -> i64 {
    let submissions = jobs
        .iter()
        .filter(|other| (other.replica_num, other.job_num) == (job.replica_num, job.job_num));
    let other = submissions
        .clone()
        .filter(|other| other.termination_reason() != job.termination_reason());
    let last_other = other.map(|other| other.submission_num).max();
    let since = submissions.filter(|other| last_other.is_none_or(|last| other.submission_num > last));
    i64::try_from(since.count()).unwrap_or(i64::MAX)
}

/// What the retry of a job depends on, which is one of all `jobs` of the run.
pub(crate) fn retry_facts<'a>(run: &RunRow, jobs: &[JobRow], job: &'a JobRow) -> RetryFacts<'a> {
    let provisioned = |other: &&JobRow| {
        (other.replica_num, other.job_num) == (job.replica_num, job.job_num)
            && other.job_provisioning_data.is_some()
    };
    let provisioned = jobs.iter().filter(provisioned);
    let scales = run.desired_replica_counts.as_deref();
    let scale = scales.and_then(|scales| scales.get(&job.job_spec.replica_group));
    let facts = RetryFacts {
        retry: job.job_spec.retry.as_ref(),
        reason: job.termination_reason(),
        run_started_at: run.next_triggered_at.unwrap_or(run.submitted_at),
        last_provisioned_at: provisioned.map(|other| other.last_processed_at).max(),
    };
    facts.wanted_since(scale.and_then(|scale| scale.at))
}

/// The jobs of a run.
#[derive(Clone, Copy)]
pub(super) struct Jobs<'a> {
    /// All submissions of all jobs, also those that were submitted again since.
    pub(super) all: &'a [JobRow],
    /// The latest submission of each.
    pub(super) latest: &'a [&'a JobRow],
}

/// What is to be written of a run and its jobs.
pub(super) struct Change {
    pub(super) run: RunRow,
    /// The run's wait as it is stored.
    pub(super) stored_wait: Wait,
    /// When its requests are looked at again. Not stored: who starts anew looks at once.
    pub(super) look_at: Option<Time>,
    jobs: Vec<JobChange>,
    notes: Vec<String>,
}

enum JobChange {
    /// A new submission, and the event that says why.
    New(Box<JobRow>, &'static str),
    /// A submission before and after.
    Changed(Box<(JobRow, JobRow)>),
    /// A submission that is to be as it is.
    Expected(Box<JobRow>),
}

impl Change {
    fn of(run: &RunRow) -> Self {
        Self {
            run: run.clone(),
            stored_wait: run.stored_wait(),
            look_at: None,
            jobs: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a new submission; `message` is its event.
    pub(super) fn add_job(&mut self, job: JobRow, message: &'static str) {
        self.jobs.push(JobChange::New(Box::new(job), message));
    }

    /// Changes a submission.
    pub(super) fn change_job(&mut self, before: &JobRow, after: JobRow) {
        self.jobs
            .push(JobChange::Changed(Box::new((before.clone(), after))));
    }

    /// Has nothing written if a submission is not as it is any more.
    pub(super) fn expect_job(&mut self, job: &JobRow) {
        self.jobs.push(JobChange::Expected(Box::new(job.clone())));
    }

    /// Adds an event of the run.
    pub(super) fn note(&mut self, message: String) {
        self.notes.push(message);
    }

    /// Hands over what was collected of the jobs; whether there was something.
    fn tell_jobs(&mut self, changes: &mut Changes) -> bool {
        for message in self.notes.drain(..) {
            changes.note(message, vec![events::run(&self.run)]);
        }
        let any = !self.jobs.is_empty();
        for job in self.jobs.drain(..) {
            match job {
                JobChange::New(job, message) => changes.insert(*job, message),
                JobChange::Changed(job) => changes.update(&job.0, job.1),
                JobChange::Expected(job) => changes.touch(*job),
            }
        }
        any
    }
}

fn apply(
    ctx: &Context,
    latest: &[&JobRow],
    decision: Decision,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    let run = &mut change.run;
    match decision {
        Decision::Stay { wake_at, waiting_for } => run.wait(Wait {
            deadline: wake_at,
            wake_at,
            reason: waiting_for,
        }),
        Decision::Follow {
            status,
            retry_replicas,
            retry_at,
        } => {
            run.follow_jobs(status)?;
            if let Some(at) = retry_at {
                run.wake_at(at);
            }
            if status == RunStatus::Provisioning {
                run.resubmission_attempt = 0;
            }
            if run.fleet_id.is_none() {
                run.fleet_id = latest.iter().find_map(|job| job.fleet_id);
            }
            for job in latest
                .iter()
                .filter(|job| retry_replicas.contains(&job.replica_num))
            {
                retry(ctx, job, change, now)?;
            }
        }
        Decision::Requeue { attempt } => {
            run.requeue(attempt)?;
            let ended = JobTerminationReason::TerminatedByServer;
            end_jobs(latest, ended, Some("Run is to be resubmitted"), change, now)?;
        }
        Decision::Resubmit => {
            run.follow_jobs(RunStatus::Submitted)?;
            for job in latest {
                resubmit(ctx, job, change, now);
            }
        }
        Decision::Terminate(reason) => run.terminate(reason, now)?,
        Decision::EndJobs(reason) => {
            run.wait(Wait::indefinite(WaitReason::JobsEnded));
            end_jobs(latest, reason, None, change, now)?;
        }
        Decision::Finish(status) => run.finish(status)?,
        Decision::Reschedule => {
            let next = next_trigger(&run.run_spec, now);
            run.reschedule(next)?;
        }
    }
    Ok(())
}

/// A new submission of a replica's job; a sibling that still lives is ended first.
fn retry(ctx: &Context, job: &JobRow, change: &mut Change, now: Time) -> Result<()> {
    if !job.status().is_finished() {
        let reason = JobTerminationReason::TerminatedByServer;
        return end_jobs(&[job], reason, Some("Run is to be resubmitted"), change, now);
    }
    resubmit(ctx, job, change, now);
    Ok(())
}

fn resubmit(ctx: &Context, job: &JobRow, change: &mut Change, now: Time) {
    let id = ctx.deps.random.ordered_uuid(now).into();
    let mut next = JobRow::submitted(id, &change.run, job.job_spec.clone(), now);
    next.submission_num = job.submission_num + 1;
    next.deployment_num = job.deployment_num;
    change.add_job(next, "Job created on retry. Status: SUBMITTED");
}

/// Begins to end those of the jobs that are not ending yet.
pub(super) fn end_jobs(
    jobs: &[&JobRow],
    reason: JobTerminationReason,
    message: Option<&str>,
    change: &mut Change,
    now: Time,
) -> Result<()> {
    for job in jobs.iter().filter(|job| job.may_terminate()) {
        let mut ending = (*job).clone();
        ending.terminate(reason, message.map(str::to_owned), now)?;
        ending.last_processed_at = now;
        change.change_job(job, ending);
    }
    Ok(())
}
