//! Which file is which.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Tells the file from all others, whatever their paths, for as long as it is open or runs: the name may go to another
/// file meanwhile, and this does not.
///
/// # Errors
/// There is no such file, or it may not be looked at.
pub fn id(path: &Path) -> std::io::Result<String> {
    let file = fs_err::metadata(path)?;
    Ok(format!("{}:{}", file.dev(), file.ino()))
}

/// Same of the file that this process was started from, even if it was deleted since.
///
/// # Errors
/// The system does not tell.
pub fn own_executable() -> std::io::Result<String> {
    id(Path::new("/proc/self/exe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_of_the_same_name_is_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a"), folder.path().join("link"));
        fs_err::write(&path, "1").unwrap();
        fs_err::hard_link(&path, &link).unwrap();
        let first = id(&path).unwrap();
        assert_eq!(id(&link).unwrap(), first);
        fs_err::remove_file(&path).unwrap();
        fs_err::write(&path, "1").unwrap();
        assert_ne!(id(&path).unwrap(), first);
    }

    #[test]
    fn this_process_knows_its_own() {
        assert_eq!(
            own_executable().unwrap(),
            id(&std::env::current_exe().unwrap()).unwrap()
        );
    }
}
