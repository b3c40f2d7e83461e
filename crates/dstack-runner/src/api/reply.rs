//! Answers in the agents' form.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An error answer: status and a plain text.
#[derive(Debug)]
pub(super) struct Error {
    status: StatusCode,
    message: String,
}

impl Error {
    /// With a text for whoever reads it.
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// With the status' own phrase.
    pub(super) fn status(status: StatusCode) -> Self {
        Self::new(status, status.canonical_reason().unwrap_or_default())
    }

    /// Unexpected: 500 without a text.
    pub(super) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "")
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        text(self.status, format!("{}\n", self.message))
    }
}

/// Success without a body: a newline.
pub(super) fn empty() -> Response {
    text(StatusCode::OK, "\n".to_owned())
}

/// Success with a JSON body, which ends with a newline.
pub(super) fn json<T: Serialize>(value: &T) -> Result<Response, Error> {
    let mut body = serde_json::to_vec(value).map_err(|_| Error::internal())?;
    body.push(b'\n');
    let mut response = Response::new(Body::from(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn text(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}
