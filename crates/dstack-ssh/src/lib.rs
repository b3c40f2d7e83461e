//! Connections to hosts over SSH, in process: no `ssh` program, no local ports.
//!
//! [`Connection`] is a client connection (through any chain of jump hosts) over which commands run and streams to the
//! remote side's ports are opened. [`keys`] makes, parses and normalises keys. [`inbox`] is the flow control that both
//! this client and the job agent's server put between the protocol and slow readers.

#![warn(missing_docs)]

pub mod channel;
mod ciphers;
pub mod client;
pub mod error;
pub mod inbox;
pub mod key_limits;
pub mod keys;

pub use channel::{ChannelStream, ExecChannel, ExitStatus};
pub use client::{ConnectOptions, Connection, Endpoint, Output, RemoteSocket};
pub use error::{Refusal, SshError};
