//! `dstack delete`: deletes what a configuration describes.

use std::process::ExitCode;

use dstack_model::configurations::AnyConfiguration;

use super::apply::{fleet, load, runs, unsupported};
use super::{gateway, volume};
use crate::args::DeleteArgs;
use crate::context::Context;
use crate::error::{CliError, ErrorKind};

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &DeleteArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let file = args.file.as_ref().map(|path| path.display().to_string());
    let nameless = |kind: &str| {
        CliError::new(
            ErrorKind::NameMissing,
            format!("Configuration specifies no {kind} to delete"),
        )
        .hint("set `name` in the configuration")
    };
    match load::load(context, &project, file.as_deref())
        .await?
        .configuration
    {
        AnyConfiguration::Fleet(configuration) => {
            let name = configuration.name.ok_or_else(|| nameless("fleet"))?;
            fleet::delete(context, &project, &name, args.yes).await
        }
        AnyConfiguration::Gateway(configuration) => {
            let name = configuration.name.ok_or_else(|| nameless("gateway"))?;
            gateway::delete(context, &project, &name, args.yes, false).await
        }
        AnyConfiguration::Volume(configuration) => {
            let name = configuration.name().ok_or_else(|| nameless("volume"))?;
            volume::delete(context, &project, name, args.yes).await
        }
        other => match other.into_run() {
            Ok(run) => runs::delete(context, &project, &run, args.yes).await,
            Err(other) => Err(unsupported(other.type_name())),
        },
    }
}
