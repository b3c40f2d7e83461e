//! `dstack`: server and command line in one executable.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // First of all: before anything in libc looks up a user or a host.
    dstack_system::nss::use_files_only();
    dstack_cli::main(std::env::args_os(), |arguments| {
        dstack_main::server(arguments, |_| ())
    })
}
