//! The HTTP APIs of shim, runner and gateway: types, routes and clients.
//!
//! Both agents follow dstack 0.22.5's conventions: JSON bodies in which `null` and a missing field mean the zero
//! value, plain-text errors, and no request from an agent to the server, ever.

#![warn(missing_docs)]

pub mod container;
pub mod gateway;
pub mod gateway_client;
pub mod http;
pub mod peer;
pub mod proof;
pub mod runner;
pub mod runner_client;
pub mod shim;
pub mod shim_client;
pub mod stream;

mod base64_bytes;
pub(crate) mod lenient;
