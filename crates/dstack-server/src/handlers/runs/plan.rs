//! Plans: what applying a run would do, and the offers for it.

use dstack_engine::reconcile::schedule::candidates;
use dstack_model::common::ApplyAction;
use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::requests::GetRunPlanRequest;
use dstack_model::runs::{JobPlan, JobSpec, RunPlan, RunSpec};
use dstack_plan::diff::check_updatable;
use dstack_plan::jobs::{JobContext, job_specs, registry_auth};
use dstack_plan::placement::{Request, consider};
use dstack_plan::validate::{effective_run_spec, unsupported};
use dstack_store::EngineStore;
use dstack_store::directory::{lists, secrets};
use dstack_units::ProjectId;

use super::with_jobs;
use crate::api::Call;
use crate::error::{ApiError, Result};
use crate::render::runs::View;
use crate::render::users::key_pair;
use crate::state::AppState;

const MAX_OFFERS: usize = 50;

pub(super) async fn get_plan(call: Call, request: GetRunPlanRequest) -> Result<RunPlan> {
    let (state, project, user) = (&call.state, call.project()?, call.user()?);
    let effective = effective(&call, request.run_spec.clone()).await?;
    let mut current = None;
    let mut action = ApplyAction::Create;
    if let Some(name) = &effective.run_name
        && let Some(found) = lists::run_by_name(state.database.pool(), project.row.id, name).await?
    {
        if !found.run.status.is_finished() && check_updatable(&found.run.run_spec, &effective).is_ok() {
            action = ApplyAction::Update;
        }
        current = Some(with_jobs(state, &found, View::single()).await?);
    }
    let specs = planned_jobs(state, project.row.id, &effective).await?;
    let limit = request
        .max_offers
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(MAX_OFFERS);
    let mut job_plans = Vec::new();
    for spec in specs {
        let offers = all_offers(state, project.row.id, &effective, &spec).await?;
        job_plans.push(job_plan(spec, offers, limit, request.reverse_offers));
    }
    let mut plan = RunPlan {
        project_name: project.row.name.clone(),
        user: user.name.clone(),
        run_spec: request.run_spec,
        effective_run_spec: Some(effective),
        job_plans,
        current_resource: current,
        action,
    };
    crate::compat::plan(&mut plan, &call.version);
    Ok(plan)
}

/// The run as the server takes it: checked, with defaults.
pub(super) async fn effective(call: &Call, spec: RunSpec) -> Result<RunSpec> {
    let state = &call.state;
    let key = match &spec.ssh_key_pub {
        Some(_) => None,
        None => Some(key_pair(state, call.user()?).await?.public),
    };
    Ok(effective_run_spec(
        spec,
        key.as_deref(),
        &state.settings.defaults(),
    )?)
}

/// Jobs of the first replica (of each group, for services); secrets of the registry must be known.
async fn planned_jobs(state: &AppState, project: ProjectId, spec: &RunSpec) -> Result<Vec<JobSpec>> {
    if let Some(auth) = &spec.configuration.base().registry_auth {
        let mut known = std::collections::HashMap::new();
        for row in secrets::list(state.database.pool(), project).await? {
            known.insert(row.name, state.encryption.decrypt(&row.value)?);
        }
        registry_auth(auth, &|name| {
            known.get(name).map(|value| value.expose().to_owned())
        })?;
    }
    jobs_of(state, spec, 0)
}

/// Jobs of one replica.
pub(super) fn jobs_of(state: &AppState, spec: &RunSpec, replica_num: u32) -> Result<Vec<JobSpec>> {
    let defaults = state.settings.defaults();
    let context = JobContext {
        server: &defaults,
        image: None,
        target: state.target,
    };
    let AnyRunConfiguration::Service(service) = &spec.configuration else {
        return Ok(job_specs(spec, replica_num, None, &context)?);
    };
    let mut specs = Vec::new();
    for group in service.replica_groups() {
        specs.extend(job_specs(spec, replica_num, group.name.as_deref(), &context)?);
    }
    Ok(specs)
}

/// What this server can do with the run at all.
pub(super) fn check_supported(spec: &RunSpec) -> Result<()> {
    unsupported(spec).map_or(Ok(()), |reason| Err(reason.into()))
}

/// All instances of the project that would take the job, cheapest first.
pub(in crate::handlers) async fn all_offers(
    state: &AppState,
    project: ProjectId,
    run: &RunSpec,
    job: &JobSpec,
) -> Result<Vec<InstanceOfferWithAvailability>> {
    let placement = state.store.placement(project).await?;
    let request = Request::new(run, job);
    let considered = consider(&request, &candidates(&placement));
    let mut offers: Vec<_> = considered
        .into_iter()
        .filter_map(|considered| considered.verdict.ok())
        .collect();
    offers.sort_by(|a, b| a.price.total_cmp(&b.price));
    Ok(offers)
}

fn job_plan(
    mut spec: JobSpec,
    mut offers: Vec<InstanceOfferWithAvailability>,
    limit: usize,
    reverse: bool,
) -> JobPlan {
    if reverse {
        offers.sort_by(|a, b| b.price.total_cmp(&a.price));
    }
    offers.sort_by_key(is_refused);
    spec.ssh_key = None;
    let total_offers = u64::try_from(offers.len()).unwrap_or(u64::MAX);
    let max_price = offers.iter().map(|offer| offer.price).reduce(f64::max);
    offers.truncate(limit);
    JobPlan {
        job_spec: spec,
        offers,
        total_offers,
        max_price,
    }
}

/// Offers that cannot be had come last.
fn is_refused(offer: &InstanceOfferWithAvailability) -> bool {
    use dstack_model::instances::InstanceAvailability as Availability;
    matches!(
        offer.availability,
        Availability::NotAvailable | Availability::NoQuota | Availability::NoBalance
    )
}

/// The error of a changed resource.
pub(super) fn stale() -> ApiError {
    ApiError::client("Failed to apply plan. Resource has been changed. Try again or use force apply.")
}
