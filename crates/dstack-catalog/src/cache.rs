//! Downloaded archives on disk, laid out as they are published, so that a cache can be served to others as it is.
//!
//! `{dir}/{provider}/version` names the version and is written last; `{dir}/{provider}/{version}/catalog.zip` holds
//! the archive. Both are written aside and renamed, so that a reader never sees half a file.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use dstack_units::Time;

use crate::archive::{ArchiveError, MAX_ARCHIVE_BYTES, read_archive};
use crate::{Origin, Provider, Table, TableInfo};

/// A cache entry that cannot be used. It is replaced by the next download.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// A file cannot be read or written.
    #[error("the catalog cache `{}` cannot be used", path.display())]
    Io {
        /// Directory of the cache.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The version text is none.
    #[error("the catalog cache names no usable version for {0}")]
    Version(Provider),
    /// The archive is damaged.
    #[error("the cached catalog of {provider} is not usable")]
    Archive {
        /// Provider whose catalogue it is.
        provider: Provider,
        /// What is wrong.
        #[source]
        source: ArchiveError,
    },
}

/// Archives kept on disk.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
}

/// Whether a version text can stand in a path and a URL: letters, digits, `-`, `_`, `.`; no leading point; short.
pub(crate) fn is_version(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

impl Cache {
    /// A cache in that directory, which is created when first needed.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    fn io(&self, source: io::Error) -> CacheError {
        CacheError::Io {
            path: self.dir.clone(),
            source,
        }
    }

    /// The kept table of a provider; `None` when there is none.
    pub fn load(&self, provider: Provider) -> Result<Option<Table>, CacheError> {
        let home = self.dir.join(provider.name());
        let version = match read_limited(&home.join("version"), 1024) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(error)),
        };
        if !is_version(&version) {
            return Err(CacheError::Version(provider));
        }
        let path = home.join(&version).join("catalog.zip");
        let bytes = read_limited(&path, MAX_ARCHIVE_BYTES).map_err(|error| self.io(error))?;
        let as_of = fs_err::metadata(&path)
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|time| jiff::Timestamp::try_from(time).ok())
            .map(Time::from);
        let info = TableInfo {
            provider,
            version,
            origin: Origin::Cache,
            as_of,
        };
        match read_archive(&info, &bytes) {
            Ok((table, _)) => Ok(Some(table)),
            Err(source) => Err(CacheError::Archive { provider, source }),
        }
    }

    /// Keeps a provider's archive and drops its older ones. `version` must be a checked version text.
    pub fn store(&self, provider: Provider, version: &str, archive: &[u8]) -> Result<(), CacheError> {
        if !is_version(version) {
            return Err(CacheError::Version(provider));
        }
        let home = self.dir.join(provider.name());
        self.write(&home.join(version), "catalog.zip", archive)?;
        self.write(&home, "version", format!("{version}\n").as_bytes())?;
        self.drop_others(&home, version);
        Ok(())
    }

    fn write(&self, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), CacheError> {
        let write = || -> io::Result<()> {
            fs_err::create_dir_all(dir)?;
            let mut aside = tempfile::NamedTempFile::new_in(dir)?;
            aside.write_all(bytes)?;
            aside.persist(dir.join(name)).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|error| self.io(error))
    }

    /// Old versions only take space: failing to remove them is no failure.
    fn drop_others(&self, home: &Path, keep: &str) {
        let Ok(entries) = fs_err::read_dir(home) else {
            return;
        };
        for entry in entries.flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && entry.file_name() != keep {
                drop(fs_err::remove_dir_all(entry.path()));
            }
        }
    }
}

fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs_err::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_texts_cannot_leave_their_place() {
        for good in ["20260818-42", "1", "a.b_c"] {
            assert!(is_version(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "<html>",
            "20260818 42",
            &"9".repeat(65),
        ] {
            assert!(!is_version(bad), "{bad}");
        }
    }
}
