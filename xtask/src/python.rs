//! Python virtual environments with pinned packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::exec::{run_quietly, step, which};
use crate::{layout, package};

/// A virtual environment with exactly what a requirements file lists; made again when the file changes.
pub(crate) fn environment(name: &str, requirements: &Path) -> Result<PathBuf> {
    let folder = layout::test_env().join(name);
    let wanted = fs_err::read_to_string(requirements)?;
    let stamp = folder.join("installed.txt");
    if fs_err::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(folder);
    }
    step(&format!(
        "installing {} into {}",
        requirements.display(),
        folder.display()
    ));
    let python = interpreter()?;
    if folder.exists() {
        fs_err::remove_dir_all(&folder)?;
    }
    fs_err::create_dir_all(&folder)?;
    run_quietly(Command::new(python).args(["-m", "venv"]).arg(&folder))?;
    run_quietly(
        Command::new(folder.join("bin/python"))
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "-r",
            ])
            .arg(requirements),
    )
    .context("pip could not install the packages")?;
    fs_err::write(stamp, wanted)?;
    Ok(folder)
}

/// A Python with working `venv`, installed if it is missing and may be.
fn interpreter() -> Result<PathBuf> {
    let has_venv =
        |python: &Path| run_quietly(Command::new(python).args(["-c", "import venv, ensurepip"])).is_ok();
    if let Some(python) = which("python3").filter(|python| has_venv(python)) {
        return Ok(python);
    }
    package::install("python3-venv")?;
    match which("python3").filter(|python| has_venv(python)) {
        Some(python) => Ok(python),
        None => bail!("no python3 with venv"),
    }
}
