//! `cargo xtask test`: everything CI checks.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::{self, Profile, cargo};
use crate::check_deps;
use crate::exec::{run_quietly, status, step, succeeds};
use crate::generate;
use crate::junit;
use crate::layout;
use crate::report::Tally;
use crate::testenv::TestEnv;
use crate::ui;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only the tests whose name contains one of these (and no lints)
    filter: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct EnvArgs {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Prepares what tests need, runs one command in it, and stops what was started. The exit code is the command's.
pub(crate) fn run_in_env(args: &EnvArgs) -> Result<i32> {
    let (program, arguments) = args.command.split_first().context("no command")?;
    crate::interrupt::catch()?;
    let env = TestEnv::prepare();
    let mut command = Command::new(program);
    crate::build::outside_of_packages(&mut command);
    let ended = status(command.args(arguments).envs(env.variables.iter().cloned()))?;
    Ok(ended.code().unwrap_or(1))
}

/// Runs all tests and checks; the exit code is 0 only when everything that could run passed.
pub(crate) fn run(args: &Args) -> Result<i32> {
    crate::interrupt::catch()?;
    let env = TestEnv::prepare();
    let mut tally = Tally::default();
    // Before the programs, which carry it.
    if args.filter.is_empty() && !page_is_built() {
        tally.fail("build of the web page");
    }
    match build_binaries() {
        Ok(binaries) => {
            tally.add(run_tests(&env, &binaries, &args.filter)?);
            if args.filter.is_empty() {
                tally.add(doc_tests()?);
                tally.add(generated_pages(&binaries)?);
                tally.add(ui::tests(&env, &binaries.of_page())?);
            }
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            tally.fail("build");
        }
    }
    if args.filter.is_empty() {
        tally.add(lints()?);
    }
    println!();
    for line in &env.missing {
        println!("missing  {line}");
    }
    drop(env);
    if crate::interrupt::happened() {
        tally.fail("interrupted");
    }
    tally.print();
    Ok(i32::from(!tally.failed.is_empty()))
}

type Variables = Vec<(&'static str, String)>;

/// The programs that the end-to-end tests start.
struct Binaries {
    agent: PathBuf,
    dstack: PathBuf,
    golden_server: PathBuf,
    scale_server: PathBuf,
}

impl Binaries {
    fn of_page(&self) -> ui::Programs {
        ui::Programs {
            dstack: self.dstack.clone(),
            scale_server: self.scale_server.clone(),
            agent: self.agent.clone(),
        }
    }
}

/// Builds the web page, where its tools could be had. Where not, that is said among what is missing.
fn page_is_built() -> bool {
    ui::prepare().is_err()
        || ui::build()
            .inspect_err(|error| eprintln!("error: {error:#}"))
            .is_ok()
}

fn build_binaries() -> Result<Binaries> {
    step("building the static agent");
    let agent = build::agent(Profile::DEV)?;
    step("building the programs");
    let folder = build::programs()?;
    Ok(Binaries {
        agent,
        dstack: folder.join("dstack"),
        golden_server: folder.join("dstack-golden-server"),
        scale_server: folder.join("dstack-scale-server"),
    })
}

fn generated_pages(binaries: &Binaries) -> Result<Tally> {
    step("checking that the generated pages are current");
    let mut tally = Tally::default();
    if generate::check(&binaries.dstack)? {
        tally.pass();
    } else {
        tally.fail("generated pages (make them again with: cargo xtask gen)");
    }
    Ok(tally)
}

fn run_tests(env: &TestEnv, binaries: &Binaries, filter: &[String]) -> Result<Tally> {
    let mut variables = env.variables.clone();
    variables.push(("DSTACK_TEST_AGENT", binaries.agent.display().to_string()));
    variables.push(("DSTACK_TEST_STATIC_AGENT", binaries.agent.display().to_string()));
    variables.push(("DSTACK_TEST_DSTACK", binaries.dstack.display().to_string()));
    variables.push((
        "DSTACK_TEST_GOLDEN_SERVER",
        binaries.golden_server.display().to_string(),
    ));
    let run = if ensure_nextest() { nextest } else { cargo_test };
    let mut tally = run(&variables, Scope::Workspace, filter)?;
    if env.has_postgres() {
        step("running the tests of the server once more, on PostgreSQL");
        variables.push(("DSTACK_TEST_DATABASE", "postgres".to_owned()));
        tally.add(run(&variables, Scope::Server, filter)?);
    } else {
        tally.skip(
            "the tests of the server on PostgreSQL",
            "no PostgreSQL (see above)",
        );
    }
    Ok(tally)
}

/// Which tests run.
#[derive(Debug, Clone, Copy)]
enum Scope {
    /// All of them.
    Workspace,
    /// Those that show what the server does with its database.
    Server,
}

impl Scope {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Scope::Workspace => &["--workspace"],
            // All packages, of which only these tests: of a single one the dependencies would be built once more.
            Scope::Server => &[
                "--workspace",
                "--test",
                "api",
                "--test",
                "tasks",
                "--test",
                "crashes",
                "--test",
                "golden",
            ],
        }
    }
}

