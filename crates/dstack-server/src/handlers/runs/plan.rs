//! Plans: what applying a run would do, and the offers for it.

use dstack_engine::reconcile::fleet_view::fleets;
use dstack_model::common::ApplyAction;
use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::explanations::JobExplanation;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::requests::GetRunPlanRequest;
use dstack_model::runs::{JobPlan, JobSpec, Run, RunPlan, RunSpec};
use dstack_plan::diff::check_updatable;
use dstack_plan::fleets::{self as choice, Fleet, OFFERS_PER_FLEET};
use dstack_plan::placement::{Candidate, Request, Wants, notice_of_processes, offers as instance_offers};
use dstack_plan::plans::{OFFERS_SHOWN, Shown, batches, in_order, job_plan, of_all_fleets};
use dstack_plan::queue::Placer;
use dstack_plan::services::rollout::state::check_groups;
use dstack_plan::validate::{effective_run_spec, has_references, missing_variables};
use dstack_plan::volumes::Location;
use dstack_plan::{explain, offers};
use dstack_store::EngineStore;

use dstack_units::FleetId;

use super::offers::OfferSource;
use super::{volumes, with_jobs};
use crate::access::Project;
use crate::api::Call;
use crate::error::Result;
use crate::render::runs::View;
use crate::state::{Control, Data};
use crate::version::ClientVersion;

pub(super) async fn get_plan(call: Call, request: GetRunPlanRequest) -> Result<RunPlan> {
    let (project, user) = (call.project()?, call.user()?);
    let effective = effective(&call, request.run_spec.clone()).await?;
    let (current, action) = current(&call, &effective).await?;
    let Planned {
        jobs: job_plans,
        explanations,
        notices,
    } = job_plans(&call, &request, &effective).await?;
    let mut plan = RunPlan {
        project_name: project.row.name.clone(),
        user: user.name.clone(),
        run_spec: request.run_spec,
        effective_run_spec: Some(effective),
        job_plans,
        current_resource: current,
        action,
        explanations: request.explain.then_some(explanations),
        notices,
    };
    crate::compat::plan(&mut plan, &call.version);
    Ok(plan)
}

/// The run as the server takes it: as plugins want it, checked, with defaults.
pub(super) async fn effective(call: &Call, spec: RunSpec) -> Result<RunSpec> {
    let state = &call.state;
    let spec = state.edge.plugins.on_apply(call, spec).await?;
    let key = match &spec.ssh_key_pub {
        Some(_) => None,
        None => Some(state.auth.key_pair(&state.data, call.user()?).await?.public),
    };
    let mut spec = effective_run_spec(spec, key.as_deref(), &state.edge.settings.defaults())?;
    crate::compat::run_request(&mut spec, &call.version);
    Ok(spec)
}

/// What would otherwise be found when a job starts.
async fn missing_secrets(call: &Call, spec: &RunSpec) -> Result<Option<String>> {
    if !has_references(spec) {
        return Ok(None);
    }
    let rows = call
        .state
        .data
        .database
        .secrets()
        .list(call.project()?.row.id)
        .await?;
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    Ok(missing_variables(spec, &names))
}

/// The run of that name, and whether it could be changed in place.
async fn current(call: &Call, effective: &RunSpec) -> Result<(Option<Run>, ApplyAction)> {
    let (state, project) = (&call.state, call.project()?);
    let Some(name) = &effective.run_name else {
        return Ok((None, ApplyAction::Create));
    };
    let found = state.data.database.run_by_name(project.row.id, name).await?;
    let Some(found) = found else {
        return Ok((None, ApplyAction::Create));
    };
    let updatable =
        !found.run.status().is_finished() && check_updatable(&found.run.run_spec, effective).is_ok();
    if updatable {
        check_groups(found.run.proven_spec(), effective)?;
    }
    let action = if updatable {
        ApplyAction::Update
    } else {
        ApplyAction::Create
    };
    Ok((
        Some(with_jobs(&state.data, &found, View::single()).await?),
        action,
    ))
}

/// What a plan says of all jobs.
#[derive(Debug, Default)]
struct Planned {
    jobs: Vec<JobPlan>,
    explanations: Vec<JobExplanation>,
    notices: Vec<String>,
}

