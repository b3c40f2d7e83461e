//! `dstack rollout`: how far the roll-out of a service is, and going on or back by hand.

use std::process::ExitCode;

use dstack_api::ClientError;
use dstack_api::routes::{RunsGetRollout, RunsRollout};
use dstack_model::requests::{NameRequest, RolloutRequest};
use dstack_model::rollouts::{RolloutAction, RolloutState};
use dstack_system::{Clock, SystemClock};

use super::print_pretty;
use crate::args::RolloutArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::rollouts;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &RolloutArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let asked = match (args.promote, args.abort) {
        (true, _) => act(&project, &args.run_name, RolloutAction::Promote).await,
        (_, true) => act(&project, &args.run_name, RolloutAction::Abort).await,
        _ => look(&project, &args.run_name).await,
    };
    let state = asked.map_err(|error| explained(error, &args.run_name))?;
    if args.format.is_json() {
        print_pretty(&context.ui, &state)?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in rollouts::lines(&state, SystemClock.now()) {
        context.ui.say(line);
    }
    if !state.deployments.is_empty() {
        context.ui.table(&rollouts::table(&state));
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(project: &Project, run: &str) -> Result<RolloutState, ClientError> {
    let request = NameRequest { name: run.to_owned() };
    project
        .client
        .call::<RunsGetRollout>(&project.name, &request)
        .await
}

async fn act(project: &Project, run: &str, action: RolloutAction) -> Result<RolloutState, ClientError> {
    let request = RolloutRequest {
        run_name: run.to_owned(),
        action,
    };
    project.client.call::<RunsRollout>(&project.name, &request).await
}

fn explained(error: ClientError, run: &str) -> CliError {
    match error {
        error if error.is_not_exists() => {
            CliError::new(ErrorKind::NotFound, format!("Service {run} not found")).hint("see `dstack ps -a`")
        }
        ClientError::NotFound { .. } | ClientError::MethodNotAllowed { .. } => CliError::new(
            ErrorKind::NotFound,
            "The server knows no roll-outs by canary or blue/green".to_owned(),
        )
        .hint("update the server"),
        error => error.into(),
    }
}
