//! The client of the CLI.

mod address;
mod error;

use std::time::Duration;

use dstack_http::{ClientOptions, TlsRoots};
use dstack_system::Secret;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use serde_json::Value;

pub use error::ClientError;

use crate::VERSION;
use crate::endpoint::{Body, Endpoint, Method, PathParams};
use address::{Address, fill_path};

const MAX_ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// A busy server is asked so often.
const BUSY_TRIES: u32 = 8;
/// Longer waits are left to the caller.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Talks to a server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    address: Address,
    token: Option<Secret>,
    version: Option<String>,
}

impl Client {
    /// A client for the server at `url` (`http://`, `https://` or `http+unix://` with a percent-encoded socket path).
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn new(url: &str, token: Option<Secret>) -> Result<Self, ClientError> {
        let address = Address::parse(url)?;
        let options = ClientOptions {
            // A login is finished by whoever began it: the server tells by a cookie.
            cookies: true,
            tls_roots: match address.is_tls() {
                true => TlsRoots::System,
                false => TlsRoots::None,
            },
            unix_socket: address.socket().map(Into::into),
            ..ClientOptions::default()
        };
        let http = options.build().map_err(|source| ClientError::Setup { source })?;
        Ok(Self {
            http,
            address,
            token,
            version: Some(VERSION.to_owned()),
        })
    }

    /// Sends another version (or none) in `X-API-VERSION`.
    #[must_use]
    pub fn with_version(mut self, version: Option<String>) -> Self {
        self.version = version;
        self
    }

    /// The server's URL as given, without a trailing slash.
    pub fn base_url(&self) -> &str {
        self.address.shown()
    }

    /// Returns the token that is sent with every call.
    pub const fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// The underlying HTTP client, for requests outside the API.
    pub const fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// Calls a route: `client.call::<RunsGet>("main", &request)`, `client.call::<ServerGetInfo>((), &Nothing)`.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or answers something else than the route promises.
    pub async fn call<E: Endpoint>(
        &self,
        params: impl PathParams,
        request: &E::Request,
    ) -> Result<E::Response, ClientError> {
        let path = fill_path(E::ROUTE.path, &params.values());
        let url = self.address.join(&path);
        let answer = self
            .send(&url, || {
                let builder = self.request(E::ROUTE.method, &url);
                match E::ROUTE.body {
                    Body::None | Body::Upload => builder,
                    Body::Json | Body::OptionalJson => builder.json(request),
                    Body::Query => builder.query(&query_pairs(request)),
                }
            })
            .await?;
        self.decode::<E>(&path, answer).await
    }

    /// Uploads a file whose name is the hash of its content.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn upload<E: Endpoint>(
        &self,
        params: impl PathParams,
        query: &[(&str, &str)],
        hash: &str,
        content: impl Into<bytes::Bytes>,
    ) -> Result<E::Response, ClientError> {
        let path = fill_path(E::ROUTE.path, &params.values());
        let url = self.address.join(&path);
        let content = content.into();
        let answer = self
            .send(&url, || {
                let length = u64::try_from(content.len()).unwrap_or(u64::MAX);
                let part = reqwest::multipart::Part::stream_with_length(content.clone(), length)
                    .file_name(hash.to_owned());
                let form = reqwest::multipart::Form::new().part("file", part);
                self.request(E::ROUTE.method, &url).query(query).multipart(form)
            })
            .await?;
        self.decode::<E>(&path, answer).await
    }

    fn request(&self, method: Method, url: &str) -> reqwest::RequestBuilder {
        let method = match method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
        };
        let mut headers = HeaderMap::new();
        if let Some(version) = self
            .version
            .as_deref()
            .and_then(|version| HeaderValue::from_str(version).ok())
        {
            headers.insert("x-api-version", version);
        }
        let builder = self.http.request(method, url).headers(headers);
        match &self.token {
            Some(token) => builder.bearer_auth(token.expose()),
            None => builder,
        }
    }

    /// Failures to connect are repeated, and calls that a busy server refused to look at: nothing was done yet, so nothing
    /// can be done twice.
    async fn send(
        &self,
        url: &str,
        build: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ClientError> {
        tracing::debug!(url, "request");
        let (mut tries, mut busy) = (1, 1);
        loop {
            match build().send().await {
                Ok(answer) => match busy_for(&answer) {
                    Some(wait) if busy < BUSY_TRIES && wait <= LONGEST_WAIT => {
                        tracing::debug!(?wait, "the server is busy");
                        // Longer each time: those that were refused together must not come back together for ever.
                        tokio::time::sleep(wait + PAUSE * (busy - 1) / 2).await;
                        busy += 1;
                    }
                    _ => return Ok(answer),
                },
                Err(error) if error.is_connect() && tries < MAX_ATTEMPTS => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "cannot connect");
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(source) => {
                    return Err(ClientError::Connect {
                        url: self.base_url().to_owned(),
                        source: source.without_url(),
                    });
                }
            }
        }
    }

    async fn decode<E: Endpoint>(
        &self,
        path: &str,
        answer: reqwest::Response,
    ) -> Result<E::Response, ClientError> {
        let url = format!("{}{path}", self.base_url());
        let status = answer.status();
        let json = answer
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        let body = answer.bytes().await.map_err(|source| ClientError::Connect {
            url: self.base_url().to_owned(),
            source: source.without_url(),
        })?;
        if !status.is_success() {
            return Err(ClientError::from_answer(status, url, &body));
        }
        serde_json::from_slice(&body).map_err(|source| {
            if json {
                ClientError::Unreadable { url, source }
            } else {
                ClientError::NotDstack { url }
            }
        })
    }
}

/// How long a server that has too much to do (429) asks to wait.
fn busy_for(answer: &reqwest::Response) -> Option<Duration> {
    if answer.status() != http::StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let seconds = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A flat object as query parameters; nulls are left out.
fn query_pairs(request: &impl serde::Serialize) -> Vec<(String, String)> {
    let Ok(Value::Object(map)) = serde_json::to_value(request) else {
        return Vec::new();
    };
    map.into_iter()
        .filter_map(|(key, value)| match value {
            Value::Null => None,
            Value::String(text) => Some((key, text)),
            other => Some((key, other.to_string())),
        })
        .collect()
}

#[cfg(test)]
mod tests;
