//! Requests through the forwarder, to peers that behave well and badly: over TCP with a real server in front, or in memory in
//! virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod connections;
mod failures;
mod harness;
mod limits;
mod prefix;
mod retries;
mod smuggling;
mod splits;
mod starting;
mod streaming;
mod timeouts;
mod websockets;
