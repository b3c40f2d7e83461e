//! A gateway over real sockets, with replicas behind real SSH servers.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::too_many_arguments
)]

mod acme;
mod api;
mod auth;
mod changes;
mod http2;
mod requests;
mod restart;
mod support;
mod tls;
mod token;
