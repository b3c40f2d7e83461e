//! A runner over real sockets, running real commands.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]
#![allow(clippy::needless_pass_by_value)]

mod api;
mod end;
mod harness;
mod jobs;
mod load;
mod logs;
mod stops;
