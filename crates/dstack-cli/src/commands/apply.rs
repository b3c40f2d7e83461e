//! `dstack apply`: makes what a configuration describes.

pub(crate) mod diff;
pub(crate) mod files;
pub(crate) mod fleet;
pub(crate) mod gateway;
pub(crate) mod ide;
pub(crate) mod load;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod repo;
pub(crate) mod resource;
pub(crate) mod runs;
pub(crate) mod session;
pub(crate) mod volume;
pub(crate) mod wait;

use std::process::ExitCode;

use clap::CommandFactory;
use dstack_model::configurations::AnyConfiguration;

use crate::args::{ApplyArgs, Cli, apply::fits};
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::ui::Ui;
use fleet::FleetApply;
use gateway::GatewayApply;
use load::Loaded;
use volume::VolumeApply;

/// Types of configuration that can be applied.
const TYPES: [&str; 6] = ["task", "service", "dev-environment", "fleet", "gateway", "volume"];

/// Shows help, with the options of a type.
pub(crate) fn help(context: &Context, kind: &str) -> Result<ExitCode, CliError> {
    if !kind.is_empty() && !TYPES.contains(&kind) {
        return Err(CliError::new(
            ErrorKind::Argument,
            format!("`{kind}` is not a type of configuration"),
        )
        .hint(format!("one of: {}", TYPES.join(", "))));
    }
    let mut cli = Cli::command();
    cli.build();
    let Some(apply) = cli.find_subcommand("apply") else {
        return Ok(ExitCode::SUCCESS);
    };
    let shown = apply.clone().mut_args(|arg| {
        let hidden = !fits(arg.get_id().as_str(), kind);
        arg.hide(hidden)
    });
    context.ui.raw(
        shown
            .bin_name("dstack apply")
            .render_help()
            .to_string()
            .as_bytes(),
    );
    if kind.is_empty() {
        context
            .ui
            .say("\nType `dstack apply -h TYPE` to see the options of a type of configuration.\n");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &ApplyArgs) -> Result<ExitCode, CliError> {
    if !args.yes && args.file.as_deref() == Some(load::STDIN) {
        return Err(CliError::new(
            ErrorKind::NoConfirmation,
            "Cannot read configuration from stdin if -y/--yes is not specified",
        )
        .hint("add `-y`"));
    }
    let project = context.project(args.project.name.as_deref())?;
    let loaded = load::load(context, &project, args.file.as_deref()).await?;
    // A name on the command line takes the place of the one in the file.
    if args.name.is_none() {
        loaded.check_name()?;
    }
    let Loaded {
        configuration, path, ..
    } = loaded;
    let misfits = args.misfits(configuration.type_name());
    if !misfits.is_empty() {
        return Err(CliError::new(
            ErrorKind::Argument,
            format!("Unrecognized arguments: {}", misfits.join(" ")),
        )
        .hint(format!("see `dstack apply -h {}`", configuration.type_name())));
    }
    match configuration {
        AnyConfiguration::Fleet(fleet) => {
            let fleet = FleetApply::new(context, args, *fleet, path)?;
            resource::apply(context, &project, args, fleet).await
        }
        AnyConfiguration::Gateway(gateway) => {
            resource::apply(context, &project, args, GatewayApply::new(args, *gateway, path)).await
        }
        AnyConfiguration::Volume(volume) => {
            resource::apply(context, &project, args, VolumeApply::new(args, *volume, path)).await
        }
        other => match other.into_run() {
            Ok(run) => runs::apply(context, &project, args, run, path).await,
            Err(other) => Err(unsupported(other.type_name())),
        },
    }
}

/// Presets drive a coding agent on the user's machine; this command line does not.
pub(crate) fn unsupported(kind: &str) -> CliError {
    CliError::new(
        ErrorKind::Unsupported,
        format!("configurations of type `{kind}` are not supported"),
    )
    .hint("apply the model as a `service`")
}

/// Ctrl-C before anything was submitted.
pub(crate) fn interrupted(ui: &Ui) -> ExitCode {
    ui.say("\nOperation interrupted by user. Exiting...");
    ExitCode::SUCCESS
}
