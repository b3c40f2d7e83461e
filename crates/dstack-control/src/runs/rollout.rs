//! Roll-outs: what applying a service begins, and what may be asked for meanwhile.

use std::collections::BTreeSet;

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::runs::{JobTerminationReason, RunSpec, RunStatus};
use dstack_plan::diff::changed_fields;
use dstack_plan::services::rollout::state::{Ask, Phase, Rollout, check_groups, gradual};
use dstack_store::rows::{JobRow, RunRow};
use dstack_store::{Json, Sealed, events};
use dstack_units::{ProjectId, Time};

use super::{BUSY, Runs};
use crate::core::Actor;
use crate::error::{ControlError, Result};

impl Runs {
    /// Has the new deployment of a service go on, or go: the engine does it as soon as it can.
    ///
    /// # Errors
    /// There is no such run, no roll-out of it is under way, or it is as far already.
    pub async fn ask_of_rollout(&self, actor: Actor, project: ProjectId, name: &str, ask: Ask) -> Result<()> {
        self.core
            .retry_on_conflict(BUSY, || self.try_ask(actor, project, name, ask))
            .await
    }

    async fn try_ask(&self, actor: Actor, project: ProjectId, name: &str, ask: Ask) -> Result<()> {
        let run = self.core.store.run_by_name(project, name).await?;
        let run = run
            .filter(|run| !run.deleted)
            .ok_or_else(ControlError::not_found)?;
        let rollout = askable(&run, ask)?;
        if rollout.asked == Some(ask) {
            return Ok(());
        }
        let mut changed = run.clone();
        changed.rollout = Some(Json::new(Rollout {
            asked: Some(ask),
            ..rollout.clone()
        }));
        changed.wake_at(self.core.now());
        let what = match ask {
            Ask::Promote => "promoted",
            Ask::Abort => "aborted",
        };
        let mut changes = self.core.changes(actor);
        let text = format!("Roll-out {what}. Deployment: {}", rollout.deployment);
        changes.note(text, vec![events::run(&run)]);
        changes.touch(changed);
        self.core.commit(changes).await
    }
}

/// The roll-out of a run of which this may be asked.
fn askable(run: &RunRow, ask: Ask) -> Result<&Rollout> {
    let ends = run.status().is_finished() || run.status() == RunStatus::Terminating;
    let rollout = run.rollout_under_way().filter(|_| !ends);
    let rollout = rollout.ok_or_else(|| {
        let name = &run.run_name;
        ControlError::refused(format!(
            "No roll-out of {name} is under way that could be promoted or aborted: `dstack apply` begins one with \
             `rollout.strategy: canary` or `blue_green`"
        ))
    })?;
    match (&rollout.phase, ask) {
        (Phase::Kept, Ask::Promote) => Err(ControlError::refused(
            "All requests go to the new deployment already",
        )),
        (Phase::Following, Ask::Promote) => Err(ControlError::refused(
            "The new deployment goes on already: its other replicas follow",
        )),
        _ => Ok(rollout),
    }
}

/// What may change while a roll-out goes on: nothing that replicas are made of.
const FIELDS: [&str; 4] = [
    "configuration.rollout",
    "configuration.replicas",
    "configuration.scaling",
    "configuration.priority",
];

/// Whether what is applied changes the rules of a roll-out that is under way, or how many replicas there are, and nothing else: it goes
/// on.
pub(super) fn goes_on(old: &RunRow, spec: &RunSpec) -> bool {
    let changed = || changed_fields(&old.run_spec, spec);
    old.rollout_under_way().is_some() && changed().iter().all(|field| FIELDS.contains(&field.as_str()))
}

/// The roll-out goes on by other rules. Who goes back has as many replicas as were asked for last.
///
/// # Errors
/// Another strategy means something else for the replicas that there are.
pub(super) fn go_on(old: &RunRow, new: &mut RunRow) -> Result<()> {
    let (before, after) = (gradual(&old.run_spec), gradual(&new.run_spec));
    let Some(rules) = after else {
        new.end_rollout();
        return Ok(());
    };
    let strategy = rules.effective_strategy();
    if before.is_some_and(|before| before.effective_strategy() != strategy) {
        return Err(ControlError::refused(format!(
            "A roll-out is under way, and cannot become one with `strategy: {strategy}`. Promote or abort it first: `dstack rollout {}`",
            new.run_name
        )));
    }
    // Its replicas stand beside one another at one gateway, whichever the project's default is by now.
    new.gateway_id = old.gateway_id;
    new.service_spec.clone_from(&old.service_spec);
    if let Some(from) = new.rollout_from.as_deref() {
        let mut from = from.clone();
        resize(&mut from, &new.run_spec);
        new.rollout_from = Some(Sealed::new(from));
    }
    Ok(())
}

