//! What this process is.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use dstack_gateway::gateway::StartError as GatewayError;
use dstack_runner::RunnerArgs;
use dstack_shim::cli::Args;
use dstack_shim::error::{StartError, chain};
use dstack_shim::runtime::process::supervisor;
use dstack_shim::settings::Settings;

use crate::{complain, is_flag, say};

/// A role with its arguments, the program's name left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Shim(Vec<OsString>),
    Runner(Vec<OsString>),
    Gateway(Vec<OsString>),
    /// Of the process runtime, for the task in this directory.
    Supervise(PathBuf),
    Version,
    Help,
    Unknown(OsString),
}

impl Role {
    pub(crate) fn of(program: &OsStr, mut arguments: Vec<OsString>) -> Self {
        let name = Path::new(program).file_name().unwrap_or_default();
        // Downloads are called dstack-shim-linux-amd64.
        let called = |role: &str| {
            name.to_str()
                .is_some_and(|name| name == role || name.starts_with(&format!("{role}-")))
        };
        if called("dstack-shim") {
            return Self::Shim(arguments);
        }
        if called("dstack-runner") {
            return Self::Runner(arguments);
        }
        if arguments.is_empty() {
            return Self::Help;
        }
        let command = arguments.remove(0);
        match command.to_str() {
            Some("shim") => Self::Shim(arguments),
            Some("runner") => Self::Runner(arguments),
            Some("gateway") => Self::Gateway(arguments),
            Some("supervise") => match arguments.pop() {
                Some(dir) if arguments.is_empty() => Self::Supervise(dir.into()),
                _ => Self::Unknown(command),
            },
            Some("--version" | "-V" | "-v") => Self::Version,
            Some("--help" | "-h" | "help") => Self::Help,
            _ => Self::Unknown(command),
        }
    }
}

/// The host agent.
pub(crate) fn shim(arguments: Vec<OsString>) -> ExitCode {
    let args = match Args::try_parse_from(std::iter::once("dstack-shim".into()).chain(arguments)) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if args.version {
        return say(&format!("dstack-shim version {}", dstack_shim::VERSION));
    }
    match run_shim(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %chain(&error), "dstack-shim cannot start");
            complain(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run_shim(args: Args) -> Result<(), StartError> {
    let settings = Settings::resolve(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(StartError::State)?;
    let result = runtime.block_on(dstack_shim::run::run(settings));
    // Blocking work still running (a cancelled download) must not hold the process.
    runtime.shutdown_background();
    result
}

/// The supervisor of one task.
pub(crate) fn supervise(dir: &Path) -> ExitCode {
    ExitCode::from(u8::try_from(supervisor::supervise(dir)).unwrap_or(1))
}

/// The job agent. As process 1 of a container it runs below a supervisor, which collects orphans.
pub(crate) fn runner(arguments: &[OsString]) -> ExitCode {
    // How a host agent tells this runner from the original, which needs an sshd in the image.
    if is_flag(arguments.first(), &["--features"]) {
        return say("ssh-server");
    }
    let words = std::iter::once(OsString::from("dstack-runner")).chain(arguments.iter().cloned());
    let args = match RunnerArgs::try_parse_from(words) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let ended = if rustix::process::getpid().is_init() {
        supervisor::init("dstack-runner", arguments)
            .map(|code| ExitCode::from(u8::try_from(code).unwrap_or(1)))
    } else {
        run_runner(args)
    };
    ended.unwrap_or_else(|error| {
        complain(&format!("cannot start the runner: {error}"));
        ExitCode::FAILURE
    })
}

fn run_runner(args: RunnerArgs) -> std::io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(dstack_runner::run(args));
    // Blocking work (a clone) may still be winding down.
    runtime.shutdown_background();
    Ok(code)
}

/// Runs the gateway until it is told to end, or makes one prompt where it was started for that.
pub(crate) fn gateway(arguments: Vec<OsString>) -> ExitCode {
    let [_, render] = dstack_gateway::RENDER_PROMPT;
    if is_flag(arguments.first(), &[render]) {
        // Whoever waits for it reads that it failed.
        return dstack_gateway::render_prompt().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let words = std::iter::once(OsString::from("dstack-agent gateway")).chain(arguments);
    let settings = match dstack_gateway::Settings::try_parse_from(words) {
        Ok(settings) => settings,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run_gateway(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&dstack_system::chain(&error).to_string());
            ExitCode::FAILURE
        }
    }
}

fn run_gateway(settings: dstack_gateway::Settings) -> Result<(), GatewayError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(GatewayError::Threads)?;
    let result = runtime.block_on(dstack_gateway::run(settings));
    // What is still under way has had its time.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(line: &str) -> Role {
        let mut words = line.split(' ').map(OsString::from);
        let program = words.next().unwrap();
        Role::of(&program, words.collect())
    }

    #[test]
    fn by_name_or_by_command() {
        assert_eq!(
            role("/usr/local/bin/dstack-shim --version"),
            Role::Shim(vec!["--version".into()])
        );
        assert_eq!(
            role("dstack-runner-linux-amd64 start"),
            Role::Runner(vec!["start".into()])
        );
        assert_eq!(role("dstack-agent shim"), Role::Shim(vec![]));
        assert_eq!(
            role("/proc/self/exe runner start"),
            Role::Runner(vec!["start".into()])
        );
        assert_eq!(
            role("dstack-agent gateway --dir /x"),
            Role::Gateway(vec!["--dir".into(), "/x".into()])
        );
        assert_eq!(role("dstack-agent --version"), Role::Version);
        assert_eq!(role("dstack-agent"), Role::Help);
        assert_eq!(role("dstack-agent supervise /x"), Role::Supervise("/x".into()));
        assert_eq!(role("dstack-agent fly"), Role::Unknown("fly".into()));
    }
}
