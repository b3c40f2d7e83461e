//! `dstack` with doubles of all clouds that offer what the built-in catalogue has of them.

use std::process::ExitCode;

fn main() -> ExitCode {
    dstack_cli::main(std::env::args_os(), |arguments| {
        dstack_main::server(arguments, dstack_golden_doubles::install_whole_catalog)
    })
}
