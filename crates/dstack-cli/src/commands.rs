//! One module per command.

pub mod apply;
pub mod attach;
pub mod backend;
pub mod complete;
pub mod completion;
pub mod delete;
pub mod doctor;
pub mod event;
pub mod export;
pub mod fleet;
pub mod gateway;
pub mod import;
pub mod init;
pub mod login;
pub mod logs;
pub mod metrics;
pub mod offer;
pub mod project;
pub mod ps;
pub mod rollout;
pub mod run;
pub mod secret;
pub mod stop;
pub mod token;
pub mod volume;

use std::process::ExitCode;
use std::time::Duration;

use dstack_catalog::cli::CatalogCommand;
use dstack_system::{Clock, SystemClock};
use dstack_units::{Seconds, Time};
use serde::Serialize;

use crate::args::Command;
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::ui::Ui;

/// How often listings are refreshed.
pub(crate) const REFRESH: Duration = Duration::from_secs(2);

/// Runs a command that talks to a server.
pub(crate) async fn run(context: &Context, command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Apply(args) => apply::run(context, &args).await,
        Command::Attach(args) => attach::run(context, &args).await,
        Command::Catalog(args) => Ok(catalog(*args).await),
        Command::Delete(args) => delete::run(context, &args).await,
        Command::Doctor(args) => doctor::run(context, &args).await,
        Command::Event(args) => event::run(context, *args).await,
        Command::Export(args) => export::run(context, args).await,
        Command::Fleet(args) => fleet::run(context, args).await,
        Command::Gateway(args) => gateway::run(context, args).await,
        Command::Import(args) => import::run(context, args).await,
        Command::Init(args) => init::run(context, &args).await,
        Command::Login(args) => login::run(context, &args).await,
        Command::Logs(args) => logs::run(context, &args).await,
        Command::Metrics(args) => metrics::run(context, &args).await,
        Command::Offer(args) => offer::run(context, &args).await,
        Command::Project(args) => project::run(context, args).await,
        Command::Ps(args) => ps::run(context, &args).await,
        Command::Rollout(args) => rollout::run(context, &args).await,
        Command::Run(args) => self::run::run(context, args).await,
        Command::Secret(args) => secret::run(context, args).await,
        Command::Stop(args) => stop::run(context, &args).await,
        Command::Token(args) => token::run(context, args).await,
        Command::Volume(args) => volume::run(context, args).await,
        Command::Complete(args) => complete::run(context, &args).await,
        Command::Completion(args) => completion::run(context, &args),
        Command::Server(_) => Err(CliError::new(ErrorKind::Internal, "this build has no server")),
        Command::Backend(args) => backend::run(context, args).await,
    }
}

/// The catalog's own commands: they need no server, no project and no configuration.
pub(crate) async fn catalog(command: CatalogCommand) -> ExitCode {
    ExitCode::from(dstack_catalog::cli::run(command).await)
}

/// Runs until the command ends or Ctrl-C; then what `interrupted` says.
pub(crate) async fn unless_interrupted(
    command: impl Future<Output = Result<ExitCode, CliError>>,
    interrupted: impl FnOnce() -> ExitCode,
) -> Result<ExitCode, CliError> {
    tokio::select! {
        result = command => result,
        () = crate::interrupt::ctrl_c() => Ok(interrupted()),
    }
}

/// Prints a value as indented JSON.
pub(crate) fn print_pretty(ui: &Ui, value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::from_error(ErrorKind::Internal, error))?;
    ui.raw(format!("{text}\n").as_bytes());
    Ok(())
}

/// Prints a value as one line of JSON.
pub(crate) fn print_line(ui: &Ui, value: &impl Serialize) -> Result<(), CliError> {
    let text =
        serde_json::to_string(value).map_err(|error| CliError::from_error(ErrorKind::Internal, error))?;
    ui.raw(format!("{text}\n").as_bytes());
    Ok(())
}

/// Parses `--since`: a duration before now, or a time with its zone.
pub(crate) fn since(text: Option<&str>) -> Result<Option<Time>, CliError> {
    let Some(text) = text else { return Ok(None) };
    if let Ok(seconds) = text.parse::<Seconds>() {
        return Ok(Some(SystemClock.now() - seconds.to_duration()));
    }
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    parsed.map(|time| Some(time.into())).map_err(|_| {
        CliError::new(
            ErrorKind::Argument,
            format!("`{text}` is neither a duration nor a time with its zone"),
        )
        .hint("give a duration (10s, 5m, 1d) or a time like 2026-01-31T12:00:00Z")
    })
}

/// Parses an id.
pub(crate) fn parse_id<T: std::str::FromStr>(text: &str) -> Result<T, CliError> {
    text.parse()
        .map_err(|_| CliError::new(ErrorKind::Argument, format!("Invalid UUID format: {text}")))
}

/// Says that nothing was done.
pub(crate) fn exiting(ui: &Ui) -> ExitCode {
    ui.say("\nExiting...");
    ExitCode::SUCCESS
}
