//! The API through the router, in process, without an engine: on SQLite, or with `DSTACK_TEST_DATABASE=postgres` on
//! PostgreSQL.

// Helpers of tests may panic.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    clippy::panic
)]

mod access;
mod agent_tokens;
mod backends;
mod blobs;
mod changes;
mod config_backends;
mod doctor;
mod efa_images;
mod effects;
mod errors;
mod events;
mod fleets;
mod health;
mod import;
mod log_store;
mod login;
mod logs;
mod matrix;
mod metrics;
mod openapi;
mod others;
mod overload;
mod own_machine;
mod patience;
mod plugins;
mod projects;
mod proxy;
mod reload;
mod repos;
mod retention;
mod rollouts;
mod root;
mod routers;
mod runs;
mod scaling;
mod secrets;
mod server;
mod services;
mod shared_access;
mod signals;
mod sizes;
mod startup;
mod test_server;
mod tokens;
mod users;
mod volumes;

use test_server::{
    ADMIN, Answer, HandClock, LOGINS, PUBLIC_KEY, Server, TestServer, multipart, new_postgres, on_postgres,
    redacted, request,
};
