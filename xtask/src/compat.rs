//! `cargo xtask compat`: recorded exchanges of the reference, replayed against our server.

use anyhow::Result;

use crate::build::{self, Profile, cargo};
use crate::exec::status;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of the replayer: `--cases DIR`..., `--suite NAME`, see `cargo xtask compat -- --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds the server and hands over to the replayer, which lives beside the other end-to-end tests.
pub(crate) fn run(args: &Args) -> Result<i32> {
    let server = build::golden_server(Profile::DEV)?;
    let mut replayer = cargo();
    replayer.args([
        "run",
        "--quiet",
        "--package",
        "dstack-tests",
        "--bin",
        "compat",
        "--",
    ]);
    replayer
        .args(&args.arguments)
        .env("DSTACK_TEST_GOLDEN_SERVER", server);
    Ok(status(&mut replayer)?.code().unwrap_or(1))
}
