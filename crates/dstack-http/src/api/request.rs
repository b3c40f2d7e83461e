use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ApiClient, ApiError, TransportError};

/// Pause before the first repetition; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// A request that is longer held up by the API itself is given back to the caller.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One request, while it is put together.
#[must_use = "it is not sent yet"]
pub struct ApiRequest<'a> {
    client: &'a ApiClient,
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Option<Result<Bytes, String>>,
    content_type: HeaderValue,
    headers: Vec<(HeaderName, String)>,
    may_be_repeated: bool,
}

impl fmt::Debug for ApiRequest<'_> {
    /// Without headers, query and body, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<'a> ApiRequest<'a> {
    pub(super) fn new(client: &'a ApiClient, method: Method, path: &str) -> Self {
        Self {
            client,
            may_be_repeated: method.is_safe(),
            method,
            path: path.to_owned(),
            query: Vec::new(),
            body: None,
            content_type: HeaderValue::from_static("application/json"),
            headers: Vec::new(),
        }
    }

    /// With a header of this request alone, which is signed with the rest of it. One that the client or the body has is replaced. A value
    /// with characters that no header has is an error when it is sent.
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// With a parameter in the query.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body of JSON.
    pub fn json(mut self, body: &(impl Serialize + ?Sized)) -> Self {
        let written = serde_json::to_vec(body).map(Bytes::from);
        self.body = Some(written.map_err(|error| error.to_string()));
        self
    }

    /// With the body of a JSON merge patch (RFC 7386).
    pub fn merge_patch(self, body: &(impl Serialize + ?Sized)) -> Self {
        Self {
            content_type: HeaderValue::from_static("application/merge-patch+json"),
            ..self.json(body)
        }
    }

    /// With the body of a form.
    pub fn form(mut self, fields: &[(String, String)]) -> Self {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        self.body = Some(Ok(form.finish().into()));
        self.content_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        self
    }

    /// With a body of another kind.
    pub fn bytes(mut self, content_type: HeaderValue, body: Bytes) -> Self {
        self.content_type = content_type;
        self.body = Some(Ok(body));
        self
    }

    /// Sent again when the answer is lost: to do it twice is as good as once.
    pub const fn repeatable(mut self) -> Self {
        self.may_be_repeated = true;
        self
    }

    /// Sends it; the answer, read as JSON. An empty answer reads as `null`.
    ///
    /// # Errors
    /// There is no answer, one with an error, or one that is not understood.
    pub async fn send<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        let api = self.api();
        let answer = self.send_raw().await?;
        let body = match answer.body() {
            body if body.is_empty() => b"null",
            body => body.as_ref(),
        };
        serde_json::from_slice(body).map_err(|error| ApiError::Malformed {
            api,
            details: error.to_string(),
        })
    }

    /// Sends it; the answer as it is.
    ///
    /// # Errors
    /// There is no answer, or one with an error.
    pub async fn send_raw(self) -> Result<Response<Bytes>, ApiError> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        let mut unclear: Option<ApiError> = None;
        loop {
            let error = match self.attempt().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = error.throttled().unwrap_or(pause);
            if attempt >= self.client.limits.attempts
                || !self.is_worth_another(&error)
                || wait > LONGEST_PAUSE
            {
                // Of an attempt before, which may have made something, it may say nothing.
                let before = unclear.filter(|_| error.is_of_this_attempt_alone());
                return Err(before.unwrap_or(error));
            }
            tracing::debug!(api = self.api(), path = self.path, attempt, %error, "a request is repeated");
            if !error.is_definite() && self.method != Method::GET {
                unclear = Some(error);
            }
            tokio::time::sleep(wait).await;
            attempt += 1;
            pause *= 2;
        }
    }

    fn is_worth_another(&self, error: &ApiError) -> bool {
        match error {
            ApiError::NotSent { .. } => true,
            ApiError::Lost { .. } => self.may_be_repeated,
            ApiError::Status { status, .. } => {
                *status == StatusCode::TOO_MANY_REQUESTS || (self.may_be_repeated && status.is_server_error())
            }
            ApiError::Malformed { .. } => false,
        }
    }

    async fn attempt(&self) -> Result<Response<Bytes>, ApiError> {
        let limit = self.client.limits.timeout;
        let not_sent = |details: String| ApiError::NotSent {
            api: self.api(),
            details,
        };
        // Nobody closes the semaphore.
        let _permit = self.client.permits.acquire().await;
        let request = self.put_together().map_err(not_sent)?;
        let lost = |details: String| ApiError::Lost {
            api: self.api(),
            details,
        };
        let answer = match tokio::time::timeout(limit, self.client.transport.send(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(TransportError::NotSent(details))) => return Err(not_sent(details)),
            Ok(Err(TransportError::Lost(details))) => return Err(lost(details)),
            Err(_) => return Err(lost(format!("no answer within {} s", limit.as_secs()))),
        };
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(ApiError::Status {
            api: self.api(),
            status: answer.status(),
            body: String::from_utf8_lossy(answer.body()).into_owned(),
            retry_after: retry_after(&answer),
        })
    }

    fn put_together(&self) -> Result<Request<Bytes>, String> {
        let mut url = self.client.base.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{}", self.path.trim_start_matches('/')));
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        let body = self.body.clone().transpose()?;
        let mut request = Request::new(body.clone().unwrap_or_default());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = url
            .as_str()
            .parse()
            .map_err(|_| "its address is no URL".to_owned())?;
        *request.headers_mut() = self.client.headers.clone();
        if body.is_some() {
            request
                .headers_mut()
                .insert(CONTENT_TYPE, self.content_type.clone());
        }
        for (name, value) in &self.headers {
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| format!("{name} has characters that no header has"))?;
            // Neither compressed nor shown.
            value.set_sensitive(*name == AUTHORIZATION);
            request.headers_mut().insert(name, value);
        }
        if let Some(signer) = &self.client.signer {
            signer.sign(&mut request)?;
        }
        Ok(request)
    }

    fn api(&self) -> String {
        self.client.base.host_str().unwrap_or_default().to_owned()
    }
}

/// In seconds; dates, which are rare, are not read.
fn retry_after(answer: &Response<Bytes>) -> Option<Duration> {
    let seconds = answer
        .headers()
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}
