//! Whether files can be written and read where logs are.

use std::io;
use std::path::Path;

use dstack_system::Random;

use crate::LogError;

const TEXT: &[u8] = b"written by dstack doctor\n";

/// Writes a file in the folder, reads it, and deletes it. No project has a name that begins as its name does.
pub(super) fn probe(folder: &Path) -> Result<(), LogError> {
    let path = folder.join(format!(".doctor-{}", Random::system().uuid().simple()));
    let failed = |source| LogError::Write {
        path: path.clone(),
        source,
    };
    fs_err::create_dir_all(folder).map_err(failed)?;
    let written = fs_err::write(&path, TEXT);
    let read = fs_err::read(&path);
    let deleted = fs_err::remove_file(&path);
    written.map_err(failed)?;
    let unreadable = |source| LogError::Read {
        path: path.clone(),
        source,
    };
    let read = read.map_err(unreadable)?;
    if read != TEXT {
        return Err(unreadable(io::Error::other("it has not what was written to it")));
    }
    deleted.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_can_be_used_is_left_as_it_was_and_one_that_cannot_is_told() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("projects");
        probe(&folder).unwrap();
        assert_eq!(fs_err::read_dir(&folder).unwrap().count(), 0);
        let file = root.path().join("file");
        fs_err::write(&file, "").unwrap();
        let refused = probe(&file).unwrap_err();
        assert!(matches!(refused, LogError::Write { .. }), "{refused:?}");
    }
}
