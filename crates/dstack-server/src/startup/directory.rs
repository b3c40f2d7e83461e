//! The server's directory, which is its user's alone: in it are the database, the keys that open it, the output of jobs, and the
//! agent's files with what it was told.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;

use super::ServerError;

/// Below the server's directory: what is not for people to edit.
const DATA: &str = "data";
/// Set on directories like /tmp, which are for all users of a machine.
const STICKY: u32 = 0o1000;

/// Makes the directory, and closes it to all other users, also one that was there before.
pub(crate) fn prepare(dir: &Path) -> Result<(), ServerError> {
    let failed = |source| ServerError::Dir {
        path: dir.to_owned(),
        source,
    };
    if let Some(parent) = dir.parent() {
        fs_err::create_dir_all(parent).map_err(failed)?;
    }
    for dir in [dir.to_owned(), dir.join(DATA)] {
        create(&dir).map_err(failed)?;
        close_to_others(&dir);
    }
    Ok(())
}

fn create(dir: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Makes the file of a database that is to be made, and closes one that is there to all other users. SQLite gives the files
/// beside it the same mode.
pub(crate) fn prepare_database(path: &Path) -> Result<(), ServerError> {
    let options = fs_err::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .clone();
    options.open(path).map_err(|source| ServerError::Dir {
        path: path.to_owned(),
        source,
    })?;
    for end in ["", "-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(end);
        close_to_others(&PathBuf::from(beside));
    }
    Ok(())
}

/// Takes from all others what they may do with a file or directory. What is not ours, or meant for all, stays as it is.
fn close_to_others(path: &Path) {
    let Ok(found) = fs_err::metadata(path) else {
        return;
    };
    let own = rustix::process::geteuid().as_raw();
    let mode = found.mode() & 0o7777;
    if mode & 0o077 == 0 || mode & STICKY != 0 || found.uid() != own {
        return;
    }
    let closed = std::fs::Permissions::from_mode(mode & 0o700);
    if let Err(error) = fs_err::set_permissions(path, closed) {
        tracing::warn!(%error, "other users of this machine may read the server's files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs_err::metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_directory_and_the_database_are_the_servers_alone() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/server");
        prepare(&dir).unwrap();
        let database = dir.join("data/dstack.db");
        prepare_database(&database).unwrap();
        assert_eq!(
            (mode(&dir), mode(&dir.join(DATA)), mode(&database)),
            (0o700, 0o700, 0o600)
        );
        // As an earlier version left them.
        fs_err::write(&database, "kept").unwrap();
        fs_err::write(dir.join("data/dstack.db-wal"), "").unwrap();
        for (path, mode) in [
            (&dir, 0o755),
            (&database, 0o644),
            (&dir.join("data/dstack.db-wal"), 0o644),
        ] {
            set(path, mode);
        }
        prepare(&dir).unwrap();
        prepare_database(&database).unwrap();
        assert_eq!(
            (mode(&dir), mode(&database), mode(&dir.join("data/dstack.db-wal"))),
            (0o700, 0o600, 0o600)
        );
        assert_eq!(fs_err::read_to_string(&database).unwrap(), "kept");
    }

    #[test]
    fn a_directory_for_all_users_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        set(dir.path(), 0o1777);
        prepare(dir.path()).unwrap();
        assert_eq!((mode(dir.path()), mode(&dir.path().join(DATA))), (0o1777, 0o700));
    }
}
