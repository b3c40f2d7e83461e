//! Roll-outs of services: how far they are, and going on or back by hand.

use std::collections::BTreeMap;

use dstack_api::ErrorCode;
use dstack_model::configurations::{RolloutSpec, RolloutStrategy};
use dstack_model::requests::{NameRequest, RolloutRequest};
use dstack_model::rollouts::{RolloutAction, RolloutAnswers, RolloutDeployment, RolloutPhase, RolloutState};
use dstack_model::runs::JobStatus;
use dstack_plan::services::rollout::course::until;
use dstack_plan::services::rollout::judge::{Answered, Answers};
use dstack_plan::services::rollout::state::{Ask, Phase, Rollout, rules};
use dstack_store::rows::{JobRow, RunRow};

use crate::api::Call;
use crate::error::{ApiError, Result};

pub(super) async fn get(call: Call, request: NameRequest) -> Result<RolloutState> {
    state(&call, &request.name).await
}

pub(super) async fn act(call: Call, request: RolloutRequest) -> Result<RolloutState> {
    let (actor, project) = (call.user()?.into(), call.project()?.row.id);
    // Whether there is such a service is said as it is when one only looks.
    service(&call, &request.run_name).await?;
    let ask = match request.action {
        RolloutAction::Promote => Ask::Promote,
        RolloutAction::Abort => Ask::Abort,
    };
    let verbs = &call.state.control.runs;
    verbs
        .ask_of_rollout(actor, project, &request.run_name, ask)
        .await?;
    state(&call, &request.run_name).await
}

async fn service(call: &Call, name: &str) -> Result<RunRow> {
    let project = call.project()?.row.id;
    let found = call.state.data.database.run_by_name(project, name).await?;
    let run = found.map(|found| found.run);
    run.filter(|run| run.run_spec.configuration.service().is_some())
        .ok_or_else(|| ApiError::with_code(ErrorCode::ResourceNotExists, "Found no service of this name"))
}

async fn state(call: &Call, name: &str) -> Result<RolloutState> {
    let run = service(call, name).await?;
    let jobs = call.state.data.database.views().jobs(&[run.id]).await?;
    let under_way = run.rollout_under_way();
    let services = &call.state.services as &dyn dstack_engine::Services;
    let known = Known {
        answered: under_way.and_then(|rollout| services.answered(run.id, rollout.deployment, run.gateway_id)),
        can_split: services.can_split(run.gateway_id),
    };
    Ok(shown(&run, &jobs, &known))
}

/// What is known of the way of requests.
struct Known {
    /// What both sides of the roll-out have answered.
    answered: Option<Answered>,
    /// Requests can be split between them.
    can_split: bool,
}

/// The state of a roll-out as clients see it.
fn shown(run: &RunRow, jobs: &[JobRow], known: &Known) -> RolloutState {
    let service = run.run_spec.configuration.service();
    let rules_of = service.and_then(rules);
    let strategy = rules_of.map_or(RolloutStrategy::Rolling, RolloutSpec::effective_strategy);
    let rollout = run.rollout.as_deref().filter(|_| !run.status().is_finished());
    let reason = rollout.and_then(|rollout| match &rollout.phase {
        Phase::RolledBack(reason) => Some(reason.clone()),
        _ => None,
    });
    RolloutState {
        run_name: run.run_name.clone(),
        strategy,
        phase: rollout.map(|rollout| phase(&rollout.phase)),
        since: rollout.map(|rollout| rollout.since),
        until: rollout
            .zip(rules_of)
            .and_then(|(rollout, rules)| until(rules, rollout)),
        asked: rollout.and_then(|rollout| rollout.asked).map(|ask| match ask {
            Ask::Promote => RolloutAction::Promote,
            Ask::Abort => RolloutAction::Abort,
        }),
        reason,
        obstacle: rollout
            .filter(|_| !known.can_split)
            .and_then(|rollout| rollout.unsplit(strategy, &run.run_name)),
        deployments: deployments(run, jobs, known.answered),
    }
}

const fn phase(phase: &Phase) -> RolloutPhase {
    match phase {
        Phase::Preparing => RolloutPhase::Preparing,
        Phase::Watching => RolloutPhase::Watching,
        Phase::Ready => RolloutPhase::Ready,
        Phase::Kept => RolloutPhase::Kept,
        Phase::Following => RolloutPhase::Following,
        Phase::RolledBack(_) => RolloutPhase::RolledBack,
    }
}

/// Those that have replicas, the newest first.
fn deployments(run: &RunRow, jobs: &[JobRow], answered: Option<Answered>) -> Vec<RolloutDeployment> {
    let lives = |job: &&JobRow| !job.status().is_finished() && job.status() != JobStatus::Terminating;
    let firsts = jobs.iter().filter(lives).filter(|job| job.job_num == 0);
    let mut found: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for job in firsts {
        let (replicas, ready) = found.entry(job.deployment_num).or_default();
        *replicas += 1;
        *ready += i64::from(job.registered);
    }
    let split = run
        .rollout_under_way()
        .filter(|rollout| rollout.phase != Phase::Following);
    let deployment = |(num, (replicas, ready)): (i64, (i64, i64))| {
        let is_new = |rollout: &Rollout| num == rollout.deployment;
        RolloutDeployment {
            deployment_num: num,
            replicas,
            ready,
            share_percent: split.map(|rollout| share(run, rollout, is_new(rollout))),
            answers: split.zip(answered).map(|(rollout, answered)| {
                answers(match is_new(rollout) {
                    true => answered.new,
                    false => answered.old,
                })
            }),
        }
    };
    found.into_iter().rev().map(deployment).collect()
}

/// Percent of the requests that go to the new side, or to the old one.
fn share(run: &RunRow, rollout: &Rollout, is_new: bool) -> f64 {
    let rules = run.run_spec.configuration.service().and_then(rules);
    let of_new = match rollout.phase {
        Phase::Watching => rules.map_or(0.0, |rules| rules.effective_share().fraction() * 100.0),
        Phase::Kept => 100.0,
        _ => 0.0,
    };
    if is_new { of_new } else { 100.0 - of_new }
}

fn answers(answers: Answers) -> RolloutAnswers {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    RolloutAnswers {
        requests: number(answers.requests),
        failed: number(answers.failed),
        error_percent: (answers.error_rate() * 10_000.0).round() / 100.0,
        p95_seconds: answers.p95_seconds,
        is_partial: answers.is_partial,
    }
}
