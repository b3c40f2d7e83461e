//! `dstack`: server and command line in one executable.

mod logging;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    dstack_cli::main(std::env::args_os(), server::main)
}
