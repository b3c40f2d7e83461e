//! `cargo xtask dist`: the two release binaries.

use std::process::Command;

use anyhow::Result;

use crate::build::{self, Profile};
use crate::exec::{self, step};
use crate::{layout, package};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build faster and less optimised (profile `quick`)
    #[arg(long)]
    quick: bool,
}

/// Builds the static agent, and a static `dstack` that carries it; both end up in `<target>/dist`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let profile = if args.quick {
        Profile::QUICK
    } else {
        Profile::RELEASE
    };
    package::ensure("zstd", "zstd")?;
    let folder = layout::target().join("dist");
    fs_err::create_dir_all(&folder)?;

    step("building the static agent");
    let agent = folder.join("dstack-agent");
    fs_err::copy(build::agent(profile)?, &agent)?;
    let compressed = folder.join("dstack-agent.zst");
    exec::run(
        Command::new("zstd")
            .args(["-19", "-q", "-f"])
            .arg(&agent)
            .arg("-o")
            .arg(&compressed),
    )?;

    step("building dstack with the agent inside");
    let dstack = folder.join("dstack");
    fs_err::copy(build::dstack_with(profile, &compressed)?, &dstack)?;
    for binary in [&dstack, &agent] {
        println!(
            "{}  {:.1} MB",
            binary.display(),
            fs_err::metadata(binary)?.len() as f64 / 1e6
        );
    }
    Ok(())
}
