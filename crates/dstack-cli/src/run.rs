//! From arguments to exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use crate::args::{Cli, Command, ServerArgs};
use crate::commands;
use crate::context::Context;
use crate::error::CliError;
use crate::ui::Ui;

/// Runs the command line; `server` runs `dstack server`.
pub fn main(
    arguments: impl IntoIterator<Item = OsString>,
    server: impl FnOnce(ServerArgs) -> ExitCode,
) -> ExitCode {
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match cli.command {
        Some(Command::Server(arguments)) => server(arguments),
        command => run(Cli {
            version: cli.version,
            command,
        }),
    }
}

/// Runs any command but the server.
pub fn run(cli: Cli) -> ExitCode {
    let ui = Ui::system();
    if cli.version {
        ui.say(env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let Some(command) = cli.command else {
        ui.raw(help().as_bytes());
        return ExitCode::SUCCESS;
    };
    let result = Context::system(ui.clone()).and_then(|context| dispatch(&context, command));
    match result {
        Ok(code) => code,
        Err(error) => error.report(&ui),
    }
}

/// Parses arguments.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Some(Command::Apply(apply)), Some((_, given))) = (&mut cli.command, matches.subcommand()) {
        let from_user =
            |id: &&clap::Id| given.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine);
        // Groups of flags have ids too, but no value of their own.
        let is_flag = |id: &&clap::Id| given.try_get_raw(id.as_str()).is_ok();
        apply.given = given
            .ids()
            .filter(from_user)
            .filter(is_flag)
            .map(|id| id.as_str().to_owned())
            .collect();
    }
    Ok(cli)
}

fn help() -> String {
    Cli::command().render_help().to_string()
}

/// Bad usage exits with 2, arguments that no parser wants with 1 (dstack 0.22.5).
fn refuse(error: &clap::Error) -> ExitCode {
    // Printing fails only when the terminal is gone.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        ErrorKind::UnknownArgument => ExitCode::from(1),
        _ => ExitCode::from(2),
    }
}

fn dispatch(context: &Context, command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Completion(args) => commands::completion::run(context, &args),
        Command::Apply(args) if args.help.is_some() => {
            commands::apply::help(context, args.help.as_deref().unwrap_or_default())
        }
        Command::Server(_) => Err(CliError::new("this build has no server")),
        other => in_runtime(commands::run(context, other)),
    }
}

fn in_runtime(command: impl Future<Output = Result<ExitCode, CliError>>) -> Result<ExitCode, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("cannot start: {error}")))?;
    let result = runtime.block_on(command);
    // A prompt that was interrupted still waits for a line: do not wait with it.
    runtime.shutdown_background();
    result
}
