//! The gateway: passes requests to services on by host name, with certificates of its own, and goes on without the server.
//!
//! * [`settings`] — the command line; [`gateway`] — a running gateway; [`run`] — the life of its process.
//! * [`state`] — what is registered, as a value with its file; [`registry`] — who may change it, and what follows.
//! * [`sites`] — what answers at which host name, a value that requests look at.
//! * [`serve`] — listeners, and the checks before a service; [`models`] — models of a project.
//! * [`replicas`] — SSH connections to replicas; [`auth`] — who may use a project, asked of servers.
//! * [`tls`] — certificates; [`api`] — what servers call.

#![warn(missing_docs)]

pub mod api;
pub mod auth;
mod bounded;
pub mod gateway;
mod host_name;
mod log;
pub mod models;
mod only_one;
mod prompts;
mod refusals;
pub mod registry;
pub mod replicas;
pub mod run;
pub mod serve;
pub mod settings;
pub mod sites;
pub mod state;
pub mod tls;

pub use gateway::Gateway;
pub use prompts::{RENDER_PROMPT, render_prompt};
pub use run::run;
pub use settings::Settings;
