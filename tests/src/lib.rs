//! End-to-end tests with real parts: the built binaries, the Python CLI, a container engine, PostgreSQL.
//!
//! `cargo xtask test` builds and installs what they need and names it in `DSTACK_TEST_*` variables
//! ([`parts`]); a test that lacks its part prints `skipped: <reason>` and ends.
//!
//! Everything here is test code: it drives other programs, reads the environment and the wall clock, and may
//! fail by panicking.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

pub mod bench;
pub mod cli;
pub mod compat;
pub mod containers;
pub mod fleets;
pub mod hostile;
pub mod hosts;
pub mod http;
pub mod load;
pub mod manifests;
pub mod parts;
pub mod ports;
pub mod postgres;
pub mod proxy;
pub mod runs;
pub mod server;
pub mod terminal;
