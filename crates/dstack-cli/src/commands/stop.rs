//! `dstack stop`: stops a run.

use std::process::ExitCode;

use dstack_api::routes::RunsStop;
use dstack_model::requests::StopRunsRequest;

use super::run::get;
use crate::args::StopArgs;
use crate::context::Context;
use crate::error::CliError;

/// Runs the command. It does not wait for the run's end.
pub(crate) async fn run(context: &Context, args: &StopArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    get(&project, &args.run_name).await?;
    if args.yes
        || context
            .ui
            .confirm("Are you sure you want to stop the run?")
            .await?
    {
        let request = StopRunsRequest {
            runs_names: vec![args.run_name.clone()],
            abort: args.abort,
        };
        project.client.call::<RunsStop>(&project.name, &request).await?;
        context.ui.say(if args.abort { "Aborted" } else { "Stopped" });
    }
    Ok(ExitCode::SUCCESS)
}
