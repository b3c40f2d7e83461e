//! Where the agent's executable comes from: named, carried inside the server, or lying beside it.

use std::path::{Path, PathBuf};

use dstack_system::{env, file};
use fs_err::os::unix::fs::OpenOptionsExt;
use sha2::{Digest, Sha256};

use crate::LocalError;

/// Finds the executable; an embedded one (zstd) is unpacked into `dir` under its hash, once.
///
/// Order: `DSTACK_AGENT_PATH`, the embedded one, `dstack-agent` beside this executable.
pub fn find(dir: &Path, embedded: Option<&[u8]>) -> Result<PathBuf, LocalError> {
    if let Some(path) = env::var("DSTACK_AGENT_PATH") {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(LocalError::NoBinary)
        };
    }
    if let Some(packed) = embedded {
        return unpack(dir, packed);
    }
    let beside = std::env::current_exe()
        .ok()
        .map(|exe| exe.with_file_name("dstack-agent"));
    beside.filter(|path| path.is_file()).ok_or(LocalError::NoBinary)
}

fn unpack(dir: &Path, packed: &[u8]) -> Result<PathBuf, LocalError> {
    let hash = hex::encode(Sha256::digest(packed));
    let target = dir
        .join("bin")
        .join(format!("dstack-agent-{}", hash.get(..16).unwrap_or(&hash)));
    if target.is_file() {
        return Ok(target);
    }
    fs_err::create_dir_all(dir.join("bin"))?;
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
    let Ok(entries) = fs_err::read_dir(dir.join("bin")) else {
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
        let path = unpack(dir.path(), &packed).unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), b"#!/bin/sh\nexit 0\n");
        assert_eq!(
            fs_err::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(unpack(dir.path(), &packed).unwrap(), path);
        let old = dir.path().join("bin/dstack-agent-0123456789abcdef");
        fs_err::write(&old, "old").unwrap();
        remove_others(dir.path(), &path);
        assert!(!old.exists() && path.exists());
        assert_eq!(fs_err::read_dir(dir.path().join("bin")).unwrap().count(), 1);
    }
}
