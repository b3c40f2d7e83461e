//! `cargo xtask dist`: the release binaries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::{self, Profile};
use crate::exec::{self, step};
use crate::{cross, layout, package, ui};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build faster and less optimised (profile `quick`)
    #[arg(long)]
    quick: bool,
    /// Carry an agent for machines of this kind as well, such as aarch64-unknown-linux-gnu; may be repeated
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Leave out the web page: no node is needed
    #[arg(long)]
    without_ui: bool,
}

/// Builds static agents for this machine's kind and those that are named, and a static `dstack` that carries them; all end up in
/// `<target>/dist`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let profile = if args.quick {
        Profile::QUICK
    } else {
        Profile::RELEASE
    };
    let own = layout::host_triple()?;
    let mut targets = vec![own.as_str()];
    for target in args.target.iter().map(String::as_str) {
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    // What is missing is said before hours are spent.
    for target in &targets {
        cross::architecture(target)?;
        cross::variables(target)?;
    }
    package::ensure("zstd", "zstd")?;
    match args.without_ui {
        true => ui::leave_out()?,
        false => ui::build().context("the web page cannot be built; --without-ui leaves it out")?,
    }
    let folder = layout::target().join("dist");
    fs_err::create_dir_all(&folder)?;

    let (mut made, mut agents) = (Vec::new(), Vec::new());
    for target in targets {
        let arch = cross::architecture(target)?;
        step(&format!("building the static agent for {arch}"));
        let name = match target == own {
            true => "dstack-agent".to_owned(),
            false => format!("dstack-agent-{arch}"),
        };
        let agent = folder.join(name);
        fs_err::copy(build::agent_for(profile, target)?, &agent)?;
        if target != own {
            match cross::try_run(target, &agent)? {
                Some(said) => println!("under an emulator it says: {said}"),
                None => println!("not tried: no emulator (qemu-user) is installed"),
            }
        }
        agents.push((arch, compressed(&agent)?));
        made.push(agent);
    }

    step("building dstack with the agents inside");
    let dstack = folder.join("dstack");
    fs_err::copy(build::dstack_with(profile, &agents)?, &dstack)?;
    for binary in std::iter::once(&dstack).chain(&made) {
        println!(
            "{}  {:.1} MB",
            binary.display(),
            fs_err::metadata(binary)?.len() as f64 / 1e6
        );
    }
    Ok(())
}

/// The file beside it that `dstack` carries.
fn compressed(agent: &Path) -> Result<PathBuf> {
    let mut name = agent.as_os_str().to_owned();
    name.push(".zst");
    let compressed = PathBuf::from(name);
    exec::run(
        Command::new("zstd")
            .args(["-19", "-q", "-f"])
            .arg(agent)
            .arg("-o")
            .arg(&compressed),
    )?;
    Ok(compressed)
}
