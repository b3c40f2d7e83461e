//! `dstack server import`: takes over an installation of dstack 0.22.5.
//!
//! Everything is read and converted first ([`read`]), then written in one transaction: an import that fails leaves nothing
//! behind, and one that is repeated adds what was not there.

mod entities;
mod history;
mod read;

use std::path::{Path, PathBuf};

use dstack_store::StoreError;
use dstack_store::encryption::Encryption;
use dstack_store::legacy::LegacyDatabase;
use dstack_system::Random;

use crate::config::{self, ConfigError};
use crate::settings::Settings;
use crate::startup::{ServerError, directory, open_database};

pub use read::{Imported, Skipped};

/// What to import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// The database of dstack 0.22.5.
    pub from: String,
    /// Its `config.yml`, for the encryption keys; `None`: beside an SQLite database, as 0.22.5 puts it.
    pub config: Option<PathBuf>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The other database.
    #[error(
        "cannot read the database to import: give its URL as sqlite:///path or postgresql://user:password@host/name"
    )]
    Source(#[source] StoreError),
    /// There is no such file.
    #[error(
        "there is no database file {0}: give its path, such as sqlite:///home/ann/.dstack/server/data/sqlite.db (the third slash \
         is where an absolute path starts)"
    )]
    NoFile(String),
    /// Its `config.yml`, which has its encryption keys.
    #[error("cannot read the encryption keys of the installation to import")]
    Config(#[from] ConfigError),
    /// Keys are missing.
    #[error(
        "cannot decrypt {0}: give the config.yml with the encryption keys of the installation to import with --config"
    )]
    Undecryptable(String),
    /// The name is taken here.
    #[error(
        "there is another {kind} {name} here already: import into a new database (DSTACK_SERVER_DIR or DSTACK_DATABASE_URL)"
    )]
    Imported {
        /// User or project.
        kind: &'static str,
        /// Name of the user or project.
        name: String,
    },
    /// A value that makes no sense.
    #[error("{table}.{column} of {id} cannot be read")]
    Corrupt {
        /// Table of dstack 0.22.5.
        table: &'static str,
        /// Column of that table.
        column: &'static str,
        /// Id of the row.
        id: String,
    },
    /// Our own server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Our own database.
    #[error("cannot write what was imported; nothing was changed")]
    Target(#[source] StoreError),
}

/// What was (or would be) done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What is taken over, in order.
    pub taken: Vec<Imported>,
    /// What is not.
    pub left: Vec<Skipped>,
}

/// The file that the URL of an SQLite database names; `None` for other databases, and for paths that are escaped.
fn sqlite_path(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let path = rest.split('?').next()?;
    (scheme.starts_with("sqlite") && !path.contains('%')).then_some(path)
}

/// Imports. With `dry_run`, the database here is opened (and made, if it is not there), but not changed.
pub async fn import(
    settings: &Settings,
    random: &Random,
    options: &ImportOptions,
) -> Result<Report, ImportError> {
    if let Some(path) = sqlite_path(&options.from)
        && !Path::new(path).exists()
    {
        return Err(ImportError::NoFile(path.to_owned()));
    }
    let source = LegacyDatabase::open(&options.from)
        .await
        .map_err(ImportError::Source)?;
    let old_keys = source_keys(options, random)?;
    directory::prepare(&settings.dir)?;
    let own = config::load(&settings.dir)?.unwrap_or_default();
    let keys = own.encryption(&settings.dir, random)?;
    let plan = read::read(&source, &old_keys, &keys).await?;
    let (database, _lock) = open_database(settings, &keys, random, None).await?;
    for (id, name) in &plan.users {
        let other = database
            .users()
            .by_name(name)
            .await
            .map_err(ImportError::Target)?;
        if other.is_some_and(|user| user.id != *id) {
            return Err(taken("user", name));
        }
    }
    for (id, name) in &plan.projects {
        let other = database
            .projects()
            .by_name(name)
            .await
            .map_err(ImportError::Target)?;
        if other.is_some_and(|project| project.id != *id) {
            return Err(taken("project", name));
        }
    }
    let mut report = plan.report();
    if !options.dry_run {
        let rows = plan.rows;
        let written = database
            .write(move |tx| {
                Box::pin(async move {
                    let mut written = Vec::new();
                    for (kind, row) in rows {
                        if row.insert(tx).await? {
                            written.push(kind);
                        }
                    }
                    Ok(written)
                })
            })
            .await
            .map_err(ImportError::Target)?;
        for taken in &mut report.taken {
            taken.new = written.iter().filter(|kind| **kind == taken.kind).count();
        }
    }
    database.close().await;
    Ok(report)
}

fn taken(kind: &'static str, name: &str) -> ImportError {
    ImportError::Imported {
        kind,
        name: name.to_owned(),
    }
}

/// The keys of the installation to import; clear text can always be read.
fn source_keys(options: &ImportOptions, random: &Random) -> Result<Encryption, ConfigError> {
    let beside = || {
        let (scheme, path) = options.from.split_once("://")?;
        let data = Path::new(path).parent()?;
        (scheme.starts_with("sqlite") && data.ends_with("data")).then(|| config::path(data.parent()?).into())
    };
    let keys = match options.config.clone().or_else(|| beside().flatten()) {
        None => Vec::new(),
        Some(path) if options.config.is_none() && !path.exists() => Vec::new(),
        Some(path) => config::keys_of(&path)?,
    };
    Ok(Encryption::new(keys, random.clone()))
}

impl Report {
    /// Returns a table of what was taken over, and a line for each thing that was not.
    pub fn text(&self, dry_run: bool) -> String {
        let width = self.taken.iter().map(|taken| taken.kind.len()).max().unwrap_or(0);
        let mut text = String::new();
        for taken in &self.taken {
            let left = self.left.iter().filter(|left| left.kind == taken.kind).count();
            let new = match dry_run {
                true => String::new(),
                false => format!(", {} of them new", taken.new),
            };
            let left = match left {
                0 => String::new(),
                left => format!("; {left} not"),
            };
            text.push_str(&format!(
                "{:width$}  {} taken over{new}{left}\n",
                taken.kind, taken.found
            ));
        }
        if !self.left.is_empty() {
            text.push_str("\nNot taken over:\n");
        }
        for left in &self.left {
            text.push_str(&format!("- {} {}: {}\n", left.kind, left.name, left.why));
        }
        if dry_run {
            text.push_str("\nNothing was changed (--dry-run).\n");
        }
        text
    }
}
