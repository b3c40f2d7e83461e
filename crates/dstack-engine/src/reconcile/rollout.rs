//! Roll-outs in which the new deployment of a service stands beside the old one for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::services::autoscaling::Demand;
use dstack_plan::services::replicas::{self, Job};
use dstack_plan::services::rollout::course::{self, Facts, Verdict, decide};
use dstack_plan::services::rollout::sides::{self, Course, Step};
use dstack_plan::services::rollout::state::{Ask, Phase, Rollout, gradual, rules};
use dstack_store::rows::{JobRow, RunRow};
use dstack_units::Time;

use super::replicas::{create, planned, wait_for_inputs};
use super::run::{Change, Jobs, end_jobs};
use crate::context::Context;
use crate::{InputsError, Result};

/// So often the answers of a new deployment are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Jobs that may take one another's requests, and one that takes those of all of them if they do not do well.
pub(super) fn sides<'a>(latest: &[&'a JobRow], run: &RunRow) -> Vec<(Vec<&'a JobRow>, Option<&'a JobRow>)> {
    match run.rollout_under_way() {
        Some(rollout) if rollout.phase != Phase::Following => {
            let (new, old): (Vec<&JobRow>, Vec<&JobRow>) =
                latest.iter().copied().partition(|job| is_new(rollout, job));
            let does_well = |job: &&JobRow| {
                let standing = job.standing(run);
                standing.is_some_and(|standing| standing.registered && !standing.failing)
            };
            let old_one = old.iter().copied().find(does_well);
            vec![(old, None), (new, old_one)]
        }
        _ => vec![(latest.to_vec(), None)],
    }
}

fn is_new(rollout: &Rollout, job: &JobRow) -> bool {
    rollout.is_new(job.deployment_num, job.submitted_at)
}

/// Whether a probe of a running job has failed too often since it was ready.
fn is_failing(job: &JobRow, run: &RunRow) -> bool {
    job.standing(run).is_some_and(|standing| standing.failing)
}

/// Neither over nor about to be.
pub(super) fn lives(job: &JobRow) -> bool {
    !job.status().is_finished() && job.status() != JobStatus::Terminating
}

/// Whether a roll-out has replicas of the new deployment.
pub(super) fn has_begun(latest: &[&JobRow], run: &RunRow) -> bool {
    let rollout = run.rollout_under_way();
    rollout.is_some_and(|rollout| latest.iter().any(|job| is_new(rollout, job)))
}

/// Whether a job of one side has failed for good, and the other side of a deployment that has yet to show what it is good for goes on:
/// the run does, too.
pub(super) fn has_other_side(job: &JobRow, latest: &[&JobRow], run: &RunRow) -> bool {
    let Some(rollout) = run
        .rollout_under_way()
        .filter(|rollout| rollout.phase.is_unproven())
    else {
        return false;
    };
    let has_failed = !lives(job) && job.status() != JobStatus::Done && job.job_spec.retry.is_none();
    let goes_on = |other: &&JobRow| lives(other) || other.job_spec.retry.is_some();
    let is_stopped = |other: &&JobRow| other.termination_reason() == Some(JobTerminationReason::ScaledDown);
    let mut others = latest
        .iter()
        .copied()
        .filter(|other| is_new(rollout, other) != is_new(rollout, job));
    has_failed && others.any(|other| goes_on(&other) && !is_stopped(&other))
}

/// The service starts again, and nothing is left beside which a deployment could show what it is good for.
pub(super) fn give_up(latest: &[&JobRow], change: &mut Change, now: Time) -> Result<()> {
    let is_unproven = |rollout: &Rollout| rollout.phase.is_unproven();
    if !change.run.rollout_under_way().is_some_and(is_unproven) || !has_begun(latest, &change.run) {
        return Ok(());
    }
    roll_back(
        "no replica was left that its new ones could have stood beside",
        latest,
        change,
        now,
    )
}

