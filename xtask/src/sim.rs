//! `cargo xtask sim`: the simulation from other seeds than those of the tests.

use anyhow::Result;

use crate::build::cargo;
use crate::exec::status;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The first seed; a failing simulation names its seed
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds [default: 1 when a seed is named, 1000 otherwise]
    #[arg(long)]
    count: Option<u64>,
}

/// Runs the randomised simulation; the exit code is 0 when no seed violates anything.
pub(crate) fn run(args: &Args) -> Result<i32> {
    let count = args.count.unwrap_or(if args.seed.is_some() { 1 } else { 1000 });
    let mut command = cargo();
    command.args([
        "test",
        "--quiet",
        "--package",
        "dstack-sim",
        "--test",
        "lifecycle",
        "--",
    ]);
    command.args(["--nocapture", "many_runs_under_faults"]);
    command.env("DSTACK_SIM_SEED", args.seed.unwrap_or(1).to_string());
    command.env("DSTACK_SIM_COUNT", count.to_string());
    Ok(status(&mut command)?.code().unwrap_or(1))
}
