//! `dstack` with doubles in place of clouds and registries: recorded exchanges are replayed against it.

use std::process::ExitCode;

fn main() -> ExitCode {
    dstack_cli::main(std::env::args_os(), |arguments| {
        dstack_main::server(arguments, dstack_golden_doubles::install)
    })
}
