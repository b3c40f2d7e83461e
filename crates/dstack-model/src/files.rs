//! Files that a run takes along.

use dstack_units::ArchiveId;
use dstack_units::path::is_absolute_windows;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Decode;

/// An uploaded archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct FileArchive {
    /// Id of the archive, by which runs refer to it.
    pub id: ArchiveId,
    /// The hash that the client gave it.
    pub hash: String,
}

/// An uploaded archive, and where it goes in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct FileArchiveMapping {
    /// The archive's id.
    pub id: ArchiveId,
    /// The path in the container.
    pub path: String,
}

/// A file or directory of the user's machine, and where it goes in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(before = from_text)]
pub struct FilePathMapping {
    /// The path on the user's machine. Relative paths are resolved relative to the configuration file.
    pub local_path: String,
    /// The path in the container. Relative paths are resolved relative to the working directory.
    #[decode(check = unix_path)]
    pub path: String,
}

/// `path`, `local:path`; `C:\x` and `C:/x` are one part.
fn from_text(value: &Value) -> Result<Option<Value>, String> {
    let Value::String(text) = value else {
        return Ok(None);
    };
    let parts = join_drive_letter(&text.split(':').collect::<Vec<_>>());
    let (local, path) = match parts.as_slice() {
        [only] => (only, only),
        [local, path] => (local, path),
        _ => return Err(format!("invalid file path mapping: {text}")),
    };
    Ok(Some(json!({"local_path": local, "path": path})))
}

/// Puts a Windows drive letter and the path after it together again.
pub(crate) fn join_drive_letter(parts: &[&str]) -> Vec<String> {
    match parts {
        [drive, path, rest @ ..]
            if drive.len() == 1
                && drive.starts_with(|c: char| c.is_ascii_alphabetic())
                && path.starts_with(['\\', '/']) =>
        {
            std::iter::once(format!("{drive}:{path}"))
                .chain(rest.iter().map(|part| (*part).to_owned()))
                .collect()
        }
        _ => parts.iter().map(|part| (*part).to_owned()).collect(),
    }
}

fn unix_path(path: String) -> Result<String, String> {
    if is_absolute_windows(&path) {
        Err(format!("path must be a Unix file path: {path}"))
    } else {
        Ok(path)
    }
}
