//! Files of the user: written whole or not at all.

use std::io::Write;
use std::path::Path;

use crate::error::{CliError, ErrorKind};

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever the umask allows.
    Normal,
    /// Only the owner.
    Private,
}

/// Replaces a file atomically; creates its folder.
///
/// # Errors
/// The folder or file cannot be written.
pub fn replace(path: &Path, content: &[u8], access: Access) -> Result<(), CliError> {
    write(path, content, access).map_err(|error| not_writable(path, error))
}

fn not_writable(path: &Path, error: std::io::Error) -> CliError {
    CliError::caused_by(ErrorKind::File, format!("cannot write {}", path.display()), error).hint(format!(
        "make sure that {} exists and is yours",
        parent(path).display()
    ))
}

fn write(path: &Path, content: &[u8], access: Access) -> std::io::Result<()> {
    // A symbolic link (a managed ~/.ssh/config) is kept, its target replaced.
    let target = fs_err::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = parent(&target);
    fs_err::create_dir_all(folder).map_err(|error| plain(&error))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".dstack-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = match (access, fs_err::metadata(&target)) {
            (Access::Private, _) => 0o600,
            (Access::Normal, Ok(existing)) => existing.permissions().mode() & 0o777,
            (Access::Normal, Err(_)) => 0o644,
        };
        builder.permissions(std::fs::Permissions::from_mode(mode));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(&target).map_err(|error| error.error)?;
    Ok(())
}

/// The error without the path, which the message names already.
fn plain(error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), crate::error::of_io(error.kind()))
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Reads a text file; `None` when it does not exist.
///
/// # Errors
/// It exists but cannot be read, or is not UTF-8.
pub fn read_if_exists(path: &Path) -> Result<Option<String>, CliError> {
    match fs_err::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::from_error(ErrorKind::File, error)),
    }
}

/// Holds `<path>.lock` exclusively until dropped, as the reference's own lock does.
///
/// # Errors
/// The lock file cannot be made.
pub fn lock(path: &Path) -> Result<fs_err::File, CliError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let failed = |error: std::io::Error| not_writable(path, plain(&error));
    fs_err::create_dir_all(parent(path)).map_err(failed)?;
    let mut options = fs_err::OpenOptions::new();
    let file = options.create(true).append(true).open(&name).map_err(failed)?;
    fs4::FileExt::lock(file.file()).map_err(|error| CliError::from_error(ErrorKind::File, error))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_private_ones_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        replace(&path, b"one", Access::Private).unwrap();
        replace(&path, b"two", Access::Private).unwrap();
        assert_eq!(read_if_exists(&path).unwrap().as_deref(), Some("two"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs_err::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        assert_eq!(fs_err::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn an_unwritable_place_is_named_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        replace(&file, b"", Access::Normal).unwrap();
        let error = replace(&file.join("config.yml"), b"", Access::Normal).unwrap_err();
        assert!(error.message().unwrap().contains("config.yml"));
        assert!(error.hint_text().is_some());
    }
}
