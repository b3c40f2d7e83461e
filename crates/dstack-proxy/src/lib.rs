//! The way of requests to services and models.
//!
//! * [`routes`] — which services there are, and where their replicas are: a value that is swapped as a whole.
//! * [`replica`] — a place where a service answers: its connections, and how many requests are under way there.
//! * [`forward`] — one request to one of the replicas of a service, and its answer.
//! * [`models`] — the API of models, in front of services.
//! * [`body`] — bodies on their way through, and answers of the proxy itself.

#![warn(missing_docs)]

pub mod body;
pub mod forward;
pub mod models;
pub mod replica;
pub mod routes;

pub use body::{BoxError, ProxyBody, refusal};
pub use forward::{Forward, Forwarder};
pub use replica::Replica;
pub use routes::{ChatFormat, Model, Paths, Routes, Service};
