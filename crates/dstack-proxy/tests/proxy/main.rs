//! Requests through the forwarder, to peers that behave well and badly: over TCP with a real server in front, or in memory in
//! virtual time.

mod connections;
mod failures;
mod harness;
mod retries;
mod smuggling;
mod streaming;
mod timeouts;
mod websockets;
