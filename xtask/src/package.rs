//! Programs of the operating system: found, or installed with apt where we may.

use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::exec::{is_root, run_quietly, step, succeeds, which};

/// Makes sure a program is there, installing the Debian package that has it if it is not.
pub(crate) fn ensure(program: &str, package: &str) -> Result<()> {
    if which(program).is_some() {
        return Ok(());
    }
    install(package)?;
    which(program)
        .map(drop)
        .with_context(|| format!("package {package} brought no {program}"))
}

/// Installs a Debian package. Possible as root on a machine with apt.
pub(crate) fn install(package: &str) -> Result<()> {
    if which("apt-get").is_none() {
        bail!("{package} is missing, and this machine has no apt-get to install it with");
    }
    if !is_root() {
        bail!("{package} is missing; install it with: sudo apt-get install {package}");
    }
    refresh_index()?;
    step(&format!("installing {package}"));
    run_quietly(&mut apt(&["install", "-y", "--no-install-recommends", package])).map(drop)
}

/// The package index, fetched once per run of xtask.
fn refresh_index() -> Result<()> {
    static FRESH: OnceLock<bool> = OnceLock::new();
    let fresh = *FRESH.get_or_init(|| {
        step("refreshing the package index");
        succeeds(&mut apt(&["update"]))
    });
    if fresh {
        Ok(())
    } else {
        bail!("apt-get update failed: no package can be installed")
    }
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .arg("-qq")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}
