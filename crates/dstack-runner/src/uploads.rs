//! What the server uploads before a job runs, below the temporary directory.

use std::io;
use std::path::{Path, PathBuf};

/// Where the uploaded code (tar or diff) is.
pub fn code_path(temp_dir: &Path) -> PathBuf {
    temp_dir.join("repo_blobs/code")
}

/// Where an uploaded archive is; `None`: no archive can have this id.
pub fn archive_path(temp_dir: &Path, id: &str) -> Option<PathBuf> {
    let name = id
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    (name && !id.is_empty() && id.len() <= 255).then(|| temp_dir.join("file_archives").join(id))
}

/// Removes the uploaded code.
pub fn remove_code(temp_dir: &Path) -> io::Result<()> {
    remove(&temp_dir.join("repo_blobs"))
}

/// Removes the uploaded archives.
pub fn remove_archives(temp_dir: &Path) -> io::Result<()> {
    remove(&temp_dir.join("file_archives"))
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs_err::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_ids_stay_below() {
        let temp = Path::new("/tmp/runner");
        assert_eq!(
            archive_path(temp, "a-1").as_deref(),
            Some(Path::new("/tmp/runner/file_archives/a-1"))
        );
        for bad in ["", "..", "a/b", "/etc/passwd", "a\0b"] {
            assert_eq!(archive_path(temp, bad), None, "{bad:?}");
        }
    }
}
