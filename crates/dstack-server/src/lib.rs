//! The server: HTTP handlers, authentication, config.yml; wires the engine.
//!
//! * [`handlers`] — one module per area, on the route table of `dstack-api`.
//! * [`api`] — what happens before a handler: version, authentication, project, guard, body.
//! * [`startup`] — from an empty directory to a serving process.

pub mod access;
pub mod api;
pub mod backends;
pub mod blobs;
mod cli_config;
mod compat;
pub mod config;
mod config_backends;
mod connections;
pub mod docs;
pub mod doctor;
pub mod engine_handle;
pub mod error;
pub mod handlers;
pub mod images;
pub mod import;
mod job_maker;
pub mod late_offers;
pub mod live;
pub mod log_store;
pub mod login;
mod outbound;
pub mod overload;
pub mod plugins;
mod prometheus;
mod proxy;
pub mod render;
mod request;
pub mod retention;
mod run_resources;
pub mod services;
pub mod settings;
pub mod site;
pub mod startup;
pub mod state;
pub mod templates_repo;
pub mod version;
pub mod wiring;

pub use config_backends::rounds::Waits as ConfigWaits;
pub use dstack_control::EngineHandle;
pub use engine_handle::NoEngine;
pub use job_maker::JobMaker;
pub use settings::Settings;
pub use startup::{
    BoxFuture, EngineContext, EngineStart, Reloaded, Reloader, ServerError, ServerOptions, StartedEngine,
    StopEngine, serve,
};
pub use state::{
    AppState, Auth, Control, Data, DefaultPermissions, Edge, EngineParts, SharedPermissions, Verbs,
};
