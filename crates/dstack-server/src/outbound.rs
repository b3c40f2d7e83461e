//! Requests to services that the administrator configures (login providers, plugins), on whatever network they are: bounded in
//! size (in time by the caller), and never redirected.

use std::pin::Pin;

use axum::http::{Request, Response};
use dstack_http::{ClientOptions, LazyClient, Redirects, SetupError};
use oauth2::AsyncHttpClient;

/// More than any of them answers.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// A client cannot be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// On the way.
    #[error("the request failed")]
    Failed(#[from] reqwest::Error),
    /// The body is longer than [`MAX_RESPONSE_BYTES`].
    #[error("the answer is larger than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge,
    /// It cannot be sent.
    #[error("the request is not valid")]
    Invalid(#[from] axum::http::Error),
}

/// A client of all of them. Cheap: TLS roots are loaded with the first request.
#[derive(Debug)]
pub(crate) struct Http(LazyClient);

impl Default for Http {
    fn default() -> Self {
        Self(LazyClient::new(ClientOptions {
            // Tokens must not be carried elsewhere.
            redirects: Redirects::Never,
            ..ClientOptions::default()
        }))
    }
}

impl Http {
    /// Sends a request and reads the answer.
    pub(crate) async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, HttpError> {
        let mut answer = self.0.get()?.execute(request.try_into()?).await?;
        let mut builder = Response::builder().status(answer.status());
        if let Some(headers) = builder.headers_mut() {
            *headers = answer.headers().clone();
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(HttpError::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(builder.body(body)?)
    }
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Vec<u8>>, HttpError>> + Send + 'c>>;

    fn call(&'c self, request: Request<Vec<u8>>) -> Self::Future {
        Box::pin(self.send(request))
    }
}
