//! Where things lie.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The root of the repository: cargo tells it to what it runs. It may have been moved since this program was built, which
/// cargo does not notice.
pub(crate) fn root() -> PathBuf {
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = Path::new(&manifest);
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Cargo's output folder: `CARGO_TARGET_DIR`, else `target` in the repository.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Where tools that only the tests need are kept between runs.
pub(crate) fn test_env() -> PathBuf {
    target().join("test-env")
}

/// The target triple of this machine, as rustc names it.
pub(crate) fn host_triple() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc -vV names no host")
}
