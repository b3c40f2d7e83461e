//! The agent binary: kills and restarts, both runtimes, real containers where an engine is available.

// Helpers outside of `#[test]` functions are tests too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod container;
mod docker;
mod kills;
mod process;
mod real;
mod self_termination;
mod support;
mod token;
