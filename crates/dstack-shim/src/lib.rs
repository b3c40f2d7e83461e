//! Host agent: images, containers, GPUs, volumes.
//!
//! An HTTP API on the host's loopback interface (dstack 0.22.5's `dstack-shim`) over a table of tasks. Tasks run in a
//! [`runtime::Runtime`]: a Docker engine, or plain processes of the host. All that must survive the agent is in the
//! task directories and in the engine; a killed agent picks its tasks up again.

pub mod api;
pub mod cli;
pub mod command;
pub mod components;
pub mod dcgm;
pub mod error;
mod failpoint;
pub mod gpu;
pub mod host;
pub mod hub;
mod interfaces;
pub mod keys;
pub mod log;
pub mod run;
pub mod runtime;
pub mod self_termination;
pub mod settings;
pub mod store;
pub mod task;
pub mod tasks;
mod token;
pub mod volumes;

/// This agent's version, as the server compares it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
