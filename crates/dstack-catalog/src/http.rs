//! Requests with limits: on time, on size, on attempts, and on how many run at once.

use std::time::Duration;

use bytes::Bytes;
use dstack_http::{ClientOptions, LazyClient, SetupError, redacted};
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

/// A request that failed for good.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No client can be made (no usable TLS roots).
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// No answer, or half of one.
    #[error("no usable answer from {url}")]
    Transport {
        /// What was asked, without its query.
        url: String,
        /// Why it failed.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused.
    #[error("{url} answered {status}")]
    Status {
        /// What was asked, without its query.
        url: String,
        /// HTTP status of the answer.
        status: StatusCode,
    },
    /// The answer is longer than it can be.
    #[error("{url} sent more than {limit} bytes")]
    TooLarge {
        /// What was asked, without its query.
        url: String,
        /// Most bytes that the answer may have.
        limit: u64,
    },
    /// The answer is not what it should be.
    #[error("{url} sent something else than the expected JSON")]
    Json {
        /// What was asked, without its query.
        url: String,
        /// Where it differs.
        #[source]
        source: serde_json::Error,
    },
}

/// How patient to be.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// To open a connection.
    pub connect: Duration,
    /// Between two pieces of an answer.
    pub read: Duration,
    /// For a whole answer.
    pub total: Duration,
    /// Attempts after the first.
    pub retries: u32,
    /// Before the first retry; doubled for each further one.
    pub backoff: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(20),
            total: Duration::from_secs(120),
            retries: 2,
            backoff: Duration::from_secs(1),
        }
    }
}

/// Longest wait a server may ask for between attempts.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Bytes of a JSON answer, at most.
const MAX_JSON: u64 = 256 << 20;

/// Sends requests. Cheap to make: the TLS roots are loaded with the first request.
#[derive(Debug)]
pub struct Http {
    client: LazyClient,
    patience: Patience,
    gate: Semaphore,
}

impl Default for Http {
    fn default() -> Self {
        Self::new(Patience::default(), 8)
    }
}

impl Http {
    /// Sends at most `parallel` requests at once.
    pub fn new(patience: Patience, parallel: usize) -> Self {
        let options = ClientOptions {
            connect_timeout: Some(patience.connect),
            read_timeout: Some(patience.read),
            total_timeout: Some(patience.total),
            ..ClientOptions::default()
        };
        Self {
            client: LazyClient::new(options),
            patience,
            gate: Semaphore::new(parallel),
        }
    }

    /// How patient it is.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// The client itself, for building requests.
    pub fn client(&self) -> Result<&Client, HttpError> {
        Ok(self.client.get()?)
    }

    /// Gets a document of at most `limit` bytes.
    pub async fn get(&self, url: &str, limit: u64) -> Result<Bytes, HttpError> {
        let request = self.client()?.get(url);
        self.fetch(request, limit).await
    }

    /// Gets a JSON document.
    pub async fn get_json<T: DeserializeOwned>(&self, url: &str) -> Result<T, HttpError> {
        let request = self.client()?.get(url);
        self.json(request).await
    }

    /// Posts a JSON document and gets one back.
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        url: &str,
        body: &serde_json::Value,
    ) -> Result<T, HttpError> {
        let request = self.client()?.post(url).json(body);
        self.json(request).await
    }

    /// Sends a request and reads the answer as JSON.
    pub async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, HttpError> {
        let url = url_of(&request);
        let body = self.fetch(request, MAX_JSON).await?;
        serde_json::from_slice(&body).map_err(|source| HttpError::Json { url, source })
    }

    /// Sends a request, again when that may help, and reads the answer.
    pub async fn fetch(&self, request: RequestBuilder, limit: u64) -> Result<Bytes, HttpError> {
        let _turn = self.gate.acquire().await.ok();
        let mut attempt = 0;
        loop {
            let Some(this_time) = request.try_clone() else {
                return once(request, limit).await.map_err(|(error, _)| error);
            };
            match once(this_time, limit).await {
                Ok(body) => return Ok(body),
                Err((error, Retry::Never)) => return Err(error),
                Err((error, _)) if attempt >= self.patience.retries => return Err(error),
                Err((error, Retry::After(asked))) => {
                    let wait = asked
                        .unwrap_or(self.patience.backoff * 2u32.pow(attempt))
                        .min(MAX_RETRY_AFTER);
                    tracing::debug!(%error, attempt, wait_ms = wait.as_millis() as u64, "Asking again");
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
            }
        }
    }
}

enum Retry {
    Never,
    After(Option<Duration>),
}

async fn once(request: RequestBuilder, limit: u64) -> Result<Bytes, (HttpError, Retry)> {
    let url = url_of(&request);
    let response = request.send().await.map_err(|source| {
        (
            HttpError::Transport {
                url: url.clone(),
                source: source.without_url(),
            },
            Retry::After(None),
        )
    })?;
    let status = response.status();
    if !status.is_success() {
        let retry = if is_passing(status) {
            Retry::After(retry_after(&response))
        } else {
            Retry::Never
        };
        return Err((HttpError::Status { url, status }, retry));
    }
    read_body(response, &url, limit).await
}

async fn read_body(mut response: Response, url: &str, limit: u64) -> Result<Bytes, (HttpError, Retry)> {
    let too_large = || {
        (
            HttpError::TooLarge {
                url: url.to_owned(),
                limit,
            },
            Retry::Never,
        )
    };
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if (body.len() + chunk.len()) as u64 > limit => return Err(too_large()),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body.into()),
            Err(source) => {
                let error = HttpError::Transport {
                    url: url.to_owned(),
                    source: source.without_url(),
                };
                return Err((error, Retry::After(None)));
            }
        }
    }
}

/// Whether the same request may succeed a little later.
fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response
        .headers()
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

/// What a request asks, without the query, which may carry keys.
fn url_of(request: &RequestBuilder) -> String {
    let built = request.try_clone().and_then(|request| request.build().ok());
    built.map_or_else(String::new, |request| redacted(request.url()))
}
