//! The measuring program behind `cargo xtask bench`.
#![allow(clippy::print_stdout, clippy::disallowed_methods)]

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use dstack_tests::bench::measures::{ALL, Figure, Measure};
use dstack_tests::bench::{Report, Row, Subject};
use dstack_tests::parts;

/// Measure our programs beside the reference
#[derive(Parser)]
struct Args {
    /// The Python environment with the reference in it; without it only ours are measured
    #[arg(long)]
    reference: Option<PathBuf>,
    /// Write the figures into this file
    #[arg(long)]
    write: Option<PathBuf>,
    /// How many stored runs `runs/list` is measured with
    #[arg(long, default_value_t = 100_000)]
    runs: usize,
    /// Measure the reference only: to try the measures without ours
    #[arg(long, hide = true)]
    only_reference: bool,
    /// Take only the measures whose name contains this: cli, start, small, submit, list, postgres, overload,
    /// hostile, plan, restart, memory, process, docker, services, services-bodies, services-models, services-streams,
    /// services-sockets, services-latency, services-ssh, services-many, services-gateway, live, hosts, scale, clouds
    filter: Option<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let reference = args.reference.as_deref().map(Subject::reference);
    let ours = match (&reference, args.only_reference) {
        (Some(reference), true) => reference.clone(),
        _ => {
            let part = |part: parts::Part<PathBuf>| part.map_err(anyhow::Error::msg);
            Subject::ours(part(parts::dstack())?, part(parts::agent())?)
        }
    };
    let mut report = Report::default();
    for (name, measure) in ALL {
        if args
            .filter
            .as_ref()
            .is_some_and(|part| !name.contains(part.as_str()))
        {
            continue;
        }
        println!("measuring {name}");
        match measure(&ours, args.runs) {
            Ok(figures) => {
                let beside = reference
                    .as_ref()
                    .and_then(|reference| beside(measure, reference, args.runs));
                let rows = rows(figures, &beside.unwrap_or_default());
                for row in &rows {
                    print!("    {}", row.markdown());
                }
                report.rows.extend(rows);
            }
            Err(error) => {
                println!("    not measured: {error:#}");
                report.notes.push(format!("Not measured: {name}"));
            }
        }
    }
    let page = report.markdown("cargo xtask bench --write");
    println!("\n{page}");
    if let Some(file) = args.write {
        let kept = fs_err::read_to_string(&file).unwrap_or_default();
        fs_err::write(&file, with_notes(&page, &kept))?;
    }
    Ok(())
}

/// What people wrote below the table stays.
fn with_notes(page: &str, before: &str) -> String {
    match before.find(NOTES) {
        Some(at) => format!("{page}\n{}", &before[at..]),
        None => page.to_owned(),
    }
}

const NOTES: &str = "## Notes\n";

fn beside(measure: Measure, reference: &Subject, runs: usize) -> Option<Vec<Figure>> {
    measure(reference, runs)
        .map_err(|error| println!("    reference: not measured: {error:#}"))
        .ok()
}

fn rows(ours: Vec<Figure>, reference: &[Figure]) -> Vec<Row> {
    let beside = |measure: &str| reference.iter().find(|figure| figure.measure == measure);
    ours.into_iter()
        .map(|figure| Row {
            reference: beside(&figure.measure).map(|other| other.value),
            unit: figure.unit,
            ours: figure.value,
            target: figure.target.to_owned(),
            measure: figure.measure,
        })
        .collect()
}
