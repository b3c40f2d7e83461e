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

/// Runs the command.
pub(crate) fn run(context: &Context, args: &CompletionArgs) -> Result<ExitCode, CliError> {
    context.ui.raw(&script(args.shell));
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    match shell {
        Shell::Bash => {
            generate(clap_complete::Shell::Bash, &mut command, "dstack", &mut script);
            script.extend_from_slice(BASH_NAMES.as_bytes());
        }
        Shell::Zsh => {
            generate(clap_complete::Shell::Zsh, &mut command, "dstack", &mut script);
            script.extend_from_slice(ZSH_NAMES.as_bytes());
        }
    }
    script
}
