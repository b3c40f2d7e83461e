//! `dstack completion`: a script for the shell. Commands and flags are in the script; names come from the hidden
//! command `dstack _complete`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::generate;

use crate::args::{Cli, CompletionArgs, Shell};
use crate::context::Context;
use crate::error::CliError;

/// After the generated function: names for the positional argument and for `--project`.
const BASH_NAMES: &str = include_str!("completion/names.bash");
const ZSH_NAMES: &str = include_str!("completion/names.zsh");
const FISH_NAMES: &str = include_str!("completion/names.fish");

/// Runs the command.
pub(crate) fn run(context: &Context, args: &CompletionArgs) -> Result<ExitCode, CliError> {
    context.ui.raw(&script(args.shell));
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let (generator, names) = match shell {
        Shell::Bash => (clap_complete::Shell::Bash, BASH_NAMES),
        Shell::Zsh => (clap_complete::Shell::Zsh, ZSH_NAMES),
        Shell::Fish => (clap_complete::Shell::Fish, FISH_NAMES),
    };
    let mut script = Vec::new();
    generate(generator, &mut Cli::command(), "dstack", &mut script);
    script.extend_from_slice(names.as_bytes());
    script
}