fn ensure_nextest() -> bool {
    let present = || succeeds(cargo().args(["nextest", "--version"]));
    if present() {
        return true;
    }
    step("installing cargo-nextest");
    let installed = succeeds(cargo().args(["install", "--quiet", "--locked", "cargo-nextest"])) && present();
    if !installed {
        println!(
            "warning: cargo-nextest cannot be installed; using cargo test (no retries to name flaky tests)"
        );
    }
    installed
}

fn nextest(variables: &Variables, scope: Scope, filter: &[String]) -> Result<Tally> {
    step("running the tests");
    let report = layout::root().join("target/nextest/ci/junit.xml");
    if report.exists() {
        fs_err::remove_file(&report)?;
    }
    let mut command = cargo();
    command
        .args(["nextest", "run", "--profile", "ci", "--no-tests", "warn"])
        .args(["--test-threads", &test_threads().to_string()])
        .args(scope.arguments())
        .args(filter);
    let ended = status(command.envs(variables.iter().cloned()))?;
    let mut tally = fs_err::read_to_string(&report)
        .map(|xml| junit::read(&xml))
        .unwrap_or_default();
    if !ended.success() && tally.failed.is_empty() {
        tally.fail(format!("cargo nextest run ({ended})"));
    }
    Ok(tally)
}

/// Twice the processors: `.config/nextest.toml` says which tests count as one thread and which as two.
fn test_threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The way without nextest: one process per crate, counted from the summary lines.
fn cargo_test(variables: &Variables, scope: Scope, filter: &[String]) -> Result<Tally> {
    step("running the tests");
    let mut command = cargo();
    command.args(["test", "--no-fail-fast"]).args(scope.arguments());
    if matches!(scope, Scope::Workspace) {
        command.args(["--lib", "--bins", "--tests"]);
    }
    command.arg("--").arg("--show-output").args(filter);
    counted(command.envs(variables.iter().cloned()), "cargo test")
}

fn doc_tests() -> Result<Tally> {
    step("running the examples in the documentation");
    counted(
        cargo().args(["test", "--workspace", "--doc", "--quiet", "--no-fail-fast"]),
        "cargo test --doc",
    )
}

/// Runs the standard test harness and reads its summary lines.
fn counted(command: &mut Command, name: &str) -> Result<Tally> {
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut tally = summaries(&text);
    if !output.status.success() {
        print!("{text}");
        if tally.failed.is_empty() {
            tally.fail(format!("{name} ({})", output.status));
        }
    }
    Ok(tally)
}

fn summaries(text: &str) -> Tally {
    let mut tally = Tally::default();
    for line in text.lines() {
        if let Some(counts) = line.strip_prefix("test result: ") {
            tally.passed += count(counts, "passed");
            (0..count(counts, "failed")).for_each(|_| tally.fail("a test (see above)"));
        } else if let Some(reason) = junit::skip_reason(line) {
            tally.skip("a test", reason);
        }
    }
    tally.passed = tally.passed.saturating_sub(tally.skipped.len());
    tally
}

/// The number before a word, as in `ok. 3 passed; 0 failed; ...`.
fn count(text: &str, word: &str) -> usize {
    let words: Vec<&str> = text.split([' ', ';']).collect();
    let at = words.iter().position(|each| *each == word);
    at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok())
        .unwrap_or(0)
}

/// Lints and formatting, each one check.
fn lints() -> Result<Tally> {
    let checks: [(&str, &[&str]); 2] = [
        (
            "clippy",
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
        ),
        ("rustfmt", &["fmt", "--all", "--check"]),
    ];
    let mut tally = Tally::default();
    for (name, args) in checks {
        step(&format!("checking with {name}"));
        let passed = status(cargo().args(args))?.success();
        if passed {
            tally.pass();
        } else {
            tally.fail(name);
        }
    }
    step("checking which crate depends on which");
    match check_deps::problems()?.as_slice() {
        [] => tally.pass(),
        problems => problems.iter().for_each(|problem| tally.fail(problem)),
    }
    step("checking that there is one TLS stack");
    match banned_crates()?.as_slice() {
        [] => tally.pass(),
        found => tally.fail(format!("banned crates (deny.toml): {}", found.join(", "))),
    }
    Ok(tally)
}

/// Crates that `deny.toml` bans and that are built all the same.
fn banned_crates() -> Result<Vec<String>> {
    const BANNED: [&str; 5] = ["openssl", "openssl-sys", "native-tls", "aws-lc-rs", "aws-lc-sys"];
    let tree = run_quietly(cargo().args([
        "tree",
        "--workspace",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
    ]))?;
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut found: Vec<String> = names
        .filter(|name| BANNED.contains(name))
        .map(str::to_owned)
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_summary_lines_of_the_standard_harness() {
        let text = "running 3 tests\n\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                    test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let tally = summaries(text);
        assert_eq!((tally.passed, tally.failed.len()), (4, 2));
    }

    #[test]
    fn a_skipped_test_is_not_counted_as_passed() {
        let tally = summaries("skipped: no root\ntest result: ok. 3 passed; 0 failed; 0 ignored\n");
        assert_eq!((tally.passed, tally.skipped.len()), (2, 1));
    }
}
