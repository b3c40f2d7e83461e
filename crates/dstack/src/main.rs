//! `dstack`: server and command line in one executable.

use std::process::ExitCode;

fn main() -> ExitCode {
    dstack_cli::main(std::env::args_os(), |arguments| {
        dstack_main::server(arguments, |_| ())
    })
}
