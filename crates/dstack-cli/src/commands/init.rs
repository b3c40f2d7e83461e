//! `dstack init`: makes a repository known to the server.

use std::process::ExitCode;

use super::apply::repo::{look_at, register};
use crate::args::InitArgs;
use crate::context::Context;
use crate::error::CliError;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &InitArgs) -> Result<ExitCode, CliError> {
    let remote = look_at(context, args.repo.as_deref()).await?;
    let project = context.project(args.project.name.as_deref())?;
    register(context, &project, &remote, &args.credentials).await?;
    context.ui.say("OK");
    Ok(ExitCode::SUCCESS)
}
