//! Machines on which agents run: how they are reached, and how the agents come there.
//!
//! * [`pool`] — one SSH connection for each host, shared by everything that talks to it.
//! * [`deploy`] — sets up the agent of a host, step by step, and takes it off again.
//! * [`this_machine`] — the agent of the server's own machine.

#![warn(missing_docs)]

pub mod deploy;
pub mod pool;
pub mod this_machine;
pub mod unreachable;
