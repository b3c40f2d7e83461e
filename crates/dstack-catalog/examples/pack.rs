//! Makes the compiled-in snapshot from a directory of catalogue files.
//!
//! `cargo run -p dstack-catalog --example pack -- DIR VERSION DATE data/snapshot.bin.zst`
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use dstack_catalog::{Origin, Provider, Snapshot, TableInfo, pack, read_provider};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, version, date, output] = args.as_slice() else {
        eprintln!("usage: pack DIR VERSION DATE OUTPUT");
        return ExitCode::FAILURE;
    };
    match run(Path::new(dir), version, date, Path::new(output)) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(dir: &Path, version: &str, date: &str, output: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let as_of = Some(date.parse()?);
    let mut snapshot = Snapshot::default();
    for provider in Provider::offline() {
        let (table, warnings) = read_provider(dir, provider)?.ok_or(format!("no file of {provider}"))?;
        if warnings.total > 0 {
            return Err(format!("{} bad rows in {provider}", warnings.total).into());
        }
        let info = TableInfo {
            provider,
            version: version.to_owned(),
            origin: Origin::Builtin,
            as_of,
        };
        snapshot.insert(Arc::new(table.with_info(info)));
    }
    let packed = pack(&snapshot)?;
    fs_err::write(output, &packed)?;
    Ok(format!("{} offers, {} bytes", snapshot.len(), packed.len()))
}
