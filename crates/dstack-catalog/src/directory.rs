//! A directory of catalogue files: `<provider>.csv`, `<provider>.csv.gz` or `<provider>.zip`.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dstack_units::Time;
use flate2::read::MultiGzDecoder;

use crate::archive::{ArchiveError, MAX_ARCHIVE_BYTES, read_archive};
use crate::{Origin, Provider, ReadError, Snapshot, Table, TableInfo, Warnings, read_csv};

/// A directory, or a file in it, that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The file or directory cannot be read.
    #[error("cannot read `{}`", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The file is no catalogue.
    #[error("`{}` is not usable", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: ReadError,
    },
    /// The archive is no catalogue.
    #[error("`{}` is not usable", path.display())]
    Archive {
        /// Path of the archive.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: ArchiveError,
    },
    /// There is no file of any provider.
    #[error("`{}` holds no `<provider>.csv`, `.csv.gz` or `.zip`", .0.display())]
    Empty(PathBuf),
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Directory {
    /// The files that could be read.
    pub snapshot: Snapshot,
    /// Rows that were left out.
    pub warnings: Warnings,
    /// Files that could not be read.
    pub failed: Vec<(Provider, DirectoryError)>,
}

/// Reads every provider's file of a directory. Providers without a file are left out.
pub fn read_directory(path: &Path) -> Result<Directory, DirectoryError> {
    read_some(path, Provider::ALL)
}

/// Reads the files of the given providers.
pub fn read_some(
    path: &Path,
    providers: impl IntoIterator<Item = Provider>,
) -> Result<Directory, DirectoryError> {
    fs_err::metadata(path).map_err(|source| DirectoryError::Io {
        path: path.to_owned(),
        source,
    })?;
    let mut found = Directory::default();
    for provider in providers {
        match read_provider(path, provider) {
            Ok(None) => {}
            Ok(Some((table, warnings))) => {
                found.snapshot.insert(Arc::new(table));
                found.warnings.extend(warnings);
            }
            Err(error) => found.failed.push((provider, error)),
        }
    }
    if found.snapshot.tables().next().is_none() && found.failed.is_empty() {
        return Err(DirectoryError::Empty(path.to_owned()));
    }
    Ok(found)
}

/// Reads the file of one provider; `None` when there is none.
pub fn read_provider(dir: &Path, provider: Provider) -> Result<Option<(Table, Warnings)>, DirectoryError> {
    for extension in ["csv", "csv.gz", "zip"] {
        let path = dir.join(format!("{provider}.{extension}"));
        match fs_err::File::open(&path) {
            Ok(file) => return read_file(provider, &path, file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(DirectoryError::Io { path, source }),
        }
    }
    Ok(None)
}

fn read_file(
    provider: Provider,
    path: &Path,
    file: fs_err::File,
) -> Result<(Table, Warnings), DirectoryError> {
    let as_of = file
        .metadata()
        .and_then(|metadata| metadata.modified())
        .ok()
        .and_then(|time| jiff::Timestamp::try_from(time).ok())
        .map(Time::from);
    let info = TableInfo {
        provider,
        version: String::new(),
        origin: Origin::Directory,
        as_of,
    };
    let read_error = |source| DirectoryError::Read {
        path: path.to_owned(),
        source,
    };
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => read_csv(info, MultiGzDecoder::new(BufReader::new(file))).map_err(read_error),
        Some("zip") => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, MAX_ARCHIVE_BYTES), &mut bytes).map_err(
                |source| DirectoryError::Io {
                    path: path.to_owned(),
                    source,
                },
            )?;
            read_archive(&info, &bytes).map_err(|source| DirectoryError::Archive {
                path: path.to_owned(),
                source,
            })
        }
        _ => read_csv(info, file).map_err(read_error),
    }
}
