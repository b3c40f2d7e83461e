//! Bodies of requests and answers.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ApiError;

/// dstack 0.22.5's agent takes 1 MiB, which large jobs exceed.
const LIMIT: usize = 16 << 20;
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// A JSON answer.
pub(super) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            let mut response = Response::new(Body::from(bytes));
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            text(StatusCode::INTERNAL_SERVER_ERROR, "")
        }
    }
}

/// 200 without content.
pub(super) fn empty() -> Response {
    text(StatusCode::OK, "")
}

/// A text with a line end. An error without a message gets its status's name.
pub(super) fn text(status: StatusCode, message: &str) -> Response {
    let unnamed = message.is_empty() && status.is_client_error();
    let message = if unnamed {
        status.canonical_reason().unwrap_or_default()
    } else {
        message
    };
    let mut response = Response::new(Body::from(format!("{message}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, PLAIN);
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// The request's body as one JSON value.
pub(super) async fn read_json<T: DeserializeOwned>(request: Request) -> Result<T, ApiError> {
    if let Some(kind) = request.headers().get(header::CONTENT_TYPE) {
        let essence = kind
            .to_str()
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let message = "Content-Type header is not application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    }
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let body = Limited::new(request.into_body(), LIMIT)
        .collect()
        .await
        .map_err(|error| {
            if error.is::<LengthLimitError>() {
                ApiError::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "Request body must not be larger than 16MB",
                )
            } else {
                bad(error.to_string())
            }
        })?;
    let bytes = body.to_bytes();
    if bytes.is_empty() {
        return Err(bad("Request body must not be empty".to_owned()));
    }
    serde_json::from_slice(&bytes).map_err(|error| bad(format!("Request body is not valid: {error}")))
}
