//! The replayer behind `cargo xtask compat`.
#![allow(clippy::print_stdout, clippy::disallowed_methods, clippy::exit)]

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use dstack_tests::compat::{self, Case, Outcome, catalog::Catalog, setup};
use dstack_tests::parts;

/// Replay recorded exchanges of dstack 0.22.5 and show every difference
#[derive(Parser)]
#[command(name = "cargo xtask compat")]
struct Args {
    /// Folder with recorded exchanges; several are merged [default: tests/golden]
    #[arg(long)]
    cases: Vec<PathBuf>,
    /// Replay only this suite [default: those for which a fresh server can be set up]
    #[arg(long)]
    suite: Vec<String>,
    /// Show differences only of cases whose name contains this (all are replayed: they build on one another)
    #[arg(long)]
    only: Option<String>,
    /// Replay against a running server instead of a fresh one of ours
    #[arg(long)]
    url: Option<String>,
    /// Print the names of the matching cases, for tests/golden/matching.txt
    #[arg(long)]
    list_matching: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let golden = parts::repository().join("tests/golden");
    let folders = if args.cases.is_empty() {
        vec![golden.clone()]
    } else {
        args.cases.clone()
    };
    let suites = compat::load(&folders)?;
    let wanted: Vec<String> = if args.suite.is_empty() {
        ["api", "restricted", "exports", "lifecycle"]
            .map(str::to_owned)
            .into()
    } else {
        args.suite.clone()
    };
    let catalog = Catalog::serve(&golden.join("fixtures/catalog"))?;
    let mut differing = 0;
    for suite in &wanted {
        let cases = suites
            .get(suite)
            .with_context(|| format!("no recorded exchange of suite {suite}"))?;
        let outcomes = run(&args, suite, cases, &catalog)?;
        differing += report(&args, suite, &outcomes);
    }
    std::process::exit(i32::from(differing > 0));
}

fn run(args: &Args, suite: &str, cases: &[Case], catalog: &Catalog) -> Result<Vec<Outcome>> {
    let shown = |outcome: &Outcome| {
        if !args.list_matching && args.only.as_ref().is_none_or(|part| outcome.case.contains(part)) {
            for difference in &outcome.differences {
                println!("{}  {difference}", outcome.case);
            }
        }
    };
    if let Some(url) = &args.url {
        return Ok(compat::replay(cases, url, shown));
    }
    let program = parts::golden_server().map_err(anyhow::Error::msg)?;
    let server = setup::start(&program, suite, &catalog.url())?;
    Ok(compat::replay(cases, &server.url(), shown))
}

/// Prints the counts of a suite; gives how many of its cases differ.
fn report(args: &Args, suite: &str, outcomes: &[Outcome]) -> usize {
    let matching: BTreeSet<&str> = outcomes
        .iter()
        .filter(|outcome| outcome.differences.is_empty())
        .map(|o| o.case.as_str())
        .collect();
    if args.list_matching {
        matching.iter().for_each(|case| println!("{suite} {case}"));
    } else {
        println!(
            "{suite}: {} of {} exchanges match",
            matching.len(),
            outcomes.len()
        );
    }
    outcomes.len() - matching.len()
}
