//! Paths as users write them, and directories that belong to the job.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::users::Owner;

/// A path that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// A path that begins with `~name`.
    #[error("{0}: ~user is not supported, use ~ or an absolute path")]
    OtherHome(String),
    /// Not absolute, and there is nothing it could be relative to.
    #[error("{0}: the path must be absolute")]
    Relative(String),
}

/// Resolves a path: absolute, `~`, `~/x`, or relative to `base` where that is allowed.
pub fn resolve(path: &str, home: &Path, base: Option<&Path>) -> Result<PathBuf, PathError> {
    let resolved = match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) => match rest.strip_prefix('/') {
            Some(below) => home.join(below.trim_start_matches('/')),
            None => return Err(PathError::OtherHome(path.to_owned())),
        },
        None => match base {
            Some(base) => base.join(path),
            None => PathBuf::from(path),
        },
    };
    if resolved.is_absolute() {
        Ok(clean(&resolved))
    } else {
        Err(PathError::Relative(path.to_owned()))
    }
}

/// Without `.` and `..`, by the text alone.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                cleaned.pop();
            }
            other => cleaned.push(other),
        }
    }
    cleaned
}

/// Makes a directory with its parents (0755); those that are new go to the owner.
pub fn create_dirs(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_dirs(parent, owner)?;
    }
    match fs_err::create_dir(path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        made => made?,
    }
    set_mode(path, 0o755)?;
    chown(path, owner)
}

/// Gives a file to the owner; `None` leaves it.
pub fn chown(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    match owner {
        Some(owner) => fs_err::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid)),
        None => Ok(()),
    }
}

/// Sets permission bits whatever the umask is.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs_err::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}

/// Writes a file with these permission bits and owner. With `new`, it must not exist.
pub fn write_file(path: &Path, content: &[u8], mode: u32, owner: Option<Owner>, new: bool) -> io::Result<()> {
    use std::io::Write;

    use fs_err::os::unix::fs::OpenOptionsExt;

    let mut options = fs_err::OpenOptions::new();
    options.write(true).mode(mode);
    if new {
        options.create_new(true);
    } else {
        options.create(true).truncate(true);
    }
    let mut file = options.open(path)?;
    set_mode(path, mode)?;
    file.write_all(content)?;
    chown(path, owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_as_written() {
        let (home, base) = (Path::new("/home/app"), Path::new("/work"));
        let ok = |path: &str| resolve(path, home, Some(base)).unwrap();
        assert_eq!(ok("/a/./b/../c/"), Path::new("/a/c"));
        assert_eq!(ok("x/y"), Path::new("/work/x/y"));
        assert_eq!(ok("../.."), Path::new("/"));
        assert_eq!(ok("."), Path::new("/work"));
        assert_eq!(ok("~"), Path::new("/home/app"));
        assert_eq!(ok("~//x"), Path::new("/home/app/x"));
        assert_eq!(
            resolve("~root/x", home, None),
            Err(PathError::OtherHome("~root/x".into()))
        );
        assert_eq!(resolve("x", home, None), Err(PathError::Relative("x".into())));
    }

    #[test]
    fn new_directories_go_to_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        create_dirs(&path, None).unwrap();
        create_dirs(&path, None).unwrap();
        assert!(path.is_dir());
        fs_err::write(dir.path().join("file"), "").unwrap();
        assert!(create_dirs(&dir.path().join("file/x"), None).is_err());
    }
}
