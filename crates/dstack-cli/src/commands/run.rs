//! `dstack run`: one run.

use std::process::ExitCode;

use clap::CommandFactory;
use dstack_api::routes::RunsGet;
use dstack_model::requests::GetRunRequest;
use dstack_model::runs::Run;

use super::{parse_id, print_pretty};
use crate::args::{Cli, NameOrId, RunAction, RunArgs};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};

/// Runs the command.
pub(crate) async fn run(context: &Context, args: RunArgs) -> Result<ExitCode, CliError> {
    let Some(RunAction::Get { which, .. }) = args.action else {
        let mut command = Cli::command();
        let help = command
            .find_subcommand_mut("run")
            .map(|run| run.render_help().to_string());
        context.ui.raw(help.unwrap_or_default().as_bytes());
        return Ok(ExitCode::SUCCESS);
    };
    let project = context.project(args.project.name.as_deref())?;
    let NameOrId { name, id } = which;
    let shown = name.clone().or_else(|| id.clone()).unwrap_or_default();
    let id = id.as_deref().map(parse_id).transpose()?;
    let run = project
        .client
        .call::<RunsGet>(&project.name, &GetRunRequest { run_name: name, id })
        .await;
    match run {
        Ok(run) => print_pretty(&context.ui, &run)?,
        Err(error) if error.is_not_exists() => return Err(not_found(&shown)),
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The run of this name.
pub(crate) async fn get(project: &Project, name: &str) -> Result<Run, CliError> {
    let request = GetRunRequest {
        run_name: Some(name.to_owned()),
        id: None,
    };
    match project.client.call::<RunsGet>(&project.name, &request).await {
        Ok(run) => Ok(run),
        Err(error) if error.is_not_exists() => Err(not_found(name)),
        Err(error) => Err(error.into()),
    }
}

fn not_found(name: &str) -> CliError {
    CliError::new(ErrorKind::NotFound, format!("Run {name} not found")).hint("see `dstack ps -a`")
}
