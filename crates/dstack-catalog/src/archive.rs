//! The published archives: one zip per provider, and the older single zip with every provider.
//!
//! Nothing is unpacked to disk: entries are looked up by their exact name and read as a stream with a limit, so names
//! with directories in them, absurd sizes and nested bombs have nothing to act on.

use std::io::{Cursor, Read, Write};

use zip::ZipArchive;
use zip::result::ZipError;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::{Offer, Provider, ReadError, Snapshot, Table, TableInfo, Warnings, read_csv, write_csv};

/// Bytes of an archive, at most: some hundred times what is published.
pub const MAX_ARCHIVE_BYTES: u64 = 64 << 20;

/// An archive that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The bytes are no zip archive, or a damaged one.
    #[error("{what}")]
    NotAZip {
        /// What they look like.
        what: &'static str,
        /// What the unpacker found wrong.
        #[source]
        source: ZipError,
    },
    /// The archive has no such file.
    #[error("the archive has no file `{0}`")]
    Missing(String),
    /// The file in the archive is no catalogue.
    #[error("`{name}` in the archive is not usable")]
    Read {
        /// Name of the file.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ReadError,
    },
    /// The archive could not be written.
    #[error("the archive cannot be written")]
    Write(#[source] ZipError),
}

fn open(bytes: &[u8]) -> Result<ZipArchive<Cursor<&[u8]>>, ArchiveError> {
    ZipArchive::new(Cursor::new(bytes)).map_err(|source| ArchiveError::NotAZip {
        what: looks_like(bytes),
        source,
    })
}

fn looks_like(bytes: &[u8]) -> &'static str {
    let start = bytes.trim_ascii_start();
    match start.first() {
        None => "the archive is empty",
        Some(b'<') => "this is a web page or XML, not a zip archive",
        Some(b'{' | b'[') => "this is JSON, not a zip archive",
        _ if bytes.starts_with(b"PK") => "the zip archive is damaged or cut short",
        _ => "this is not a zip archive",
    }
}

/// Reads the archive of one provider: it must hold `{provider}.csv`.
pub fn read_archive(info: &TableInfo, bytes: &[u8]) -> Result<(Table, Warnings), ArchiveError> {
    let mut archive = open(bytes)?;
    read_entry(&mut archive, info.provider.name(), info.clone())
}

fn read_entry(
    archive: &mut ZipArchive<Cursor<&[u8]>>,
    stem: &str,
    info: TableInfo,
) -> Result<(Table, Warnings), ArchiveError> {
    let name = format!("{stem}.csv");
    let file = match archive.by_name(&name) {
        Ok(file) => file,
        Err(ZipError::FileNotFound) => return Err(ArchiveError::Missing(name)),
        Err(source) => {
            return Err(ArchiveError::NotAZip {
                what: "the zip archive is damaged",
                source,
            });
        }
    };
    read_csv(info, file).map_err(|source| ArchiveError::Read { name, source })
}

/// Reads the older single archive: every `{provider}.csv` it holds, under the version it names.
///
/// Providers of files that no longer exist are ignored; `datacrunch.csv` stands for `verda.csv` where that is missing.
pub fn read_single_archive(
    info: impl Fn(Provider, &str) -> TableInfo,
    bytes: &[u8],
) -> Result<(Vec<Table>, Warnings), ArchiveError> {
    let mut archive = open(bytes)?;
    let version = read_version(&mut archive);
    let mut tables = Vec::new();
    let mut warnings = Warnings::default();
    for provider in Provider::ALL {
        let stems: &[&str] = if provider == Provider::Verda {
            &["verda", "datacrunch"]
        } else {
            &[provider.name()]
        };
        for stem in stems {
            match read_entry(&mut archive, stem, info(provider, &version)) {
                Ok((table, found)) => {
                    tables.push(table);
                    warnings.extend(found);
                    break;
                }
                Err(ArchiveError::Missing(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    if tables.is_empty() {
        return Err(ArchiveError::Missing("<provider>.csv".to_owned()));
    }
    Ok((tables, warnings))
}

fn read_version(archive: &mut ZipArchive<Cursor<&[u8]>>) -> String {
    let mut text = String::new();
    if let Ok(file) = archive.by_name("version")
        && file.take(1024).read_to_string(&mut text).is_err()
    {
        text.clear();
    }
    text.trim().to_owned()
}

/// Packs a provider's file as it is published: a zip with `{provider}.csv` and nothing else.
pub fn write_archive(table: &Table) -> Result<Vec<u8>, ArchiveError> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    write_entry(&mut zip, table.info().provider.name(), table.offers())?;
    Ok(zip.finish().map_err(ArchiveError::Write)?.into_inner())
}

/// Packs the older single archive: every published provider, a copy of `verda.csv` for old clients, and the version.
pub fn write_single_archive(snapshot: &Snapshot, version: &str) -> Result<Vec<u8>, ArchiveError> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for table in snapshot.tables() {
        let provider = table.info().provider;
        if provider.is_online() {
            continue;
        }
        write_entry(&mut zip, provider.name(), table.offers())?;
        if provider == Provider::Verda {
            write_entry(&mut zip, "datacrunch", table.offers())?;
        }
    }
    zip.start_file("version", SimpleFileOptions::default())
        .map_err(ArchiveError::Write)?;
    writeln!(zip, "{version}").map_err(|error| ArchiveError::Write(error.into()))?;
    Ok(zip.finish().map_err(ArchiveError::Write)?.into_inner())
}

fn write_entry<'a>(
    zip: &mut ZipWriter<Cursor<Vec<u8>>>,
    stem: &str,
    offers: impl Iterator<Item = Offer<'a>>,
) -> Result<(), ArchiveError> {
    zip.start_file(format!("{stem}.csv"), SimpleFileOptions::default())
        .map_err(ArchiveError::Write)?;
    write_csv(offers, zip).map_err(|error| ArchiveError::Write(error.into()))
}
