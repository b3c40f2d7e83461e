//! Directories of the job: whether one may be filled, who owns what is in it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Uid};

use crate::users::Owner;

/// What stands where a repo shall go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or a directory with nothing in it, or with a file system's `lost+found` only.
    Empty,
    /// A directory with something in it.
    Full,
    /// Something that is no directory.
    NotDirectory,
}

/// Looks at `dir`.
pub(super) fn look(dir: &Path) -> io::Result<Found> {
    match fs_err::metadata(dir) {
        Ok(found) if !found.is_dir() => return Ok(Found::NotDirectory),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Empty),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Found::NotDirectory),
        Err(error) => return Err(error),
    }
    for entry in fs_err::read_dir(dir)? {
        if entry?.file_name() != "lost+found" {
            return Ok(Found::Full);
        }
    }
    Ok(Found::Empty)
}

/// Creates a directory and its parents (0755); those that are new belong to `owner`.
pub(super) fn create(dir: &Path, owner: Option<Owner>) -> io::Result<()> {
    let missing: Vec<PathBuf> = dir
        .ancestors()
        .take_while(|path| fs_err::symlink_metadata(path).is_err())
        .map(Path::to_owned)
        .collect();
    fs_err::create_dir_all(dir)?;
    missing.iter().try_for_each(|path| give(path, owner))
}

/// Makes a directory as empty as [`look`] found it: removes everything but `lost+found`.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs_err::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == "lost+found" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs_err::remove_dir_all(entry.path())?;
        } else {
            fs_err::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Gives everything below and including `path` to `owner`; links themselves, not what they lead to. Goes on after an
/// error and returns the first.
pub(super) fn give_all(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    if owner.is_none() {
        return Ok(());
    }
    let mut first = Ok(());
    let mut todo = vec![path.to_owned()];
    while let Some(path) = todo.pop() {
        let given = give(&path, owner).and_then(|()| {
            if fs_err::symlink_metadata(&path)?.is_dir() {
                for entry in fs_err::read_dir(&path)? {
                    todo.push(entry?.path());
                }
            }
            Ok(())
        });
        if first.is_ok() {
            first = given;
        }
    }
    first
}

fn give(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot chown {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lost_and_found_counts_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert_eq!(look(&path.join("absent")).unwrap(), Found::Empty);
        assert_eq!(look(path).unwrap(), Found::Empty);
        fs_err::create_dir(path.join("lost+found")).unwrap();
        assert_eq!(look(path).unwrap(), Found::Empty);
        fs_err::write(path.join("file"), "").unwrap();
        assert_eq!(look(path).unwrap(), Found::Full);
        assert_eq!(look(&path.join("file")).unwrap(), Found::NotDirectory);
        assert_eq!(look(&path.join("file/below")).unwrap(), Found::NotDirectory);
    }

    #[test]
    fn new_directories_and_links_get_the_owner() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let owner = Some(Owner { uid: 1234, gid: 567 });
        create(&dir.path().join("a/b"), owner).unwrap();
        fs_err::os::unix::fs::symlink("/etc/passwd", dir.path().join("a/b/link")).unwrap();
        give_all(&dir.path().join("a"), owner).unwrap();
        let ids = |path: &Path| {
            fs_err::symlink_metadata(path)
                .map(|found| (found.uid(), found.gid()))
                .unwrap()
        };
        assert_eq!(ids(dir.path()), (0, 0));
        for name in ["a", "a/b", "a/b/link"] {
            assert_eq!(ids(&dir.path().join(name)), (1234, 567), "{name}");
        }
        assert_eq!(ids(Path::new("/etc/passwd")), (0, 0));
    }
}
