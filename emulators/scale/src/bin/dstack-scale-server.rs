//! `dstack` whose hosts are simulated in its process, as many as fleets name.

use std::process::ExitCode;

fn main() -> ExitCode {
    dstack_cli::main(std::env::args_os(), |arguments| {
        dstack_main::server(arguments, dstack_scale_doubles::install)
    })
}
