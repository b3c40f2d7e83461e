//! `dstack catalog check`.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::read::MultiGzDecoder;

use super::{CliError, Output, SourceArgs, provider_named};
use crate::{MAX_FILE_BYTES, Provider, TableInfo, Violation, check_file, check_table, read_archive};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Files to check, named `<provider>.csv`, `.csv.gz` or `.zip`; without any, all of the catalog
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Check only these providers (repeatable)
    #[arg(long, value_name = "NAME")]
    provider: Vec<String>,
    /// Print at most so many broken rules
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

pub(super) fn run(args: &CheckArgs, output: &mut Output<'_>) -> Result<u8, CliError> {
    let chosen = args
        .provider
        .iter()
        .map(|name| provider_named(name))
        .collect::<Result<Vec<_>, _>>()?;
    let wanted = |provider: Provider| chosen.is_empty() || chosen.contains(&provider);
    let mut checked = 0;
    let mut violations = Vec::new();
    if args.files.is_empty() && args.source.dir.is_none() {
        for table in args
            .source
            .open(output)?
            .tables()
            .filter(|table| wanted(table.info().provider))
        {
            violations.extend(check_table(table));
            checked += 1;
        }
    } else {
        for path in files(args)? {
            let provider = provider_of(&path)?;
            if wanted(provider) {
                violations.extend(check_path(provider, &path)?);
                checked += 1;
            }
        }
    }
    report(&violations, checked, args.limit, output)
}

fn report(
    violations: &[Violation],
    checked: usize,
    limit: usize,
    output: &mut Output<'_>,
) -> Result<u8, CliError> {
    for violation in violations.iter().take(limit) {
        writeln!(output.out, "{violation}")?;
    }
    if violations.len() > limit {
        writeln!(output.out, "... and {} more", violations.len() - limit)?;
    }
    match (checked, violations.len()) {
        (0, _) => Err(CliError::Usage(
            "there is nothing to check: no file of the given providers".into(),
        )),
        (_, 0) => {
            writeln!(output.out, "{checked} catalog(s) checked: no rule is broken")?;
            Ok(0)
        }
        (_, broken) => {
            writeln!(
                output.err,
                "error: {broken} rule(s) broken in {checked} catalog(s)"
            )?;
            Ok(1)
        }
    }
}

/// The files named, or those of the directory.
fn files(args: &CheckArgs) -> Result<Vec<PathBuf>, CliError> {
    let mut files = args.files.clone();
    if let Some(dir) = &args.source.dir {
        for provider in Provider::ALL {
            let names = ["csv", "csv.gz", "zip"].map(|extension| dir.join(format!("{provider}.{extension}")));
            files.extend(names.into_iter().find(|path| path.is_file()));
        }
    }
    Ok(files)
}

fn provider_of(path: &Path) -> Result<Provider, CliError> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    Provider::from_name(stem).ok_or_else(|| {
        CliError::Usage(format!(
            "`{}` must be named after its provider, such as `aws.csv`",
            path.display()
        ))
    })
}

fn check_path(provider: Provider, path: &Path) -> Result<Vec<Violation>, CliError> {
    let info = TableInfo::unversioned(provider);
    let bytes = fs_err::read(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("zip") => {
            let (table, warnings) = read_archive(&info, &bytes).map_err(|source| CliError::Archive {
                path: path.to_owned(),
                source,
            })?;
            let unreadable = warnings.first.into_iter().map(|warning| Violation {
                provider,
                row: None,
                what: format!("line {}: {}", warning.line, warning.reason),
            });
            Ok(unreadable.chain(check_table(&table)).collect())
        }
        Some("gz") => {
            let mut text = Vec::new();
            MultiGzDecoder::new(bytes.as_slice())
                .take(MAX_FILE_BYTES)
                .read_to_end(&mut text)?;
            check_bytes(info, path, &text)
        }
        _ => check_bytes(info, path, &bytes),
    }
}

fn check_bytes(info: TableInfo, path: &Path, text: &[u8]) -> Result<Vec<Violation>, CliError> {
    check_file(info, text).map_err(|source| CliError::Read {
        path: path.to_owned(),
        source,
    })
}
