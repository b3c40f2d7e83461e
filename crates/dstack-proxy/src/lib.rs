//! The way of requests to services and models.
//!
//! * [`routes`] — which services there are, and where their replicas are: a value that is swapped as a whole.
//! * [`replica`] — a place where a service answers: its connections, whether it works, and how many requests are under way there.
//! * [`balance`] — which replica gets a request.
//! * [`split`] — which side of a roll-out gets it.
//! * `prefix` — the same, so that those whose prompts begin alike get to the same.
//! * [`forward`] — one request to one of the replicas of a service, and its answer.
//! * [`exchange`] — one question to a replica, and its answer, of bounded size.
//! * [`grpc`] — one call of gRPC to a replica.
//! * [`probe`] — asks one replica whether it answers.
//! * [`models`] — the API of models, in front of services.
//! * [`body`] — bodies on their way through, and answers of the proxy itself.
//! * [`client`] — who sent a request.
//! * [`stats`] — what is counted of the requests of each service.
//! * [`access_log`] — a line of the log for each request, for those who ask for it.
//! * [`limits`] — how many requests may be under way.
//! * [`rate_limit`] — how often clients may ask.

#![warn(missing_docs)]

pub mod access_log;
pub mod balance;
pub mod body;
pub mod client;
pub mod exchange;
pub mod forward;
pub mod grpc;
mod later;
pub mod limits;
mod media_type;
pub mod models;
#[cfg(test)]
mod nowhere;
mod prefix;
pub mod probe;
pub mod rate_limit;
pub mod replica;
pub mod routes;
pub mod split;
pub mod stats;

pub use body::{BoxError, ProxyBody, refusal};
pub use client::{Client, Scheme};
pub use forward::{Forward, Forwarder, NotReceived, Starter};
pub use limits::Limits;
pub use replica::Replica;
pub use routes::{Balancing, ChatFormat, Model, Paths, Routes, Service};
pub use split::Split;