async fn job_plans(call: &Call, request: &GetRunPlanRequest, run: &RunSpec) -> Result<Planned> {
    let (state, project) = (&call.state, call.project()?);
    let volumes = volumes::locations(&state.data.database, project.row.id, run).await?;
    let jobs = state.control.jobs.planned(project.row.id, run).await?;
    let listing = request.for_offers_only || asks_for_offers(run, &call.version);
    let limit = request.max_offers.and_then(|limit| usize::try_from(limit).ok());
    let shown = Shown {
        limit: limit.unwrap_or(OFFERS_SHOWN),
        reverse: request.reverse_offers,
    }
    .among(jobs.len());
    let mut planner = Planner::new(&state.data, &state.control, project, run, volumes).await?;
    let mut planned = Planned::default();
    planned.notices.extend(missing_secrets(call, run).await?);
    for batch in batches(jobs) {
        let Some(first) = batch.first() else { continue };
        let found = planner.offers(first, listing).await?;
        if request.explain {
            planned.explanations.push(planner.explain(first, &found).await);
        }
        if !listing {
            for notice in planner.notices(first, &found) {
                if !planned.notices.contains(&notice) {
                    planned.notices.push(notice);
                }
            }
        }
        let offers = in_order(found.instances, found.new, shown);
        let jobs = batch.into_iter().map(|job| job_plan(job, &offers, shown));
        planned.jobs.extend(jobs);
    }
    planned.notices.extend(planner.missing());
    Ok(planned)
}

/// Clients before 0.21 list offers by planning a task that does nothing.
fn asks_for_offers(run: &RunSpec, version: &ClientVersion) -> bool {
    let nothing = match &run.configuration {
        AnyRunConfiguration::Task(task) => task.commands == [":"],
        _ => false,
    };
    nothing && version.is_before([0, 21, 0])
}

/// Looks for offers for the jobs of one run.
pub(in crate::handlers) struct Planner<'a> {
    run: &'a RunSpec,
    project: &'a str,
    placement: dstack_store::PlacementSnapshot,
    volumes: Vec<Location>,
    source: OfferSource,
}

impl<'a> Planner<'a> {
    /// Reads instances and backends once.
    pub(in crate::handlers) async fn new(
        data: &Data,
        control: &Control,
        project: &'a Project,
        run: &'a RunSpec,
        volumes: Vec<Location>,
    ) -> Result<Self> {
        Ok(Self {
            run,
            project: &project.row.name,
            placement: data.store().placement(project.row.id).await?,
            volumes,
            source: OfferSource::of_project(control, project.row.id).await?,
        })
    }

    /// Offers of instances and of backends for a job: in the fleet that it would get, or, when offers are only listed,
    /// wherever they are.
    pub(in crate::handlers) async fn offers(&mut self, job: &JobSpec, listing: bool) -> Result<Found> {
        let multinode = self.source.multinode_backends();
        let request = Request {
            volumes: &self.volumes,
            multinode_backends: Some(&multinode),
            ..Request::new(self.run, job)
        };
        let fleets = fleets(&self.placement, Some(self.project));
        let params = self.run.merged_profile().params;
        Ok(if params.instances.is_some() {
            Found {
                instances: choice::targeted(&request, &fleets),
                ..Found::default()
            }
        } else if !listing {
            in_best_fleet(&mut self.source, &request, &fleets).await
        } else if params.fleets.is_some() {
            in_named_fleets(&mut self.source, &request, &fleets).await
        } else {
            anywhere(&mut self.source, &request, &fleets).await
        })
    }

    /// What backends have not told what they offer, and why, in sentences.
    pub(in crate::handlers) fn missing(&self) -> Vec<String> {
        self.source.missing()
    }

