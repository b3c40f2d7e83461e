//! `cargo xtask soak`: many lives of all that backends make, in accounts where any request may fail.

use anyhow::Result;

use crate::build::cargo;
use crate::exec::status;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Lives of each kind of things of each backend
    #[arg(long, default_value_t = 4000)]
    lives: u64,
    /// Of chance; a soak that fails names the one that it had
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only of the backend of this type
    #[arg(long)]
    backend: Option<String>,
}

/// The exit code is 0 when nothing was made twice, and nothing left.
pub(crate) fn run(args: &Args) -> Result<i32> {
    let of_backend = args
        .backend
        .as_ref()
        .map(|backend| format!(" & test(/^{backend}::/)"));
    let filter = format!("test(many_lives){}", of_backend.unwrap_or_default());
    let mut command = cargo();
    command.args([
        "nextest",
        "run",
        "--profile",
        "soak",
        // What is optimised a little has done its lives in a fraction of the time.
        "--cargo-profile",
        "quick",
        "--package",
        "dstack-backend-conformance",
    ]);
    command.args(["--filterset", &filter]);
    command.env("DSTACK_SOAK_LIVES", args.lives.to_string());
    command.env("DSTACK_SOAK_SEED", args.seed.to_string());
    Ok(status(&mut command)?.code().unwrap_or(1))
}
