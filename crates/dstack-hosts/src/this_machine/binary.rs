//! Where the agents' executables come from: named, carried inside the server, or lying beside it.

use std::path::{Path, PathBuf};

use dstack_system::{env, file};
use fs_err::os::unix::fs::OpenOptionsExt;
use sha2::{Digest, Sha256};

use super::LocalError;
use crate::deploy::AgentFiles;

/// An agent that the server carries inside itself.
#[derive(Debug, Clone, Copy)]
pub struct Embedded<'a> {
    /// `amd64` or `arm64`.
    pub arch: &'a str,
    /// The executable, compressed with zstd.
    pub packed: &'a [u8],
}

const AMD64: &str = "amd64";
const ARM64: &str = "arm64";

/// The architecture of this machine.
fn own_arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => ARM64,
        _ => AMD64,
    }
}

/// Finds the executable for this machine; an embedded one is unpacked into `dir` under its hash, once.
///
/// Order: `DSTACK_AGENT_PATH`, the embedded one, `dstack-agent` beside this executable.
pub fn find(dir: &Path, embedded: &[Embedded<'_>]) -> Result<PathBuf, LocalError> {
    if let Some(path) = env::var("DSTACK_AGENT_PATH") {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(LocalError::NoBinary)
        };
    }
    if let Some(packed) = packed_for(own_arch(), embedded) {
        return unpack(&dir.join("bin"), packed);
    }
    beside("dstack-agent").ok_or(LocalError::NoBinary)
}

/// The executables for hosts: that of this machine for those of its kind, an embedded one or `dstack-agent-ARCHITECTURE` beside
/// this executable for others. One that is not there is missed where a host wants it.
pub fn for_hosts(dir: &Path, embedded: &[Embedded<'_>]) -> AgentFiles {
    let of = |arch: &str| match arch == own_arch() {
        true => found(arch, find(dir, embedded)),
        false => foreign(dir, arch, embedded),
    };
    AgentFiles {
        amd64: of(AMD64),
        arm64: of(ARM64),
    }
}

/// That of another kind of machine.
fn foreign(dir: &Path, arch: &str, embedded: &[Embedded<'_>]) -> Option<PathBuf> {
    let Some(packed) = packed_for(arch, embedded) else {
        return beside(&format!("dstack-agent-{arch}"));
    };
    let folder = dir.join("bin").join(arch);
    let path = found(arch, unpack(&folder, packed))?;
    // Nothing runs from there: those of other builds are of no use.
    keep_only(&folder, &path);
    Some(path)
}

fn found(arch: &str, agent: Result<PathBuf, LocalError>) -> Option<PathBuf> {
    let missing =
        |error: &LocalError| tracing::warn!(arch, %error, "there is no agent for hosts of an architecture");
    agent.inspect_err(missing).ok()
}

fn packed_for<'a>(arch: &str, embedded: &[Embedded<'a>]) -> Option<&'a [u8]> {
    let of_arch = embedded.iter().find(|agent| agent.arch == arch);
    of_arch.map(|agent| agent.packed)
}

fn beside(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.with_file_name(name)).filter(|path| path.is_file())
}

fn unpack(folder: &Path, packed: &[u8]) -> Result<PathBuf, LocalError> {
    let hash = hex::encode(Sha256::digest(packed));
    let target = folder.join(format!("dstack-agent-{}", hash.get(..16).unwrap_or(&hash)));
    if target.is_file() {
        return Ok(target);
    }
    fs_err::create_dir_all(folder)?;
    // Written aside and renamed: a file of that name is always whole.
    let temporary = target.with_extension(format!("tmp{}", std::process::id()));
    let mut file = fs_err::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(&temporary)?;
    zstd::stream::copy_decode(packed, &mut file)?;
    file.sync_all()?;
    drop(file);
    fs_err::rename(&temporary, &target)?;
    Ok(target)
}

/// Removes what [`find`] unpacked for other builds; `current` is what the agent that runs was started from. What still runs of
/// them goes on.
pub fn remove_others(dir: &Path, current: &Path) {
    keep_only(&dir.join("bin"), current);
}

fn keep_only(folder: &Path, current: &Path) {
    let Ok(entries) = fs_err::read_dir(folder) else {
        return;
    };
    let Ok(current) = file::id(current) else {
        return;
    };
    for entry in entries.flatten() {
        let is_agent = entry.file_name().to_string_lossy().starts_with("dstack-agent-");
        let is_other = file::id(&entry.path()).is_ok_and(|id| id != current);
        if is_agent && is_other {
            // One that stays costs its space only.
            fs_err::remove_file(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedded_agent_is_unpacked_once_and_executable() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let packed = zstd::encode_all(&b"#!/bin/sh\nexit 0\n"[..], 1).unwrap();
        let path = unpack(&dir.path().join("bin"), &packed).unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), b"#!/bin/sh\nexit 0\n");
        assert_eq!(
            fs_err::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(unpack(&dir.path().join("bin"), &packed).unwrap(), path);
        let old = dir.path().join("bin/dstack-agent-0123456789abcdef");
        fs_err::write(&old, "old").unwrap();
        remove_others(dir.path(), &path);
        assert!(!old.exists() && path.exists());
        assert_eq!(fs_err::read_dir(dir.path().join("bin")).unwrap().count(), 1);
    }

    #[test]
    fn each_architecture_gets_the_agent_that_was_embedded_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let packed = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        let (amd64, arm64) = (packed("for amd64"), packed("for arm64"));
        let both = [
            Embedded {
                arch: AMD64,
                packed: &amd64,
            },
            Embedded {
                arch: ARM64,
                packed: &arm64,
            },
        ];
        let content = |path: Option<PathBuf>| path.map(|path| fs_err::read_to_string(path).unwrap());
        let files = for_hosts(dir.path(), &both);
        assert_eq!(content(files.amd64).unwrap(), "for amd64");
        assert_eq!(content(files.arm64).unwrap(), "for arm64");
        // Whatever this machine is, its own agent is the one of its kind, and that of others does not go with old ones.
        let own = find(dir.path(), &both).unwrap();
        assert_eq!(
            fs_err::read_to_string(&own).unwrap(),
            format!("for {}", own_arch())
        );
        remove_others(dir.path(), &own);
        let other = both.iter().find(|agent| agent.arch != own_arch()).unwrap();
        let folder = dir.path().join("bin").join(other.arch);
        assert_eq!(fs_err::read_dir(&folder).unwrap().count(), 1);
        // Another build: only its own is kept. None: there is none.
        let newer = packed("newer");
        let newer = Embedded {
            packed: &newer,
            ..*other
        };
        assert_eq!(
            content(foreign(dir.path(), other.arch, &[newer])).unwrap(),
            "newer"
        );
        assert_eq!(fs_err::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(foreign(dir.path(), other.arch, &[]), None);
    }
}
