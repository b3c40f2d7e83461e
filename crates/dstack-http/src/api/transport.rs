use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};

use crate::{LazyClient, ServerTls};

/// Largest answer that is read. Lists of whole clouds are below.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// The request never left this machine.
    NotSent(String),
    /// It may have arrived.
    Lost(String),
}

/// Carries requests to an API: over the network, or in tests to an emulator in the same process, under the same clock.
#[async_trait]
pub trait Transport: Send + Sync + Debug {
    /// Sends a request, and reads the whole answer.
    ///
    /// # Errors
    /// There is none.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError>;

    /// One for servers that are trusted otherwise than those of vendors; `None`: this one does, as it has no TLS.
    fn with_tls(&self, _tls: &ServerTls) -> Option<Arc<dyn Transport>> {
        None
    }
}

#[async_trait]
impl Transport for LazyClient {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let client = self
            .get()
            .map_err(|error| TransportError::NotSent(error.to_string()))?;
        let request =
            reqwest::Request::try_from(request).map_err(|error| TransportError::NotSent(texts(&error)))?;
        let mut answer = client.execute(request).await.map_err(|error| {
            match error.is_connect() || error.is_builder() {
                true => TransportError::NotSent(texts(&error)),
                false => TransportError::Lost(texts(&error)),
            }
        })?;
        let mut whole = Response::new(Bytes::new());
        *whole.status_mut() = answer.status();
        *whole.headers_mut() = std::mem::take(answer.headers_mut());
        let mut body = Vec::new();
        while let Some(piece) = answer
            .chunk()
            .await
            .map_err(|error| TransportError::Lost(texts(&error)))?
        {
            if body.len() + piece.len() > MAX_ANSWER {
                let megabytes = MAX_ANSWER / (1024 * 1024);
                return Err(TransportError::Lost(format!(
                    "the answer has more than {megabytes} MB"
                )));
            }
            body.extend_from_slice(&piece);
        }
        *whole.body_mut() = body.into();
        Ok(whole)
    }

    fn with_tls(&self, tls: &ServerTls) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Self::with_tls(self, tls.clone())))
    }
}

/// The error and its causes, without the address, which may hold keys.
fn texts(error: &reqwest::Error) -> String {
    dstack_system::causes(error)
        .map(|cause| match cause.downcast_ref::<reqwest::Error>() {
            Some(own) => match () {
                () if own.is_timeout() => "it took too long".to_owned(),
                () if own.is_connect() => "no connection".to_owned(),
                () => "the connection broke".to_owned(),
            },
            None => cause.to_string(),
        })
        .collect::<Vec<_>>()
        .join(": ")
}