/// Rolls back where somebody has asked for that: nothing that keeps the new deployment from being made keeps it there. True if so.
pub(super) fn abort(latest: &[&JobRow], change: &mut Change, now: Time) -> Result<bool> {
    let is_asked = |rollout: &Rollout| rollout.asked == Some(Ask::Abort);
    if !change.run.rollout_under_way().is_some_and(is_asked) {
        return Ok(false);
    }
    roll_back("it was aborted by hand", latest, change, now)?;
    Ok(true)
}

/// Goes on with a roll-out. False: there is none, or it goes on as those that are rolling.
pub(super) async fn follow(
    ctx: &Context,
    jobs: Jobs<'_>,
    demand: &Demand,
    change: &mut Change,
    now: Time,
) -> Result<bool> {
    change.run.keep_groups(jobs.all.iter());
    let Some(state) = change.run.rollout_under_way().cloned() else {
        return Ok(false);
    };
    let Some((step, verdict)) = decided(ctx, jobs, &state, demand, change, now) else {
        return Ok(is_over(jobs.latest, change, now));
    };
    match verdict {
        Verdict::Stay(at) => {
            stay(ctx, jobs, (&state, step, at), change, now).await?;
            return Ok(true);
        }
        Verdict::Enter(phase) => {
            let what = entered(&phase);
            change.note(format!("Roll-out of deployment {}: {what}", state.deployment));
            change.run.enter_rollout(phase, now);
        }
        Verdict::Finish => finish(change),
        Verdict::RollBack(reason) => {
            let reason = with_end(reason, &step, jobs.latest);
            roll_back(&reason, jobs.latest, change, now)?;
        }
    }
    change.run.wake_at(now);
    Ok(true)
}

/// `None`: replicas are replaced one after another.
fn decided(
    ctx: &Context,
    jobs: Jobs<'_>,
    state: &Rollout,
    demand: &Demand,
    change: &Change,
    now: Time,
) -> Option<(Step, Verdict)> {
    let run = &change.run;
    let service = run.run_spec.configuration.service()?;
    let rules = rules(service)?;
    let course = Course::of(rules, &state.phase, course::keep_over(rules, state, now))?;
    let parts = parts(ctx, run, jobs, state);
    let before = run
        .rollout_from
        .as_deref()
        .and_then(|spec| spec.configuration.service());
    let step = replicas::next_of_both(service, before, parts.jobs(), demand, course, now);
    let answered = ctx
        .deps
        .services
        .answered(run.id, state.deployment, run.gateway_id);
    let facts = Facts {
        rules,
        state,
        groups: &step.sides,
        answers: answered.map(|answered| answered.new),
    };
    let verdict = decide(&facts, now);
    Some((step, verdict))
}

/// The latest submissions by what a roll-out makes of them.
struct Parts<'a> {
    old: Vec<Job<'a>>,
    new: Vec<Job<'a>>,
    kept: Vec<Job<'a>>,
}

impl<'a> Parts<'a> {
    fn jobs(&self) -> sides::Jobs<'_, 'a> {
        sides::Jobs {
            old: &self.old,
            new: &self.new,
            kept: &self.kept,
        }
    }
}

fn parts<'a>(ctx: &Context, run: &RunRow, jobs: Jobs<'a>, state: &Rollout) -> Parts<'a> {
    let is_earlier = |row: &JobRow| row.deployment_num < state.deployment;
    let earlier = jobs.latest.iter().filter(|row| is_earlier(row) && lives(row));
    let changing: BTreeSet<&str> = earlier.map(|row| row.job_spec.replica_group.as_str()).collect();
    let stays = run.kept_groups(jobs.all.iter());
    let mut parts = Parts {
        old: Vec::new(),
        new: Vec::new(),
        kept: Vec::new(),
    };
    for (row, job) in jobs.latest.iter().zip(planned(ctx, run, jobs)) {
        if is_new(state, row) && !stays.contains(job.group) {
            let serves = job.serves && !is_failing(row, run);
            parts.new.push(Job { serves, ..job });
        } else if is_earlier(row) || changing.contains(job.group) {
            let out_of_date = row.deployment_num < state.from_deployment;
            parts.old.push(Job { out_of_date, ..job });
        } else {
            parts.kept.push(job);
        }
    }
    parts
}

