//! From arguments to exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind as UsageErrorKind;
use clap::{CommandFactory, FromArgMatches};

use crate::args::{BackendAction, BackendArgs, BackendCheckArgs, Cli, Command, ServerArgs};
use crate::commands;
use crate::context::Context;
use crate::error::{CliError, ErrorKind, plain_usage};
use crate::interrupt;
use crate::ui::Ui;

/// Runs the command line of a program that checks no backends; `server` runs `dstack server`.
pub fn main(
    arguments: impl IntoIterator<Item = OsString>,
    server: impl FnOnce(ServerArgs) -> ExitCode,
) -> ExitCode {
    main_with(arguments, server, |_| {
        CliError::new(ErrorKind::Internal, "this build checks no backends").report(&Ui::system())
    })
}

/// Runs the command line; `server` runs `dstack server`, `check_backend` runs `dstack backend check`.
pub fn main_with(
    arguments: impl IntoIterator<Item = OsString>,
    server: impl FnOnce(ServerArgs) -> ExitCode,
    check_backend: impl FnOnce(BackendCheckArgs) -> ExitCode,
) -> ExitCode {
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match cli.command {
        Some(Command::Server(arguments)) => server(arguments),
        Some(Command::Backend(BackendArgs {
            action: BackendAction::Check(arguments),
        })) => check_backend(arguments),
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
    let command = match command {
        Command::Catalog(args) => {
            let result = in_runtime(async { Ok(commands::catalog(*args).await) }, || interrupted(&ui));
            return result.unwrap_or_else(|error| error.report(&ui));
        }
        other => other,
    };
    let result = Context::system(ui.clone()).and_then(|context| dispatch(&context, command));
    match result {
        Ok(code) => code,
        Err(error) => error.report(&ui),
    }
}

/// Runs any command but the server in the surroundings given, inside a runtime; errors are reported.
pub async fn execute(context: &Context, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = match parse(arguments) {
        Ok(Cli {
            command: Some(Command::Apply(args)),
            ..
        }) if args.help.is_some() => commands::apply::help(context, args.help.as_deref().unwrap_or_default()),
        Ok(Cli {
            command: Some(command),
            ..
        }) => commands::run(context, command).await,
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            context.ui.complain(plain_usage(&error.to_string()));
            return exit_code(&error);
        }
    };
    result.unwrap_or_else(|error| error.report(&context.ui))
}

/// Parses the program's arguments; of `apply` also which flags were given.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Some(Command::Apply(apply)), Some((_, given))) = (&mut cli.command, matches.subcommand()) {
        let from_user =
            |id: &&clap::Id| given.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine);
        // Groups of flags have ids too, but are no arguments.
        let command = Cli::command();
        let known = |id: &&clap::Id| {
            let apply = command.find_subcommand("apply");
            apply.is_some_and(|apply| apply.get_arguments().any(|arg| arg.get_id() == *id))
        };
        apply.given = given
            .ids()
            .filter(from_user)
            .filter(known)
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
    if error.use_stderr() {
        let text = error.render();
        Ui::system().complain_raw(
            &plain_usage(&text.ansi().to_string()),
            &plain_usage(&text.to_string()),
        );
    } else {
        // Printing fails only when the terminal is gone.
        let _ = error.print();
    }
    exit_code(error)
}

fn exit_code(error: &clap::Error) -> ExitCode {
    match error.kind() {
        UsageErrorKind::DisplayHelp | UsageErrorKind::DisplayVersion => ExitCode::SUCCESS,
        UsageErrorKind::UnknownArgument => ExitCode::from(1),
        _ => ExitCode::from(2),
    }
}

fn dispatch(context: &Context, command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Completion(args) => commands::completion::run(context, &args),
        Command::Apply(args) if args.help.is_some() => {
            commands::apply::help(context, args.help.as_deref().unwrap_or_default())
        }
        Command::Server(_) => Err(CliError::new(ErrorKind::Internal, "this build has no server")),
        // They take Ctrl-C themselves nearly always, and end with 0 as in dstack 0.22.5.
        other @ (Command::Apply(_) | Command::Attach(_)) => in_runtime(commands::run(context, other), || {
            commands::apply::interrupted(&context.ui)
        }),
        other => in_runtime(commands::run(context, other), || {
            let code = interrupted(&context.ui);
            context
                .ui
                .complain("What the server was asked for already goes on there.");
            code
        }),
    }
}

/// As a shell says it of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Ctrl-C before the command has done what it was to do: no success for a script.
fn interrupted(ui: &Ui) -> ExitCode {
    ui.complain("\nOperation interrupted by user. Exiting...");
    ExitCode::from(INTERRUPTED)
}

/// Runs a command to its end, or until a Ctrl-C that nothing in it takes.
fn in_runtime(
    command: impl Future<Output = Result<ExitCode, CliError>>,
    interrupted: impl FnOnce() -> ExitCode,
) -> Result<ExitCode, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::caused_by(ErrorKind::Internal, "cannot start", error))?;
    let result = runtime.block_on(interrupt::unless_interrupted(command));
    // A prompt that was interrupted still waits for a line: do not wait with it.
    runtime.shutdown_background();
    result.unwrap_or_else(|| Ok(interrupted()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Cli, clap::Error> {
        parse(
            std::iter::once("dstack")
                .chain(arguments.iter().copied())
                .map(OsString::from),
        )
    }

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn exit_codes_of_bad_usage() {
        for (arguments, code) in [
            (&["nonsense"][..], 2),
            (&["stop"], 2),
            (&["offer", "--gpu", "A100::"], 2),
            (&["offer", "--format", "xml"], 2),
            (&["run", "get", "x"], 2),
            (&["completion", "powershell"], 2),
            (&["apply", "--spot", "--on-demand"], 2),
            (&["ps", "--bogus"], 1),
            (&["--help"], 0),
        ] {
            let error = parsed(arguments).unwrap_err();
            assert_eq!(exit_code(&error), ExitCode::from(code), "{arguments:?}");
        }
    }

    #[test]
    fn what_is_interrupted_is_no_success() {
        let (ui, captured) = Ui::captured(80, "");
        assert_eq!(interrupted(&ui), ExitCode::from(130));
        assert!(captured.err().contains("Operation interrupted by user"));
    }

    #[test]
    fn forms_that_the_reference_accepts() {
        for arguments in [
            &["fleet", "-v", "list"][..],
            &["fleet", "--project", "p", "list", "-v"],
            &["ps", "--verb"],
            &["destroy", "-f", "x.yml", "-y"],
            &[
                "apply", "-f", "task.yml", "-yd", "--gpu", "A100:2", "-e", "A=1", "--", "--lr", "1",
            ],
            &["attach", "-p", "80:8080", "--port", "*:9000", "run"],
            &[
                "offer",
                "--group-by",
                "gpu,backend",
                "-b",
                "aws",
                "--idle-duration",
                "-1",
            ],
            &[
                "event",
                "--within-run",
                "a",
                "--within-run",
                "b",
                "--include-target-type",
                "job",
            ],
            &["secret"],
            &[
                "project", "add", "--name", "a", "--url", "u", "--token", "t", "-n",
            ],
        ] {
            if let Err(error) = parsed(arguments) {
                panic!("{arguments:?}: {error}");
            }
        }
    }

    #[test]
    fn apply_remembers_what_was_given() {
        let Some(Command::Apply(apply)) = parsed(&["apply", "-f", "x", "--spot", "-p", "80"])
            .unwrap()
            .command
        else {
            panic!()
        };
        assert_eq!(apply.misfits("fleet"), ["--spot", "--port"]);
        assert!(apply.misfits("task").is_empty());
    }
}
