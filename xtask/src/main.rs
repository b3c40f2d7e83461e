//! Every developer command. See `cargo xtask --help`.
//!
//! This tool drives other programs and is not part of the product: it may print, read the environment and
//! the wall clock, and start threads.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)]

use anyhow::Result;
use clap::{Parser, Subcommand};

mod add_backend;
mod bench;
mod build;
mod check_deps;
mod compat;
mod cross;
mod demo;
mod dist;
mod exec;
mod fuzz;
mod generate;
mod interrupt;
mod junit;
mod layout;
mod net;
mod package;
mod postgres;
mod python;
mod report;
mod sim;
mod soak;
#[cfg(test)]
mod specification;
mod test;
mod testenv;
mod ui;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of this repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build everything, start a server in a temporary folder, run an example task, show its logs, clean up
    Demo(demo::Args),
    /// Install what the tests need where it is missing and may be, then run every test
    Test(test::Args),
    /// Run one command with what the tests need around it: `cargo xtask env cargo nextest run -p dstack-store`
    Env(test::EnvArgs),
    /// Replay recorded exchanges of dstack 0.22.5 against our server and show every difference
    Compat(compat::Args),
    /// Run the engine in virtual time under faults, from one seed or many
    Sim(sim::Args),
    /// Live many lives in emulated clouds where any request may fail
    Soak(soak::Args),
    /// Fuzz the readers of YAML, JSON and each grammar
    Fuzz(fuzz::Args),
    /// Measure, beside the reference from PyPI on the same machine
    Bench(bench::Args),
    /// Make what is made from the programs: docs/cli.md, the OpenAPI document, and the types of the web page
    Gen(generate::Args),
    /// Check that the crates depend on one another as the table says
    CheckDeps(check_deps::Args),
    /// Build the web page, which the server carries; with --test, run its tests
    Ui(ui::Args),
    /// Start a new backend: one that builds and passes its checks, to be changed call by call (docs/adding-a-backend.md)
    AddBackend(add_backend::Args),
    /// Build the static release binaries, with agents for other architectures if asked
    Dist(dist::Args),
}

fn main() {
    let outcome = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Env(args) => test::run_in_env(&args),
        Command::Compat(args) => compat::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Gen(args) => generate::run(&args),
        Command::CheckDeps(args) => check_deps::run(&args),
        Command::Ui(args) => ui::run(&args),
        Command::AddBackend(args) => add_backend::run(&args),
        Command::Dist(args) => dist::run(&args).map(|()| 0),
    };
    std::process::exit(exit_code(outcome));
}

/// Commands return the exit code they want; an error is printed with its causes and exits with 1.
fn exit_code(outcome: Result<i32>) -> i32 {
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            1
        }
    }
}
