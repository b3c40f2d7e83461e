//! `dstack catalog info`.

use std::time::Duration;

use clap::Args;
use dstack_system::{Clock, SystemClock};
use serde_json::json;

use super::{CliError, Format, Output, SourceArgs, plain_table};
use crate::Table;

#[derive(Debug, Args)]
pub(super) struct InfoArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

const COLUMNS: [&str; 8] = [
    "provider",
    "rows",
    "spot",
    "types",
    "locations",
    "version",
    "source",
    "age",
];

pub(super) fn run(args: &InfoArgs, output: &mut Output<'_>) -> Result<u8, CliError> {
    let snapshot = args.source.open(output)?;
    let mut table = plain_table(&COLUMNS);
    if args.format == Format::Csv {
        crate::write::write_record(&mut output.out, COLUMNS.iter().map(|name| (*name).into()))?;
    }
    for one in snapshot.tables() {
        let row = describe(one);
        match args.format {
            Format::Table => {
                table.add_row(row);
            }
            Format::Csv => crate::write::write_record(&mut output.out, row.into_iter().map(Into::into))?,
            Format::Json => {
                let info = one.info();
                let line = json!({
                    "provider": info.provider.name(),
                    "rows": one.len(),
                    "version": info.version,
                    "source": info.origin.to_string(),
                    "as_of": info.as_of,
                    "age_seconds": age(one).map(|age| age.as_secs()),
                    "bytes": one.size_bytes(),
                });
                writeln!(output.out, "{line}")?;
            }
        }
    }
    if args.format == Format::Table {
        writeln!(output.out, "{table}")?;
        let megabytes = snapshot.size_bytes() as f64 / 1e6;
        writeln!(output.out, "{} offers, {megabytes:.1} MB", snapshot.len())?;
    }
    Ok(0)
}

fn age(table: &Table) -> Option<Duration> {
    Some(SystemClock.now().since(table.info().as_of?))
}

fn describe(table: &Table) -> [String; COLUMNS.len()] {
    let info = table.info();
    let distinct = |texts: Vec<&str>| {
        let mut texts = texts;
        texts.sort_unstable();
        texts.dedup();
        texts.len().to_string()
    };
    [
        info.provider.name().to_owned(),
        table.len().to_string(),
        table.offers().filter(crate::Offer::spot).count().to_string(),
        distinct(table.offers().map(|offer| offer.instance_name()).collect()),
        distinct(table.offers().map(|offer| offer.location()).collect()),
        if info.version.is_empty() {
            "-".to_owned()
        } else {
            info.version.clone()
        },
        info.origin.to_string(),
        age(table).map_or_else(|| "unknown".to_owned(), roughly),
    ]
}

/// A duration in its largest unit.
fn roughly(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shown_in_one_unit() {
        let shown = [59, 60, 7199, 86_399, 86_400, 30 * 86_400].map(|s| roughly(Duration::from_secs(s)));
        assert_eq!(shown, ["59s", "1m", "1h", "23h", "1d", "30d"]);
    }
}
