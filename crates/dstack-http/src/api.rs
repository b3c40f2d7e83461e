//! Clients of vendors' APIs: one behaviour for time limits, repetitions, parallel calls and what is shown of answers.
//!
//! A request is repeated only when that cannot do anything twice: when it never left this machine, or changes nothing. Whatever
//! else fails is told to the caller, with what is known of it.

mod error;
mod request;
mod transport;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use reqwest::Url;
use tokio::sync::Semaphore;

pub use error::ApiError;
pub use request::ApiRequest;
pub use transport::{Trailers, Transport, TransportError};

/// Adds to each request what proves who asks: for APIs where that is more than a header.
pub trait Signer: Send + Sync + Debug {
    /// Signs a request, which is not changed any more afterwards.
    ///
    /// # Errors
    /// It cannot be signed; why, for users.
    fn sign(&self, request: &mut http::Request<bytes::Bytes>) -> Result<(), String>;
}

/// How an API is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiLimits {
    /// Longest time for an answer.
    pub timeout: Duration,
    /// How often a request is sent at most, where it may be repeated.
    pub attempts: u32,
    /// Requests under way at the same time.
    pub parallel: usize,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            attempts: 3,
            parallel: 16,
        }
    }
}

/// A client of one API, as one account.
#[derive(Debug, Clone)]
pub struct ApiClient {
    transport: Arc<dyn Transport>,
    base: Url,
    headers: HeaderMap,
    signer: Option<Arc<dyn Signer>>,
    limits: ApiLimits,
    permits: Arc<Semaphore>,
}

impl ApiClient {
    /// A client without credentials. Paths of requests are below `base`.
    pub fn new(transport: Arc<dyn Transport>, base: Url, limits: ApiLimits) -> Self {
        Self {
            transport,
            base,
            headers: HeaderMap::new(),
            signer: None,
            limits,
            permits: Arc::new(Semaphore::new(limits.parallel)),
        }
    }

    /// Sends this header with each request. Its value is never shown.
    ///
    /// # Errors
    /// The value cannot be sent in a header, as credentials with a line break cannot.
    pub fn with_secret_header(
        mut self,
        name: HeaderName,
        value: &str,
    ) -> Result<Self, http::header::InvalidHeaderValue> {
        let mut value = HeaderValue::from_str(value)?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Signs each request.
    #[must_use]
    pub fn with_signer(self, signer: Arc<dyn Signer>) -> Self {
        Self {
            signer: Some(signer),
            ..self
        }
    }

    /// A request that changes nothing.
    pub fn get(&self, path: &str) -> ApiRequest<'_> {
        ApiRequest::new(self, Method::GET, path)
    }

    /// A request that may change something.
    pub fn post(&self, path: &str) -> ApiRequest<'_> {
        ApiRequest::new(self, Method::POST, path)
    }

    /// A request that sets something.
    pub fn put(&self, path: &str) -> ApiRequest<'_> {
        ApiRequest::new(self, Method::PUT, path)
    }

    /// A request that changes something that is there.
    pub fn patch(&self, path: &str) -> ApiRequest<'_> {
        ApiRequest::new(self, Method::PATCH, path)
    }

    /// A request that removes something.
    pub fn delete(&self, path: &str) -> ApiRequest<'_> {
        ApiRequest::new(self, Method::DELETE, path)
    }
}

#[cfg(test)]
mod tests;
