//! The API over a real socket, with a runtime made of memory.

// Helpers outside of `#[test]` functions are tests too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod conventions;
mod disks;
mod fake;
mod lifecycle;
mod streaming;
