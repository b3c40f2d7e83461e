//! Building for other machines than this one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::exec::{run_quietly, which};
use crate::layout;

/// The architecture of a target, as agents are told apart.
pub(crate) fn architecture(triple: &str) -> Result<&'static str> {
    match cpu(triple) {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        _ => bail!("{triple}: agents are for x86_64-unknown-linux-gnu and aarch64-unknown-linux-gnu"),
    }
}

fn cpu(triple: &str) -> &str {
    triple.split('-').next().unwrap_or_default()
}

/// Cargo's variable for a setting of a target.
pub(crate) fn setting(triple: &str, name: &str) -> String {
    format!("CARGO_TARGET_{}_{name}", triple.to_uppercase().replace('-', "_"))
}

/// What cargo has to be told to build for a target.
///
/// # Errors
/// The target's standard library or a linker for it is missing: the error says how to get it.
pub(crate) fn variables(triple: &str) -> Result<Vec<(String, String)>> {
    if triple == layout::host_triple()? {
        return Ok(Vec::new());
    }
    let libraries = run_quietly(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))
        .with_context(|| format!("{triple}: no target of this rustc"))?;
    if !has_standard_library(Path::new(libraries.trim())) {
        bail!(
            "the standard library for {triple} is missing: `rustup target add {triple}`, or, where rustc is Debian's, \
             `apt-get install libstd-rust-dev:{}`",
            architecture(triple)?
        );
    }
    let linker = setting(triple, "LINKER");
    if std::env::var_os(&linker).is_some() {
        return Ok(Vec::new());
    }
    let compiler = format!("{}-linux-gnu-gcc", cpu(triple));
    if which(&compiler).is_none() {
        bail!(
            "no linker for {triple}: `apt-get install gcc-{0}-linux-gnu libc6-dev-{1}-cross`, or name one in {linker}",
            cpu(triple).replace('_', "-"),
            architecture(triple)?
        );
    }
    // Compilers of C in build scripts find theirs by the target's name.
    Ok(vec![(linker, compiler)])
}

fn has_standard_library(folder: &Path) -> bool {
    let Ok(entries) = fs_err::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libstd-") && name.ends_with(".rlib")
    })
}

/// What a program for another machine says of its version, where an emulator is installed.
pub(crate) fn try_run(triple: &str, program: &Path) -> Result<Option<String>> {
    let emulators = ["", "-static"].map(|end| format!("qemu-{}{end}", cpu(triple)));
    let Some(emulator) = emulators.iter().find_map(|name| which(name)) else {
        return Ok(None);
    };
    let said = run_quietly(Command::new(emulator).arg(program).arg("--version"))?;
    Ok(Some(said.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_told_by_its_names() {
        assert_eq!(architecture("aarch64-unknown-linux-gnu").unwrap(), "arm64");
        assert_eq!(architecture("x86_64-unknown-linux-gnu").unwrap(), "amd64");
        assert!(architecture("riscv64gc-unknown-linux-gnu").is_err());
        assert_eq!(
            setting("aarch64-unknown-linux-gnu", "LINKER"),
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER"
        );
    }

    #[test]
    fn a_folder_without_the_standard_library_has_none() {
        let folder = std::env::temp_dir().join(format!("dstack-xtask-cross-{}", std::process::id()));
        assert!(!has_standard_library(&folder));
        fs_err::create_dir_all(&folder).unwrap();
        assert!(!has_standard_library(&folder));
        fs_err::write(folder.join("libstd-0123.rlib"), "").unwrap();
        assert!(has_standard_library(&folder));
        fs_err::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        // No such target, so that nobody has its library.
        let error = variables("x86_64-unknown-none").unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("rustup target add x86_64-unknown-none"), "{error}");
    }
}