/// As many replicas as another specification asks for.
fn resize(spec: &mut RunSpec, as_in: &RunSpec) {
    if let (AnyRunConfiguration::Service(service), Some(other)) =
        (&mut spec.configuration, as_in.configuration.service())
        && service.groups.is_none()
    {
        service.replicas = other.replicas;
        service.scaling.clone_from(&other.scaling);
    }
}

/// Whether a roll-out begins, or one is under way.
pub(super) fn concerns(old: &RunRow, new: &RunRow) -> bool {
    old.rollout.is_some() || gradual(&new.run_spec).is_some()
}

/// Begins the roll-out of what is applied, in the place of one that is under way. Jobs that end at once, before and after: those of a
/// deployment that has yet to show what it is good for, or that was replaced and merely kept.
///
/// # Errors
/// The service moves to another gateway, or has groups that it did not have.
pub(super) fn begin(
    old: &RunRow,
    new: &mut RunRow,
    jobs: &[JobRow],
    now: Time,
) -> Result<Vec<(JobRow, JobRow)>> {
    let under_way = old.rollout_under_way();
    let unproven = under_way.filter(|rollout| rollout.phase.is_unproven());
    if let Some(rules) = gradual(&new.run_spec) {
        if new.gateway_id != old.gateway_id {
            return Err(ControlError::refused(format!(
                "A service cannot move to another gateway in a roll-out with `strategy: {}`. Use `strategy: rolling` for that",
                rules.effective_strategy()
            )));
        }
        check_groups(old.proven_spec(), &new.run_spec)
            .map_err(|error| ControlError::refused(error.to_string()))?;
        let after = jobs.iter().map(|job| job.submitted_at).max().unwrap_or(now);
        let (from, from_deployment, service_spec) = match (unproven, &old.rollout_from) {
            (Some(rollout), Some(from)) => (
                from.clone(),
                rollout.from_deployment,
                rollout.service_spec.clone(),
            ),
            _ => (
                old.run_spec.clone(),
                old.deployment_num,
                old.service_spec.as_deref().cloned(),
            ),
        };
        let rollout = Rollout {
            service_spec,
            ..Rollout::begin((new.deployment_num, from_deployment), after, now)
        };
        new.begin_rollout(rollout, from);
    } else {
        new.end_rollout();
    }
    match under_way {
        Some(rollout) if rollout.phase.is_unproven() => {
            let kept = old.kept_groups(jobs.iter());
            let is_new = |job: &JobRow| is_new(rollout, job) && !kept.contains(&job.job_spec.replica_group);
            // The others got all requests but a share, whatever their groups.
            let is_served = jobs.iter().any(|job| job.registered && !is_new(job));
            ended(jobs, |job| is_new(job) && is_served, now)
        }
        Some(rollout) if rollout.phase == Phase::Kept => {
            let served = served(jobs, |job| !is_old(rollout, job));
            let is_served = |job: &JobRow| served.contains(job.job_spec.replica_group.as_str());
            ended(jobs, |job| is_old(rollout, job) && is_served(job), now)
        }
        _ => Ok(Vec::new()),
    }
}

fn is_new(rollout: &Rollout, job: &JobRow) -> bool {
    rollout.is_new(job.deployment_num, job.submitted_at)
}

const fn is_old(rollout: &Rollout, job: &JobRow) -> bool {
    job.deployment_num < rollout.deployment
}

/// The groups in which some of these jobs get requests.
fn served(jobs: &[JobRow], replaces: impl Fn(&JobRow) -> bool) -> BTreeSet<&str> {
    let serving = jobs.iter().filter(|job| job.registered && replaces(job));
    serving.map(|job| job.job_spec.replica_group.as_str()).collect()
}

/// Jobs that are not needed end.
fn ended(jobs: &[JobRow], is_unneeded: impl Fn(&JobRow) -> bool, now: Time) -> Result<Vec<(JobRow, JobRow)>> {
    let mut changed = Vec::new();
    for job in jobs.iter().filter(|job| is_unneeded(job) && job.may_terminate()) {
        let mut after = job.clone();
        let message = "Another deployment was applied".to_owned();
        after.terminate(JobTerminationReason::ScaledDown, Some(message), now)?;
        after.last_processed_at = now;
        changed.push((job.clone(), after));
    }
    Ok(changed)
}
