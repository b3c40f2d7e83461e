//! Connections to replicas: one SSH connection each, which all requests share.
//!
//! * [`chain`] — the SSH servers on the way, with their keys.
//! * [`link`] — the connection, opened anew whenever it breaks.

pub mod chain;
pub mod link;

pub use chain::{Chain, ChainError};
pub use link::{Link, Reconnects};
