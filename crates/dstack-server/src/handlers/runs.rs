//! Runs: lists, plans, applying, stopping, deleting.

mod apply;
mod list;
mod offers;
mod plan;
mod services;
mod volumes;

use std::collections::HashMap;

use dstack_api::routes;
use dstack_model::requests::{DeleteRunsRequest, GetRunRequest, StopRunsRequest};
use dstack_model::runs::{Run, RunStatus, RunTerminationReason};
use dstack_store::directory::lists::{self, ListedRun};
use dstack_store::events as targets;
use dstack_store::rows::{JobRow, RunRow};
use dstack_store::{Changes, EventMaker, StoreError};
use dstack_units::RunId;

use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result};
use crate::render::runs::{View, run as render_run};
use crate::state::AppState;

pub(super) use offers::Market;
pub(super) use plan::Planner;

/// How often a change is tried again when the engine was faster.
const ATTEMPTS: usize = 8;

pub(super) fn routes(api: Api) -> Api {
    api.on_raw::<routes::RunsList, _, _>(list::list)
        .on::<routes::RunsGet, _, _>(get)
        .on::<routes::RunsGetPlan, _, _>(plan::get_plan)
        .on::<routes::RunsApply, _, _>(apply::apply)
        .on::<routes::RunsStop, _, _>(stop)
        .on::<routes::RunsDelete, _, _>(delete)
}

async fn get(call: Call, request: GetRunRequest) -> Result<Run> {
    let (state, project) = (&call.state, call.project()?.row.id);
    let pool = state.database.pool();
    let found = match (request.id, request.run_name) {
        (Some(id), _) => lists::run_by_id(pool, project, id).await?,
        (None, Some(name)) => state.database.run_by_name(project, &name).await?,
        (None, None) => return Err(ApiError::client("run_name or id must be specified")),
    };
    let found = found
        .ok_or_else(|| ApiError::with_code(dstack_api::ErrorCode::ResourceNotExists, "Run not found"))?;
    let mut run = with_jobs(state, &found, View::single()).await?;
    crate::compat::run(&mut run, &call.version);
    Ok(run)
}

/// A run with its jobs as clients see it.
pub(super) async fn with_jobs(state: &AppState, listed: &ListedRun, view: View) -> Result<Run> {
    let jobs = lists::jobs(state.database.pool(), &[listed.run.id]).await?;
    let jobs: Vec<&JobRow> = jobs.iter().collect();
    Ok(render_run(listed, &jobs, view, state.clock.now()))
}

/// Jobs by run.
fn by_run(jobs: &[JobRow]) -> HashMap<RunId, Vec<&JobRow>> {
    let mut found: HashMap<RunId, Vec<&JobRow>> = HashMap::new();
    for job in jobs {
        found.entry(job.run_id).or_default().push(job);
    }
    found
}

/// Changes a run until no one else changed it at the same time.
async fn change_run(
    state: &AppState,
    id: RunId,
    maker: &EventMaker,
    change: impl Fn(&RunRow, &mut Changes) -> Result<()>,
) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let Some(found) = lists::runs(state.database.pool(), &[id]).await?.pop() else {
            return Ok(());
        };
        let mut changes = Changes::new(maker.clone());
        change(&found.run, &mut changes)?;
        if changes.is_empty() {
            return Ok(());
        }
        match state.engine.commit(audit::kept_of(state, changes)).await {
            Err(error) if error.is_conflict() => {}
            other => return Ok(other?),
        }
    }
    Err(ApiError::client(
        "The run is being processed at the moment. Try again later.",
    ))
}

async fn stop(call: Call, request: StopRunsRequest) -> Result<()> {
    let (state, project) = (&call.state, call.project()?.row.id);
    let reason = match request.abort {
        true => RunTerminationReason::AbortedByUser,
        false => RunTerminationReason::StoppedByUser,
    };
    let maker = audit::by(state, call.user()?);
    for listed in lists::runs_by_names(state.database.pool(), project, &request.runs_names).await? {
        change_run(state, listed.run.id, &maker, |run, changes| {
            // Aborting a run that is being stopped already makes it faster.
            let stops_already = run.status() == RunStatus::Terminating
                && (!request.abort || run.termination_reason() == Some(reason));
            if run.status().is_finished() || stops_already {
                return Ok(());
            }
            let mut stopped = run.clone();
            stopped
                .terminate(reason, state.clock.now())
                .map_err(StoreError::from)?;
            changes.update(run, stopped);
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn delete(call: Call, request: DeleteRunsRequest) -> Result<()> {
    let (state, project) = (&call.state, call.project()?.row.id);
    let found = lists::runs_by_names(state.database.pool(), project, &request.runs_names).await?;
    let active: Vec<String> = found
        .iter()
        .filter(|listed| !listed.run.status().is_finished())
        .map(|listed| listed.run.run_name.clone())
        .collect();
    if !active.is_empty() {
        let names = super::projects::python_list(&active);
        return Err(ApiError::client(format!("Cannot delete active runs: {names}")));
    }
    let maker = audit::by(state, call.user()?);
    for listed in found {
        change_run(state, listed.run.id, &maker, |run, changes| {
            if run.deleted || !run.status().is_finished() {
                return Ok(());
            }
            let mut deleted = run.clone();
            deleted.deleted = true;
            changes.note("Run deleted", vec![targets::run(run)]);
            changes.update(run, deleted);
            Ok(())
        })
        .await?;
    }
    Ok(())
}
