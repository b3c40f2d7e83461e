//! End-to-end tests with real parts: the built binaries, the Python CLI, a container engine, PostgreSQL.
//!
//! `cargo xtask test` builds and installs what they need and names it in `DSTACK_TEST_*` variables
//! ([`parts`]); a test that lacks its part prints `skipped: <reason>` and ends.
//!
//! The programs here drive other programs: they may print, read the environment and the wall clock.
#![allow(clippy::disallowed_methods)]

pub mod compat;
pub mod http;
pub mod load;
pub mod parts;
pub mod python;
pub mod server;
pub mod terminal;
