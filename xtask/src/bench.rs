//! `cargo xtask bench`: our server and the reference, measured one after the other on this machine.

use std::process::Command;

use anyhow::Result;

use crate::build::{self, Profile};
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
    /// Measure programs that are built faster and less optimised (profile `quick`) than those of `cargo xtask dist`
    #[arg(long, conflicts_with = "write")]
    quick: bool,
    /// Measure only what this word is part of
    filter: Option<String>,
}

/// Builds what is measured, as it is shipped, and hands over to the measuring program.
pub(crate) fn run(args: &Args) -> Result<i32> {
    let profile = match args.quick {
        true => Profile::QUICK,
        false => Profile::RELEASE,
    };
    let build::Both { dstack, agent } = build::both(profile)?;
    let mut bench = Command::new(build::of_tests(profile, "dstack-tests", "bench")?);
    bench.current_dir(layout::root());
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
    let measures = |name: &str| args.filter.as_deref().is_none_or(|filter| name.contains(filter));
    if measures("plan") {
        let server = build::of_tests(profile, "dstack-golden-doubles", "dstack-catalog-server")?;
        bench.env("DSTACK_TEST_CATALOG_SERVER", server);
    }
    if measures("scale") || measures("services-many") {
        let server = build::of_tests(profile, "dstack-scale-doubles", "dstack-scale-server")?;
        bench.env("DSTACK_TEST_SCALE_SERVER", server);
    }
    Ok(status(&mut bench)?.code().unwrap_or(1))
}

/// The folder of an environment with the reference's server in it: `DSTACK_REFERENCE_ENV`, else made here.
fn reference() -> Result<std::path::PathBuf> {
    match std::env::var_os("DSTACK_REFERENCE_ENV") {
        Some(folder) => Ok(folder.into()),
        None => python::environment("reference", &layout::root().join("tests/python/reference.txt")),
    }
}
