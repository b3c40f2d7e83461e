//! `cargo xtask bench`: our server and the reference, measured one after the other on this machine.

use anyhow::Result;

use crate::build::{self, Profile, cargo};
use crate::exec::status;
use crate::testenv::TestEnv;
use crate::{layout, python};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do not measure the reference
    #[arg(long)]
    no_reference: bool,
    /// Write the figures into docs/benchmarks.md
    #[arg(long)]
    write: bool,
    /// Measure only what this word is part of
    filter: Option<String>,
}

/// Builds what is measured (profile `quick`) and hands over to the measuring program.
pub(crate) fn run(args: &Args) -> Result<i32> {
    let build::Both { dstack, agent } = build::both(Profile::QUICK)?;
    let mut bench = cargo();
    bench.args([
        "run",
        "--quiet",
        "--package",
        "dstack-tests",
        "--profile",
        "quick",
        "--bin",
        "bench",
        "--",
    ]);
    if !args.no_reference {
        bench.arg("--reference").arg(reference()?);
    }
    if args.write {
        bench
            .arg("--write")
            .arg(layout::root().join("docs/benchmarks.md"));
    }
    let env = TestEnv::for_measures();
    bench
        .args(&args.filter)
        .envs(env.variables.iter().cloned())
        .env("DSTACK_TEST_DSTACK", dstack)
        .env("DSTACK_TEST_AGENT", agent);
    Ok(status(&mut bench)?.code().unwrap_or(1))
}

/// The folder of an environment with the reference's server in it: `DSTACK_REFERENCE_ENV`, else made here.
fn reference() -> Result<std::path::PathBuf> {
    match std::env::var_os("DSTACK_REFERENCE_ENV") {
        Some(folder) => Ok(folder.into()),
        None => python::environment("reference", &layout::root().join("tests/python/reference.txt")),
    }
}
