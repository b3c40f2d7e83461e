//! `dstack-agent`: one static binary that is host agent, job agent and gateway, by subcommand or by the name it is called with.

mod role;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use role::Role;

fn main() -> ExitCode {
    // First of all: before anything in libc looks up a user, a group or a host.
    dstack_system::nss::use_files_only();
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    match Role::of(&program, arguments.collect()) {
        Role::Shim(arguments) => role::shim(arguments),
        Role::Runner(arguments) => role::runner(&arguments),
        Role::Gateway(arguments) => role::gateway(arguments),
        Role::Supervise(dir) => role::supervise(&dir),
        Role::Version => say(concat!("dstack-agent version ", env!("CARGO_PKG_VERSION"))),
        Role::Help => say(HELP),
        Role::Unknown(what) => {
            complain(&format!("unknown command {what:?}\n\n{HELP}"));
            ExitCode::from(2)
        }
    }
}

const HELP: &str = "\
Agents of dstack.

Usage: dstack-agent shim [OPTIONS]     the host agent (also when called dstack-shim)
       dstack-agent runner [OPTIONS]   the job agent (also when called dstack-runner)
       dstack-agent gateway [OPTIONS]  passes requests to services on by host name
       dstack-agent --version

Ask each for --help.";

fn say(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stdout(), "{text}");
    ExitCode::SUCCESS
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "error: {text}");
}

/// Whether an argument is one of these flags.
fn is_flag(argument: Option<&OsString>, flags: &[&str]) -> bool {
    argument
        .and_then(|text| text.to_str())
        .is_some_and(|text| flags.contains(&text))
}