/// Whether nothing is left of the old deployment, which is written then.
fn is_over(latest: &[&JobRow], change: &mut Change, now: Time) -> bool {
    let deployment = change.run.deployment_num;
    let is_over = !latest
        .iter()
        .any(|job| job.deployment_num < deployment && lives(job));
    if is_over {
        finish(change);
        change.run.wake_at(now);
    }
    is_over
}

fn finish(change: &mut Change) {
    let deployment = change.run.deployment_num;
    change.note(format!("Roll-out of deployment {deployment} finished"));
    change.run.end_rollout();
}

const fn entered(phase: &Phase) -> &'static str {
    match phase {
        Phase::Preparing => "its replicas get ready",
        Phase::Watching => "its replicas get their share of the requests",
        Phase::Ready => "its replicas are ready, and the switch is to be asked for",
        Phase::Kept => "all requests go to its replicas",
        Phase::Following => "the other replicas follow",
        Phase::RolledBack(_) => "it is rolled back",
    }
}

/// Both sides stay as they are, as many as are wanted of each.
async fn stay(
    ctx: &Context,
    jobs: Jobs<'_>,
    (state, step, at): (&Rollout, Step, Option<Time>),
    change: &mut Change,
    now: Time,
) -> Result<()> {
    let (latest, next) = (jobs.latest, &step.changes);
    change.want(next);
    let look_at = (state.phase == Phase::Watching).then(|| now + LOOK_INTERVAL);
    change.look_at = next.look_at.into_iter().chain(look_at).min();
    let what = match obstacle(ctx, &change.run, state) {
        Some(obstacle) => obstacle,
        None => awaited(state, &step, &change.run.run_name),
    };
    let run = &mut change.run;
    let wakes = [run.next_wake_at(), next.wake_at, at];
    run.wait(Wait {
        deadline: None,
        wake_at: wakes.into_iter().flatten().min(),
        reason: Some(WaitReason::Rollout {
            deployment: state.deployment,
            what,
        }),
    });
    let stopped = latest.iter().filter(|job| next.stop.contains(&job.replica_num));
    let stopped: Vec<&JobRow> = stopped.copied().collect();
    end_jobs(&stopped, JobTerminationReason::ScaledDown, None, change, now)?;
    if let Err(error) = start(ctx, jobs, &step, change, now).await {
        wait_for_inputs(&error, change, now);
    }
    Ok(())
}

async fn start(
    ctx: &Context,
    jobs: Jobs<'_>,
    step: &Step,
    change: &mut Change,
    now: Time,
) -> Result<(), InputsError> {
    let run = change.run.clone();
    if !step.start_old.is_empty()
        && let Some(before) = as_before(&run)
    {
        create(ctx, &before, &step.start_old, jobs.latest, change, now).await?;
    }
    if !step.changes.start.is_empty() {
        create(ctx, &run, &step.changes.start, jobs.latest, change, now).await?;
    }
    Ok(())
}

/// The run as it was before its roll-out.
fn as_before(run: &RunRow) -> Option<RunRow> {
    let mut before = run.clone();
    before.run_spec = run.rollout_from.clone()?;
    before.deployment_num = run.rollout.as_deref()?.from_deployment;
    Some(before)
}

/// What keeps it from going on.
fn obstacle(ctx: &Context, run: &RunRow, state: &Rollout) -> Option<String> {
    if ctx.deps.services.can_split(run.gateway_id) {
        return None;
    }
    state.unsplit(gradual(&run.run_spec)?.effective_strategy(), &run.run_name)
}

