//! Runs: lists, plans, applying, stopping, deleting.

mod apply;
mod list;
mod offers;
mod plan;
mod rollout;
pub(crate) mod services;
pub(crate) mod volumes;

use std::collections::HashMap;

use dstack_api::routes;
use dstack_control::EngineHandle;
use dstack_model::requests::{DeleteRunsRequest, GetRunRequest, StopRunsRequest};
use dstack_model::runs::{Job, JobStatus, Run, RunStatus};
use dstack_plan::lifecycle::job::ToldClient;
use dstack_store::queries::views::ListedRun;
use dstack_store::rows::JobRow;
use dstack_units::{JobId, RunId};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};
use crate::render::runs::{View, run as render_run};
use crate::state::Data;

pub(super) use offers::OfferSource;
pub(super) use plan::Planner;

pub(super) fn routes(api: Api) -> Api {
    api.on_raw::<routes::RunsList, _, _>(list::list)
        .on::<routes::RunsGet, _, _>(get)
        .on::<routes::RunsGetPlan, _, _>(plan::get_plan)
        .on::<routes::RunsApply, _, _>(apply::apply)
        .on::<routes::RunsGetRollout, _, _>(rollout::get)
        .on::<routes::RunsRollout, _, _>(rollout::act)
        .on::<routes::RunsStop, _, _>(stop)
        .on::<routes::RunsDelete, _, _>(delete)
}

async fn get(call: Call, request: GetRunRequest) -> Result<Run> {
    let (state, project) = (&call.state, call.project()?.row.id);
    let database = &state.data.database;
    let found = match (request.id, request.run_name) {
        (Some(id), _) => database.views().run_by_id(project, id).await?,
        (None, Some(name)) => state.data.database.run_by_name(project, &name).await?,
        (None, None) => return Err(ApiError::client("run_name or id must be specified")),
    };
    let mut found = found
        .ok_or_else(|| ApiError::with_code(dstack_api::ErrorCode::ResourceNotExists, "Run not found"))?;
    if call.attaches_over_ssh() && !found.run.status().is_finished() {
        // Before it is looked what there is to tell: else the job might end in between.
        let id = found.run.id;
        state.control.engine.client_told(id, &[], ToldClient::Nothing);
        found = database.views().run_by_id(project, id).await?.unwrap_or(found);
    }
    let mut run = with_jobs(&state.data, &found, View::single()).await?;
    if call.attaches_over_ssh() && !run.status.is_finished() {
        tell_engine(&*state.control.engine, &run);
    }
    crate::compat::run(&mut run, &call.version);
    Ok(run)
}

/// The command line of dstack 0.22.5 asks until the first job runs, and then attaches to it.
fn tell_engine(engine: &dyn EngineHandle, run: &Run) {
    let last = |job: &Job| job.job_submissions.last().map(|last| (last.id, last.status));
    let jobs: Vec<(JobId, JobStatus)> = run.jobs.iter().filter_map(last).collect();
    let first_runs = jobs
        .first()
        .is_none_or(|(_, status)| *status == JobStatus::Running);
    let told = match run.status == RunStatus::Running && first_runs {
        true => ToldClient::Running,
        false => ToldClient::NotYet,
    };
    let ids: Vec<JobId> = jobs.into_iter().map(|(id, _)| id).collect();
    engine.client_told(run.id, &ids, told);
}

/// A run with its jobs as clients see it.
pub(super) async fn with_jobs(data: &Data, listed: &ListedRun, view: View) -> Result<Run> {
    let jobs = data.database.views().jobs(&[listed.run.id]).await?;
    let jobs: Vec<&JobRow> = jobs.iter().collect();
    Ok(render_run(listed, &jobs, view, data.clock.now()))
}

/// Jobs by run.
fn by_run(jobs: &[JobRow]) -> HashMap<RunId, Vec<&JobRow>> {
    let mut found: HashMap<RunId, Vec<&JobRow>> = HashMap::new();
    for job in jobs {
        found.entry(job.run_id).or_default().push(job);
    }
    found
}

async fn stop(call: Call, request: StopRunsRequest) -> Result<()> {
    let (actor, project) = (call.user()?.into(), call.project()?.row.id);
    let verbs = &call.state.control.runs;
    Ok(verbs
        .stop(actor, project, &request.runs_names, request.abort)
        .await?)
}

async fn delete(call: Call, request: DeleteRunsRequest) -> Result<()> {
    let (actor, project) = (call.user()?.into(), call.project()?.row.id);
    let verbs = &call.state.control.runs;
    Ok(verbs.delete(actor, project, &request.runs_names).await?)
}
