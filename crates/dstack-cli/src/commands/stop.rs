//! `dstack stop`: stops a run.

use std::process::ExitCode;

use dstack_api::routes::RunsStop;
use dstack_model::requests::StopRunsRequest;

use super::run::get;
use crate::args::StopArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::ui::Text;

/// Runs the command. It does not wait for the run's end, and says so.
pub(crate) async fn run(context: &Context, args: &StopArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let name = &args.run_name;
    let run = get(&project, name).await?;
    if run.status.is_finished() {
        let over = Text::from("The run ")
            .code(name)
            .push(format!(" is over already ({})", run.status));
        context.ui.say(over);
        return Ok(ExitCode::SUCCESS);
    }
    if args.yes
        || context
            .ui
            .confirm(Text::from("Stop the run ").code(name).push("?"))
            .await?
    {
        let request = StopRunsRequest {
            runs_names: vec![args.run_name.clone()],
            abort: args.abort,
        };
        project.client.call::<RunsStop>(&project.name, &request).await?;
        let ends = if args.abort {
            "is aborted"
        } else {
            "is being stopped"
        };
        context
            .ui
            .say(Text::from("The run ").code(name).push(format!(" {ends}")));
    }
    Ok(ExitCode::SUCCESS)
}
