//! The command line.
//!
//! [`main_with`] is the whole program except for the server and the check of backends, which the binary hands in. Parsing is done without a runtime;
//! one is built only for commands that talk to a server, and nothing is asked of the network beforehand: a command
//! starts in a few milliseconds.
//!
//! The terminal is touched by [`ui`] only. One command is one module of [`commands`].

pub mod archive;
pub mod args;
pub mod attach;
pub mod commands;
pub mod config;
pub mod context;
pub mod error;
pub mod format;
pub mod fs;
mod interrupt;
pub mod profiles;
pub mod repo;
mod run;
pub mod settings;
pub mod ssh;
pub mod tables;
pub mod ui;
pub mod yaml;

pub use args::{BackendCheckArgs, Cli, Command, ServerAction, ServerArgs, ServerImportArgs};
pub use context::Context;
pub use error::{CliError, ErrorKind};
pub use run::{execute, main, main_with, run};