fn awaited(state: &Rollout, step: &Step, run_name: &str) -> String {
    let (ready, wanted) = step.sides.iter().fold((0, 0), |(ready, wanted), group| {
        (ready + group.new_ready, wanted + group.new_wanted)
    });
    match state.phase {
        Phase::Preparing => format!("{ready} of {wanted} new replicas are ready"),
        Phase::Watching => format!("the new replicas are watched (`dstack rollout {run_name}`)"),
        Phase::Ready => format!(
            "all new replicas are ready: `dstack rollout {run_name} --promote` sends them the requests, `--abort` removes them"
        ),
        Phase::Kept => "it gets all requests, and the old replicas are kept for a while".to_owned(),
        Phase::Following | Phase::RolledBack(_) => "its replicas follow".to_owned(),
    }
}

/// The reason for going back, with how the first new replica ended that failed.
fn with_end(reason: String, step: &Step, latest: &[&JobRow]) -> String {
    let failed = step.sides.iter().flat_map(|group| &group.new_failed).next();
    let job = failed.and_then(|num| latest.iter().find(|job| job.replica_num == *num));
    let end = job.and_then(|job| {
        let ended = job.termination_reason()?.as_str();
        Some(match (job.exit_status, job.termination_reason_message()) {
            (_, Some(message)) => format!("{ended}: {message}"),
            (Some(status), None) => format!("{ended}, exit status {status}"),
            (None, None) => ended.to_owned(),
        })
    });
    match end {
        Some(end) => format!("{reason} ({end})"),
        None => reason,
    }
}

/// The run asks again for what it asked for before. New replicas end in the same commit where old ones get requests: those take what
/// they got. Others are replaced one after another.
fn roll_back(reason: &str, latest: &[&JobRow], change: &mut Change, now: Time) -> Result<()> {
    let Some(state) = change.run.rollout_under_way().cloned() else {
        return Ok(());
    };
    let kept = change.run.kept_groups(latest.iter().copied());
    let is_unneeded = |job: &JobRow| is_new(&state, job) && !kept.contains(&job.job_spec.replica_group);
    if !change.run.roll_back(reason.to_owned(), now) {
        change.run.end_rollout();
        return Ok(());
    }
    let run = &change.run;
    tracing::warn!(run.id = %run.id, run.name = %run.run_name, reason, "a deployment is rolled back");
    let message = format!("Deployment {} is rolled back: {reason}", state.deployment);
    change.note(format!("{message}. Deployment: {}", change.run.deployment_num));
    if state.phase == Phase::Following {
        return Ok(());
    }
    let is_old = |job: &JobRow| job.deployment_num < state.deployment;
    let serving = |wanted: &dyn Fn(&JobRow) -> bool| {
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        for job in latest
            .iter()
            .filter(|job| job.registered && lives(job) && wanted(job))
        {
            *found.entry(job.job_spec.replica_group.as_str()).or_default() += 1;
        }
        found
    };
    let (mut olds, news) = (serving(&is_old), serving(&|job| is_new(&state, job)));
    if state.phase == Phase::Kept {
        // All requests went to the new ones: as many are to take them.
        olds.retain(|group, old| news.get(group).is_none_or(|new| *old >= *new));
    }
    let served: BTreeSet<&str> = olds.into_keys().collect();
    // Until the switch the others got all requests but a share, whatever their groups.
    let others = !serving(&|job| !is_unneeded(job)).is_empty();
    let is_served = |job: &JobRow| {
        served.contains(job.job_spec.replica_group.as_str()) || (state.phase.is_unproven() && others)
    };
    let news = latest.iter().copied();
    let unneeded: Vec<&JobRow> = news.filter(|job| is_unneeded(job) && is_served(job)).collect();
    end_jobs(
        &unneeded,
        JobTerminationReason::ScaledDown,
        Some(&message),
        change,
        now,
    )
}
