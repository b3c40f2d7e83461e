//! `dstack`: server and command line in one executable.

use std::process::ExitCode;

use dstack_main::RENDER_PROMPT;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // First of all: before anything in libc looks up a user or a host.
    dstack_system::nss::use_files_only();
    if std::env::args_os().nth(1).as_deref() == Some(RENDER_PROMPT.as_ref()) {
        return match dstack_main::render_prompt() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    dstack_main::register_collectors();
    dstack_cli::main_with(
        std::env::args_os(),
        |arguments| dstack_main::server(arguments, |_| ()),
        dstack_main::check_backend,
    )
}
