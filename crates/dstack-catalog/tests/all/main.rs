//! Tests of the catalogue through its public interface.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod cli;
mod collectors;
mod loading;
mod oracle;
mod queries;
mod refresh;
mod support;
