//! Job agent: prepares code, runs commands, streams logs, serves SSH.

pub mod ansistrip;
pub mod api;
pub mod args;
pub mod capabilities;
pub mod credentials;
pub mod environment;
pub mod history;
pub mod inactivity;
pub mod job;
pub mod log;
pub mod metrics;
pub mod output;
pub mod paths;
pub mod pty;
pub mod repo;
pub mod runner;
pub mod session;
pub mod shared;
pub mod spool;
pub mod uploads;
pub mod users;

pub use args::RunnerArgs;
pub use dstack_agent_api::runner::{OWN_NETWORK_VARIABLE, TOKEN_VARIABLE};
pub use runner::run;
