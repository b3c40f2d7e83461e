//! Which file is which, and files that are whole or not there.

use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Writes a file under a temporary name, syncs it, renames it and syncs the directory: it is whole or as it was, also after a
/// power cut. Of several writers at the same time one is the last.
///
/// # Errors
/// It cannot be written; it is as it was.
pub fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary_name(path);
    let written = write_synced(&temporary, content, mode).and_then(|()| fs_err::rename(&temporary, path));
    if written.is_err() {
        let _ = fs_err::remove_file(&temporary);
    }
    written?;
    sync_parent(path)
}

/// Like [`write_atomically`], but fails with `AlreadyExists` when the file is there: of two writers one wins.
///
/// # Errors
/// It cannot be written, or is there.
pub fn create_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary_name(path);
    let linked = write_synced(&temporary, content, mode).and_then(|()| fs_err::hard_link(&temporary, path));
    let _ = fs_err::remove_file(&temporary);
    linked?;
    sync_parent(path)
}

/// A name that no other writer has, also of the same file.
fn temporary_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{number}.tmp", std::process::id()));
    name.into()
}

fn write_synced(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut options = fs_err::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    fs_err::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    let mut file = options.open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => fs_err::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates a directory and its parents with the given mode for the last one; an existing one is left as it is.
///
/// # Errors
/// It cannot be created.
pub fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)?;
    }
    match fs_err::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        other => other?,
    }
    // Not left to the umask.
    fs_err::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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

    #[test]
    fn one_of_two_creators_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        create_atomically(&path, b"first", 0o600).unwrap();
        let lost = create_atomically(&path, b"second", 0o600).unwrap_err();
        assert_eq!(lost.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs_err::read(&path).unwrap(), b"first");
        write_atomically(&path, b"third", 0o640).unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), b"third");
        assert_eq!(
            fs_err::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(
            fs_err::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn writers_of_the_same_file_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let texts: Vec<Vec<u8>> = (1..=8)
            .map(|number: u8| vec![number; 50_000 * usize::from(number)])
            .collect();
        std::thread::scope(|threads| {
            for text in &texts {
                let write = || (0..20).try_for_each(|_| write_atomically(&path, text, 0o600));
                threads.spawn(move || write().unwrap());
            }
        });
        assert!(texts.contains(&fs_err::read(&path).unwrap()));
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_a_write_that_fails_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs_err::create_dir(&path).unwrap();
        write_atomically(&path, b"text", 0o600).unwrap_err();
        create_atomically(&path, b"text", 0o600).unwrap_err();
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn directories_get_their_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        create_dir(&path, 0o700).unwrap();
        create_dir(&path, 0o755).unwrap();
        assert_eq!(
            fs_err::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
}