    /// What the instance that the job would get now does not do of what is asked for. Where it gets none now, and no new one
    /// either: what those do not do for one of which it may wait.
    fn notices(&self, job: &JobSpec, found: &Found) -> Vec<String> {
        let multinode = self.source.multinode_backends();
        let request = Request {
            volumes: &self.volumes,
            multinode_backends: Some(&multinode),
            ..Request::new(self.run, job)
        };
        let fleets = fleets(&self.placement, Some(self.project));
        let wants = Wants::new(request);
        let choice = Placer::new(&fleets).take_instance(&request);
        let may_get = |machine: &&Candidate<'_>| match &choice {
            Some(choice) => machine.instance_id == choice.instance_id,
            None => found.new.is_empty() && wants.share_of(machine).is_ok(),
        };
        let is_bare = |machine: &&Candidate<'_>| machine.rules.is_some_and(|rules| !rules.containers);
        let machines = fleets.iter().flat_map(|fleet| &fleet.instances);
        machines
            .filter(may_get)
            .filter(is_bare)
            .map(|machine| notice_of_processes(machine.instance_name, self.run, job))
            .collect()
    }

    /// Why the job would be placed so.
    async fn explain(&mut self, job: &JobSpec, found: &Found) -> JobExplanation {
        let multinode = self.source.multinode_backends();
        let request = Request {
            volumes: &self.volumes,
            multinode_backends: Some(&multinode),
            ..Request::new(self.run, job)
        };
        let fleets = fleets(&self.placement, Some(self.project));
        // What the run asks for alone: how fleets narrow it is said of each fleet.
        let query = offers::Query::new(&self.run.merged_profile(), job.requirements.clone())
            .at(&self.volumes)
            .for_nodes(job.jobs_per_replica);
        let market = self
            .source
            .everything(&explain::loosened(&job.requirements), query.needs)
            .await;
        let mut all = found.instances.iter().chain(&found.new);
        let decided = explain::Decided {
            fleet: found.fleet,
            fits: all.any(|offer| offer.availability.is_available()),
        };
        explain::job(&request, &fleets, &query, market, decided)
    }
}

/// What was found for a job.
#[derive(Debug, Default)]
pub(in crate::handlers) struct Found {
    /// The fleet that it would get.
    fleet: Option<FleetId>,
    /// Shares of existing instances.
    pub(in crate::handlers) instances: Vec<Offer>,
    /// Offers of backends.
    pub(in crate::handlers) new: Vec<Offer>,
}

async fn new_in_fleet(
    source: &mut OfferSource,
    request: &Request<'_>,
    fleet: &Fleet<'_>,
    limit: Option<usize>,
) -> Vec<Offer> {
    match choice::new_capacity(request, fleet) {
        Ok(query) => source.offers(&query, limit).await,
        Err(_) => Vec::new(),
    }
}

async fn in_best_fleet(source: &mut OfferSource, request: &Request<'_>, fleets: &[Fleet<'_>]) -> Found {
    let mut eligible = choice::eligible(request, fleets);
    let mut new = Vec::new();
    for one in &eligible {
        new.push(new_in_fleet(source, request, one.fleet, Some(OFFERS_PER_FLEET)).await);
    }
    let Some(best) = choice::best(&eligible, &new) else {
        return Found::default();
    };
    let best = eligible.swap_remove(best);
    let new = new_in_fleet(source, request, best.fleet, None).await;
    Found {
        fleet: Some(best.fleet.id),
        instances: best.instance_offers,
        new,
    }
}

/// Of all fleets that `fleets` names; what several could get is listed once.
async fn in_named_fleets(source: &mut OfferSource, request: &Request<'_>, fleets: &[Fleet<'_>]) -> Found {
    let wants = Wants::new(*request);
    let (mut named, mut new) = (Vec::new(), Vec::new());
    for fleet in fleets
        .iter()
        .filter(|fleet| choice::check_named(request, fleet).is_ok())
    {
        named.extend(fleet.instances.iter().copied());
        new.push(new_in_fleet(source, request, fleet, None).await);
    }
    Found {
        fleet: None,
        instances: instance_offers(&wants, &named),
        new: of_all_fleets(&new),
    }
}

/// Of all instances and backends, whatever the fleets ask for.
async fn anywhere(source: &mut OfferSource, request: &Request<'_>, fleets: &[Fleet<'_>]) -> Found {
    let wants = Wants::new(*request);
    let all: Vec<_> = fleets
        .iter()
        .flat_map(|fleet| fleet.instances.iter().copied())
        .collect();
    let instances = instance_offers(&wants, &all);
    let new = match choice::new_capacity_outside_fleets(request) {
        Ok(query) => source.offers(&query, None).await,
        Err(_) => Vec::new(),
    };
    Found {
        fleet: None,
        instances,
        new,
    }
}
