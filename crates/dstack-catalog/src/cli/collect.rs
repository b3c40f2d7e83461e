//! `dstack catalog collect`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use dstack_system::{Clock, SystemClock};
use flate2::{Compression, write::GzEncoder};

use super::progress::TerminalProgress;
use super::{CliError, Output, open_current, provider_named};
use crate::collectors::{self, OfflineOptions};
use crate::{
    CollectContext, Filter, Item, Origin, Provider, Table, TableInfo, check_table, write_archive, write_csv,
};

#[derive(Debug, Args)]
pub(super) struct CollectArgs {
    /// Whose offers
    provider: String,
    /// The file to write: `.csv`, `.csv.gz` or `.zip`
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Keep offers that are not published
    #[arg(long)]
    no_filter: bool,
    /// Refuse to write a catalog that breaks a rule for publication
    #[arg(long)]
    check: bool,
    /// Keep large downloads here, to be used again or continued
    #[arg(long, value_name = "DIR")]
    downloads: Option<PathBuf>,
}

pub(super) async fn run(args: CollectArgs, output: &mut Output<'_>) -> Result<u8, CliError> {
    let provider = provider_named(&args.provider)?;
    let progress = Arc::new(TerminalProgress::new());
    let context = CollectContext {
        progress: progress.clone(),
        published_only: !args.no_filter,
    };
    let collected = collect(provider, &args, &context).await;
    progress.finish();
    let items = collected?;
    let info = TableInfo {
        provider,
        version: String::new(),
        origin: Origin::Live,
        as_of: Some(SystemClock.now()),
    };
    let table = Table::from_items(info, &items);
    if args.check {
        let violations = check_table(&table);
        for violation in violations.iter().take(50) {
            writeln!(output.err, "{violation}")?;
        }
        if !violations.is_empty() {
            return Err(CliError::Usage(format!(
                "{} rule(s) broken: nothing is written",
                violations.len()
            )));
        }
    }
    write(&table, &args.output)?;
    writeln!(
        output.err,
        "{} offers of {provider} written to `{}`",
        table.len(),
        args.output.display()
    )?;
    Ok(0)
}

async fn collect(
    provider: Provider,
    args: &CollectArgs,
    context: &CollectContext,
) -> Result<Vec<Item>, CliError> {
    if provider.is_online() {
        let collector = collectors::online_from_env(provider)?;
        return Ok(collector.offers(&Filter::default(), true).await?);
    }
    let options = OfflineOptions {
        downloads: args.downloads.clone(),
        known: open_current()?.snapshot(),
    };
    let collector = collectors::offline_from_env(provider, options)?;
    let mut items = collector.collect(context).await?;
    if context.published_only {
        items.retain(|item| collector.publishes(item));
    }
    Ok(items)
}

/// Writes aside and renames, so that a reader never sees half a file.
fn write(table: &Table, path: &Path) -> Result<(), CliError> {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut aside = tempfile::NamedTempFile::new_in(dir)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("zip") => {
            let bytes = write_archive(table).map_err(|source| CliError::Archive {
                path: path.to_owned(),
                source,
            })?;
            aside.write_all(&bytes)?;
        }
        Some("gz") => {
            let mut encoder = GzEncoder::new(&mut aside, Compression::best());
            write_csv(table.offers(), &mut encoder)?;
            encoder.finish()?;
        }
        _ => write_csv(table.offers(), std::io::BufWriter::new(&mut aside))?,
    }
    aside.persist(path).map_err(|error| error.error)?;
    Ok(())
}
