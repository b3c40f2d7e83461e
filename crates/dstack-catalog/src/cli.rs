//! `dstack catalog`: query, check, compare, describe and collect catalogues.
//!
//! The main binary flattens [`CatalogCommand`] into its own commands and calls [`run`].

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use dstack_system::{env, task};

use crate::{
    ArchiveError, Catalog, CollectError, DirectoryError, FilterError, Origin, Provider, ReadError, Settings,
    Snapshot, TableInfo, builtin, read_directory, read_single_archive,
};

mod check;
mod collect;
mod diff;
mod info;
mod progress;
mod query;

/// Query, check, compare, describe and collect the offer catalog.
#[derive(Debug, Args)]
pub struct CatalogCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the offers that match, cheapest first
    Query(Box<query::QueryArgs>),
    /// Check catalog files by the rules for publication
    Check(check::CheckArgs),
    /// Show what changed between two catalogs
    Diff(diff::DiffArgs),
    /// Show providers, rows, versions and age of the catalog
    Info(info::InfoArgs),
    /// Collect a provider's offers into a catalog file
    Collect(collect::CollectArgs),
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For reading
    Table,
    /// Comma-separated values
    Csv,
    /// One JSON object per line
    Json,
}

/// Where the catalogue of a command comes from.
#[derive(Debug, Args)]
struct SourceArgs {
    /// Read `<provider>.csv`, `.csv.gz` or `.zip` files from this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The filter cannot be used.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A file cannot be used.
    #[error("`{}` is not usable", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: ReadError,
    },
    /// An archive cannot be used.
    #[error("`{}` is not usable", path.display())]
    Archive {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: ArchiveError,
    },
    /// Offers of a provider could not be collected.
    #[error(transparent)]
    Collect(#[from] CollectError),
    /// Reading or writing failed.
    #[error("cannot read or write")]
    Io(#[from] io::Error),
    /// Anything else the user can mend.
    #[error("{0}")]
    Usage(String),
}

/// What a command prints to.
pub struct Output<'a> {
    /// Results: tables, CSV, JSON.
    pub out: &'a mut (dyn Write + Send),
    /// Remarks and errors.
    pub err: &'a mut (dyn Write + Send),
}

/// Runs a command on the terminal. Returns the exit code: 0 success, 1 failure or broken rules.
pub async fn run(command: CatalogCommand) -> u8 {
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout());
    let mut err = io::stderr();
    let code = run_with(
        command,
        Output {
            out: &mut out,
            err: &mut err,
        },
    )
    .await;
    match out.flush() {
        Ok(()) => code,
        Err(_) => 1,
    }
}

/// Runs a command, printing where it is told to.
pub async fn run_with(command: CatalogCommand, mut output: Output<'_>) -> u8 {
    let result = match command.action {
        Action::Query(args) => query::run(*args, &mut output).await,
        Action::Check(args) => check::run(&args, &mut output),
        Action::Diff(args) => diff::run(&args, &mut output),
        Action::Info(args) => info::run(&args, &mut output),
        Action::Collect(args) => collect::run(args, &mut output).await,
    };
    match result {
        Ok(code) => code,
        // The reader went away (`| head`): not worth a word.
        Err(CliError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            drop(writeln!(output.err, "error: {}", dstack_system::chain(&error)));
            1
        }
    }
}

/// Where downloads are kept: below the server's directory of the user.
fn cache_dir() -> Option<PathBuf> {
    Some(env::home()?.join(".dstack").join("catalog"))
}

impl SourceArgs {
    /// The catalogue at hand: no network.
    fn open(&self, output: &mut Output<'_>) -> Result<Arc<Snapshot>, CliError> {
        match &self.dir {
            Some(dir) => open_directory(dir, output),
            None => Ok(open_current()?.snapshot()),
        }
    }
}

fn open_current() -> Result<Catalog, CliError> {
    Ok(Catalog::open(Settings::from_env(cache_dir()))?)
}

fn open_directory(dir: &Path, output: &mut Output<'_>) -> Result<Arc<Snapshot>, CliError> {
    let found = read_directory(dir)?;
    for warning in &found.warnings.first {
        writeln!(output.err, "warning: {warning}")?;
    }
    if let Some((_, error)) = found.failed.into_iter().next() {
        return Err(error.into());
    }
    Ok(Arc::new(found.snapshot))
}

/// A catalogue by name: a directory, a single archive of all providers, `builtin` or `current`.
fn open_named(name: &str, output: &mut Output<'_>) -> Result<Arc<Snapshot>, CliError> {
    let path = Path::new(name);
    match name {
        "builtin" => Ok(builtin()),
        "current" => Ok(open_current()?.snapshot()),
        _ if path.is_dir() => open_directory(path, output),
        _ => {
            let bytes = fs_err::read(path)?;
            let info = |provider, version: &str| TableInfo {
                provider,
                version: version.to_owned(),
                origin: Origin::Directory,
                as_of: None,
            };
            let (tables, _) = read_single_archive(info, &bytes).map_err(|source| CliError::Archive {
                path: path.to_owned(),
                source,
            })?;
            Ok(Arc::new(Snapshot::new(tables.into_iter().map(Arc::new))))
        }
    }
}

fn provider_named(name: &str) -> Result<Provider, CliError> {
    Provider::from_name(name).ok_or_else(|| FilterError::UnknownProvider(name.to_owned()).into())
}

/// Ends blocking work that panicked.
impl From<task::Panicked> for CliError {
    fn from(panicked: task::Panicked) -> Self {
        Self::Usage(panicked.to_string())
    }
}

/// A plain table in the style of the other commands: no frame, two blanks between columns.
fn plain_table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header.iter().map(|name| name.to_uppercase()));
    table
}
