//! The agent binary: kills and restarts, both runtimes, real containers where an engine can be had.

mod docker;
mod kills;
mod process;
mod support;
