//! The same work done by this crate and by gpuhunt 0.1.34, on this machine, in one run; prints the ratios.
//!
//! gpuhunt is run by the Python named in `GPUHUNT_PYTHON` (else `python3`); without it only our figures are shown.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

mod common;

use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use common::{QUERIES, files, filter, load, tenfold};
use dstack_catalog::{Provider, Snapshot, builtin};

type Figures = HashMap<String, f64>;

fn main() {
    if let [_, flag, dir] = std::env::args().collect::<Vec<_>>().as_slice()
        && flag == "--footprint"
    {
        return footprint(Path::new(dir));
    }
    println!("{:<24}{:>14}{:>14}{:>10}", "", "dstack", "gpuhunt", "ratio");
    println!(
        "first query, built-in    {:>10.2} ms   (new process)",
        first_query()
    );
    let once = files();
    measure("59 000 offers", &once, 41);
    measure("590 000 offers", &tenfold(&once), 5);
}

fn measure(size: &str, files: &[(Provider, Vec<u8>)], repeats: usize) {
    let dir = tempfile::tempdir().unwrap();
    for (provider, text) in files {
        fs_err::write(dir.path().join(format!("{provider}.csv")), text).unwrap();
    }
    let ours = ours(files, dir.path());
    let theirs = theirs(dir.path(), repeats);
    println!("\n{size}");
    let names = ["load", "resident"]
        .into_iter()
        .chain(QUERIES.map(|(name, _)| name));
    for name in names {
        let unit = if name == "resident" { "MB" } else { "ms" };
        let our = ours.get(name).copied().unwrap_or(f64::NAN);
        match theirs.as_ref().and_then(|theirs| theirs.get(name)) {
            Some(their) => println!(
                "{name:<24}{our:>11.3} {unit}{their:>11.1} {unit}{:>9.0}x",
                their / our
            ),
            None => println!("{name:<24}{our:>11.3} {unit}{:>14}", "-"),
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn timed<T>(repeats: usize, mut work: impl FnMut() -> T) -> f64 {
    let times = (0..repeats).map(|_| {
        let started = Instant::now();
        black_box(work());
        started.elapsed().as_secs_f64() * 1e3
    });
    median(times.collect())
}

fn ours(files: &[(Provider, Vec<u8>)], dir: &Path) -> Figures {
    let mut figures = Figures::new();
    figures.insert("load".into(), timed(9, || load(files)));
    let snapshot: Snapshot = load(files);
    for (name, text) in QUERIES {
        let filter = filter(text);
        let first = || {
            snapshot
                .query(&filter)
                .unwrap()
                .take(100)
                .map(|offer| offer.price())
                .sum::<f64>()
        };
        figures.insert(name.into(), timed(501, first));
    }
    figures.insert(
        "resident".into(),
        run_self(&["--footprint", dir.to_str().unwrap()]),
    );
    figures
}

fn run_self(args: &[&str]) -> f64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(args)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Milliseconds from the start of a process to the first offers of its first query.
fn first_query() -> f64 {
    let times = (0..21).map(|_| {
        let started = Instant::now();
        run_self(&["--footprint", "builtin"]);
        started.elapsed().as_secs_f64() * 1e3
    });
    median(times.collect())
}

/// In a process of its own: how much more memory is resident with the catalogue than without.
fn footprint(dir: &Path) {
    let before = resident_mb();
    let snapshot = if dir == Path::new("builtin") {
        builtin()
    } else {
        std::sync::Arc::new(dstack_catalog::read_directory(dir).unwrap().snapshot)
    };
    let offers = snapshot.query(&filter(QUERIES[1].1)).unwrap().take(100).count();
    assert_eq!(offers, 100);
    println!("{}", resident_mb() - before);
}

fn resident_mb() -> f64 {
    let text = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or("0 kB");
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0.0);
    kilobytes * 1024.0 / 1e6
}

fn theirs(dir: &Path, repeats: usize) -> Option<Figures> {
    let python = std::env::var("GPUHUNT_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/beside_gpuhunt.py");
    let queries = serde_json::to_string(&QUERIES).unwrap();
    let output = Command::new(python)
        .arg(script)
        .arg(dir)
        .arg(queries)
        .arg(repeats.to_string())
        .output()
        .ok()?;
    if !output.status.success() {
        println!(
            "gpuhunt cannot be run: {}",
            String::from_utf8_lossy(&output.stderr)
                .lines()
                .last()
                .unwrap_or_default()
        );
        return None;
    }
    serde_json::from_slice(&output.stdout).ok()
}
