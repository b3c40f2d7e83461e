//! Applying: a new run, or a change of one that is active.

use dstack_control::runs::{Applied, ApplyRun, SeenRun};
use dstack_model::requests::ApplyRunPlanRequest;
use dstack_model::runs::Run;
use dstack_plan::lifecycle::job::ToldClient;
use dstack_store::queries::views::ListedRun;
use dstack_store::rows::JobRow;

use super::plan::effective;
use crate::api::Call;
use crate::error::{ApiError, Result};
use crate::render::runs::{View, run as render_run};

pub(super) async fn apply(call: Call, request: ApplyRunPlanRequest) -> Result<Run> {
    let (state, project, user) = (&call.state, &call.project()?.row, call.user()?);
    let seen = request.plan.current_resource;
    let applied = state
        .control
        .runs
        .apply(&ApplyRun {
            project: project.id,
            project_name: project.name.clone(),
            user: user.id,
            spec: effective(&call, request.plan.run_spec).await?,
            seen: seen.map(|seen| SeenRun {
                id: seen.id,
                spec: seen.run_spec,
            }),
            force: request.force,
        })
        .await?;
    if call.attaches_over_ssh() && applied.submitted {
        let engine = &state.control.engine;
        engine.client_told(applied.run.id, &[], ToldClient::Submitted);
    }
    show(&call, applied).await
}

/// The run as this call has left it: what the engine does to it meanwhile is not part of the answer.
async fn show(call: &Call, applied: Applied) -> Result<Run> {
    let state = &call.state;
    let project = &call.project()?.row;
    let listed = match applied.submitted {
        true => ListedRun {
            run: applied.run,
            project_name: project.name.clone(),
            user_name: call.user()?.name.clone(),
            fleet_name: None,
        },
        false => {
            let listed = state
                .data
                .database
                .views()
                .run_by_id(project.id, applied.run.id)
                .await?;
            ListedRun {
                run: applied.run,
                ..listed.ok_or_else(ApiError::not_exists)?
            }
        }
    };
    let jobs: Vec<&JobRow> = applied.jobs.iter().collect();
    let mut run = render_run(&listed, &jobs, View::single(), state.data.clock.now());
    crate::compat::run(&mut run, &call.version);
    Ok(run)
}
