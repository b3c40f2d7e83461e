//! Where the agent listens.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::LocalError;

/// Longest path of a Unix socket that every kernel takes, with room for the zero byte.
const LONGEST_PATH: usize = 100;

/// In the state directory, or, where that path is too long for a socket, in a folder of this user's in the temporary one,
/// under a hash of it. The folder is made, and must be ours alone: others may write beside it.
pub(crate) fn path(dir: &Path) -> Result<PathBuf, LocalError> {
    path_within(dir, &std::env::temp_dir())
}

fn path_within(dir: &Path, temporary: &Path) -> Result<PathBuf, LocalError> {
    let plain = dir.join("shim.sock");
    if plain.as_os_str().len() <= LONGEST_PATH {
        return Ok(plain);
    }
    let own = rustix::process::geteuid().as_raw();
    let folder = temporary.join(format!("dstack-{own}"));
    private_folder(&folder, own)?;
    let hash = hex::encode(Sha256::digest(dir.as_os_str().as_encoded_bytes()));
    Ok(folder.join(format!("shim-{}.sock", hash.get(..16).unwrap_or(&hash))))
}

fn private_folder(folder: &Path, own: u32) -> Result<(), LocalError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let text = format!("cannot make {}: {error}", folder.display());
            return Err(io::Error::new(error.kind(), text).into());
        }
        _ => {}
    }
    let found = fs_err::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(LocalError::NotPrivate {
            folder: folder.display().to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn long() -> PathBuf {
        PathBuf::from(format!("/{}", "x".repeat(200)))
    }

    #[test]
    fn a_socket_path_always_fits() {
        let temporary = tempfile::tempdir().unwrap();
        let path = |dir: &Path| path_within(dir, temporary.path()).unwrap();
        assert_eq!(path(Path::new("/srv/x")), Path::new("/srv/x/shim.sock"));
        assert!(path(&long()).as_os_str().len() <= LONGEST_PATH);
        assert_ne!(path(&long()), path(&long().join("y")));
        let folder = path(&long()).parent().unwrap().to_owned();
        assert_eq!(fs_err::metadata(folder).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_folder_that_others_could_use_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary
            .path()
            .join(format!("dstack-{}", rustix::process::geteuid().as_raw()));
        let refused = || {
            matches!(
                path_within(&long(), temporary.path()),
                Err(LocalError::NotPrivate { .. })
            )
        };
        // Somebody was there first.
        let elsewhere = temporary.path().join("elsewhere");
        DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
        fs_err::os::unix::fs::symlink(&elsewhere, &folder).unwrap();
        assert!(refused(), "a link");
        fs_err::remove_file(&folder).unwrap();
        fs_err::write(&folder, "").unwrap();
        assert!(refused(), "a file");
        fs_err::remove_file(&folder).unwrap();
        fs_err::create_dir(&folder).unwrap();
        fs_err::set_permissions(&folder, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(refused(), "open to the group");
        fs_err::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!refused());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
            assert!(refused(), "of another user");
        }
    }
}
