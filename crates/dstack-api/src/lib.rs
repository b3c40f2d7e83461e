//! The route table of the server: method, path, permission, body and response of every route.
//!
//! The server's router, its authorization tests and the client of the CLI are all made from [`routes`].

#![warn(missing_docs)]

pub mod client;
pub mod endpoint;
pub mod error;
pub mod openapi;
pub mod responses;
pub mod routes;

pub use client::{Client, ClientError};
pub use endpoint::{Body, Described, Effect, Endpoint, Guard, Method, Nothing, PathParams, RouteInfo, Trail};
pub use error::{BadRequest, ErrorCode, ErrorDetail};
pub use routes::{DESCRIPTIONS, ROUTES};

/// The version of this API; also of server and client.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
