//! Job agent: prepares code, runs commands, streams logs, serves SSH.

pub mod repo;
pub mod ssh;
pub mod users;
