//! `cargo xtask fuzz`: the targets of `fuzz/`, each for a while, starting from the conformance corpus.
//!
//! libFuzzer is linked by its crate; coverage is asked for with flags of the stable compiler, so that neither nightly nor
//! `cargo-fuzz` is needed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build::cargo;
use crate::exec::{run as must, step};
use crate::layout::{host_triple, root};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these targets [default: all]
    target: Vec<String>,
    /// Seconds for each
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

pub(crate) fn run(args: &Args) -> Result<i32> {
    let fuzz = root().join("fuzz");
    let all = targets(&fuzz)?;
    let wanted: Vec<&String> = match args.target.as_slice() {
        [] => all.iter().collect(),
        some => some.iter().collect(),
    };
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target {unknown}; there are: {}", all.join(", "));
    }
    seed(&fuzz)?;
    let triple = host_triple()?;
    step("Building the fuzz targets");
    let mut build = cargo();
    // A target folder of its own: the flags would rebuild everything else. With `--target`, build scripts do without them.
    build
        .current_dir(&fuzz)
        .args(["build", "--release", "--target", &triple])
        .env("CARGO_TARGET_DIR", fuzz.join("target"))
        .env("RUSTFLAGS", COVERAGE);
    must(&mut build)?;
    let programs = fuzz.join("target").join(&triple).join("release");
    for name in wanted {
        step(&format!("{name}, {} s", args.seconds));
        let corpus = fuzz.join("corpus").join(name);
        fs_err::create_dir_all(&corpus)?;
        fs_err::create_dir_all(fuzz.join("artifacts").join(name))?;
        let mut fuzzer = Command::new(programs.join(name));
        fuzzer
            .current_dir(&fuzz)
            .arg(&corpus)
            .arg(fuzz.join("seeds").join(name))
            .arg(format!("-max_total_time={}", args.seconds))
            .arg(format!("-artifact_prefix=artifacts/{name}/"))
            .args(["-timeout=10", "-max_len=4096", "-print_final_stats=1"]);
        must(&mut fuzzer)?;
    }
    Ok(0)
}

fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(fuzz.join("targets"))? {
        let path = entry?.path();
        let name = path.file_stem().context("a target without a name")?;
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Seeds of the targets that read YAML: the documents of the conformance corpus.
fn seed(fuzz: &Path) -> Result<()> {
    let documents = root().join("crates/dstack-model/tests/corpus");
    for (area, targets) in [
        ("task", &["yaml", "plan"][..]),
        ("service", &["yaml", "plan"]),
        ("other", &["yaml", "plan"]),
        ("profiles", &["profiles"]),
    ] {
        let text = fs_err::read_to_string(documents.join(format!("{area}.yml")))?;
        for (number, case) in text.split("\n# case: ").skip(1).enumerate() {
            let document = case.split_once('\n').map_or("", |(_, document)| document);
            for target in targets {
                let folder = fuzz.join("seeds").join(target);
                fs_err::create_dir_all(&folder)?;
                fs_err::write(folder.join(format!("{area}-{number}")), document)?;
            }
        }
    }
    for target in targets(fuzz)? {
        fs_err::create_dir_all(fuzz.join("seeds").join(target))?;
    }
    Ok(())
}
