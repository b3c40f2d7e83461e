//! What a handler refuses, and how each refusal looks on the wire.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use dstack_api::{BadRequest, ErrorCode, ErrorDetail};
use dstack_control::ControlError;
use dstack_logs::LogError;
use dstack_store::{StoreError, Unavailable};
use dstack_system::causes_of;
use serde_json::{Value, json};

use crate::blobs::BlobError;

const SLOW: &str = "The request's body did not arrive in time. Check the connection and try again";

/// An answer other than 200.
#[derive(Debug)]
pub enum ApiError {
    /// 400 with a code.
    Client {
        /// Tells clients which refusal this is.
        code: ErrorCode,
        /// Message, shown to users as it is.
        msg: String,
        /// Paths of the fields to blame.
        fields: Vec<Vec<String>>,
    },
    /// 400 with a plain text.
    Plain(&'static str),
    /// 401: the call has no token.
    NotAuthenticated,
    /// 403: the token belongs to nobody.
    InvalidToken,
    /// 403 by the route's guard.
    Denied,
    /// 403: the token is not good for this.
    OutOfScope(String),
    /// 403 by the handler.
    Forbidden(String),
    /// 404: the project.
    NotFound,
    /// 408: the client has stopped sending.
    Slow,
    /// 413: the body is longer than the route takes.
    TooLarge {
        /// The most that the route takes, with its unit.
        limit: String,
    },
    /// 413: more than one upload may have of the memory for bodies.
    TooLargeUpload {
        /// The most that it may have, with its unit.
        limit: String,
    },
    /// 422 with this body.
    Validation(Value),
    /// 429: come back later.
    TooMany {
        /// What there is too much of.
        msg: &'static str,
        /// When to come back; sent in whole seconds, at least one.
        retry_after: Duration,
    },
    /// 503: come back later.
    Busy(&'static str),
    /// 500; the cause is logged, not sent.
    Internal(Box<dyn std::error::Error + Send + Sync>),
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client { msg, .. } | Self::Forbidden(msg) | Self::OutOfScope(msg) => msg,
            Self::TooMany { msg, .. } => msg,
            Self::Plain(text) | Self::Busy(text) => text,
            Self::NotAuthenticated => "Not authenticated",
            Self::InvalidToken => "Invalid token",
            Self::Denied => "Access denied",
            Self::NotFound => "Not found",
            Self::Slow => SLOW,
            Self::TooLarge { .. } | Self::TooLargeUpload { .. } => "the request is too large",
            Self::Validation(_) => "the request is not valid",
            Self::Internal(_) => "internal error",
        })
    }
}

impl std::error::Error for ApiError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Internal(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

/// Result of a handler.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    /// 400 with code `error`.
    pub fn client(msg: impl Into<String>) -> Self {
        Self::with_code(ErrorCode::Error, msg)
    }

    /// 400 with this code.
    pub fn with_code(code: ErrorCode, msg: impl Into<String>) -> Self {
        Self::Client {
            code,
            msg: msg.into(),
            fields: Vec::new(),
        }
    }

    /// 400 `resource_not_exists` with its usual message.
    pub fn not_exists() -> Self {
        Self::with_code(
            ErrorCode::ResourceNotExists,
            ErrorCode::ResourceNotExists.default_message(),
        )
    }

    /// 400 `resource_exists` with its usual message.
    pub fn exists() -> Self {
        Self::with_code(
            ErrorCode::ResourceExists,
            ErrorCode::ResourceExists.default_message(),
        )
    }

    /// 400: what is to be changed is not what the client has seen.
    pub fn stale() -> Self {
        Self::client("Failed to apply plan. Resource has been changed. Try again or use force apply.")
    }

    /// Returns 400 `repo_does_not_exist`, naming the repo.
    pub fn no_repo(id: &str) -> Self {
        Self::with_code(ErrorCode::RepoDoesNotExist, format!("Repo {id} does not exist"))
    }

    /// Returns 500; the cause is logged, and not shown to the client.
    pub fn internal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Internal(error.into())
    }

    /// As an answer.
    pub fn into_response(self) -> Response<Body> {
        match self {
            Self::Client { code, msg, fields } => bad_request(Some(code), &msg, fields),
            Self::Plain(text) => json_response(StatusCode::BAD_REQUEST, &json!({ "detail": text })),
            Self::NotAuthenticated => {
                let mut response =
                    json_response(StatusCode::UNAUTHORIZED, &json!({"detail": "Not authenticated"}));
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                response
            }
            Self::InvalidToken => wrapped(StatusCode::FORBIDDEN, "Invalid token"),
            Self::Denied => wrapped(StatusCode::FORBIDDEN, "Access denied"),
            Self::OutOfScope(msg) => wrapped(StatusCode::FORBIDDEN, &msg),
            Self::TooMany { msg, retry_after } => {
                let mut response = wrapped(StatusCode::TOO_MANY_REQUESTS, msg);
                let seconds = retry_after.as_millis().div_ceil(1000).max(1);
                if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
                    response.headers_mut().insert(header::RETRY_AFTER, seconds);
                }
                response
            }
            Self::Forbidden(msg) => json_response(StatusCode::FORBIDDEN, &json!({"msg": msg, "code": null})),
            Self::NotFound => wrapped(StatusCode::NOT_FOUND, "Not found"),
            Self::Slow => json_response(StatusCode::REQUEST_TIMEOUT, &json!({ "detail": SLOW })),
            Self::TooLarge { limit } => {
                let text = format!(
                    "The request's body has more than {limit}, the most that this route takes. Upload files instead of \
                     sending them in requests"
                );
                json_response(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "detail": text }))
            }
            Self::TooLargeUpload { limit } => {
                let text = format!(
                    "The upload has more than {limit}, the most that one upload may have: a quarter of \
                     DSTACK_SERVER_MAX_BODY_MEMORY. Leave files out with .gitignore or .dstackignore, or ask the server's \
                     administrator for more"
                );
                json_response(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "detail": text }))
            }
            Self::Validation(body) => json_response(StatusCode::UNPROCESSABLE_ENTITY, &body),
            Self::Busy(text) => {
                let mut response = json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "detail": text }));
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
            Self::Internal(error) => internal(error.as_ref()),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.is_conflict() {
            return Self::client("The resource was changed at the same time. Try again.");
        }
        if error.is_unique_violation() {
            return Self::exists();
        }
        let Some(unavailable) = error.unavailable() else {
            return Self::internal(error);
        };
        tracing::error!(%error, cause = ?std::error::Error::source(&error).map(ToString::to_string), "the database is not available");
        Self::Busy(match unavailable {
            Unavailable::Unreachable => {
                "The server's database cannot be reached at the moment. Try again in a while; if it lasts, ask the \
                 server's administrator to look at the database (DSTACK_DATABASE_URL)"
            }
            Unavailable::DiskFull => {
                "The disk of the server's database is full: nothing can be stored. Ask the server's administrator to \
                 free space there, then try again"
            }
        })
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Refused {
                code,
                message: msg,
                fields,
            } => Self::Client { code, msg, fields },
            ControlError::Forbidden(message) => Self::Forbidden(message),
            ControlError::Store(error) => error.into(),
            ControlError::Internal(error) => Self::Internal(error),
        }
    }
}

impl From<dstack_plan::PlanError> for ApiError {
    fn from(error: dstack_plan::PlanError) -> Self {
        Self::client(error.0)
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Store(error) => error.into(),
            BlobError::Bucket(error) => {
                tracing::error!(%error, cause = %causes_of(&error), "the bucket is not available");
                Self::Busy(
                    "The server's bucket for code and files cannot be used at the moment, and nothing was stored. Try \
                     again in a while; if it lasts, ask the server's administrator to look at the bucket \
                     (DSTACK_SERVER_S3_BUCKET or DSTACK_SERVER_GCS_BUCKET)",
                )
            }
            other => Self::internal(other),
        }
    }
}

impl From<LogError> for ApiError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Token(_) | LogError::UnknownToken(_) | LogError::ReadQuota => {
                Self::client(error.to_string())
            }
            LogError::NameTooLong => Self::Plain("Filename too long"),
            LogError::Away { .. } | LogError::Remote { .. } | LogError::Unusable { .. } => {
                tracing::error!(%error, cause = %causes_of(&error), "the log store cannot be read");
                // As dstack 0.22.5 answers.
                Self::client("Failed to poll logs from log storage")
            }
            other => Self::internal(other),
        }
    }
}

impl From<dstack_system::task::Panicked> for ApiError {
    fn from(error: dstack_system::task::Panicked) -> Self {
        Self::internal(error)
    }
}

fn bad_request(code: Option<ErrorCode>, msg: &str, fields: Vec<Vec<String>>) -> Response<Body> {
    let item = |fields| ErrorDetail {
        msg: msg.to_owned(),
        code,
        fields,
    };
    let detail = match fields.is_empty() {
        true => vec![item(None)],
        false => fields.into_iter().map(|path| item(Some(path))).collect(),
    };
    json_response(StatusCode::BAD_REQUEST, &BadRequest { detail })
}

/// 400 of the version check: a list item whose code is null or `error`.
pub(crate) fn version_error(msg: &str, code: Option<ErrorCode>) -> Response<Body> {
    bad_request(code, msg, Vec::new())
}

fn wrapped(status: StatusCode, msg: &str) -> Response<Body> {
    json_response(status, &json!({"detail": {"msg": msg, "code": null}}))
}

fn internal(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Response<Body> {
    tracing::error!(%error, causes = %causes_of(error), "request failed");
    text_response(
        StatusCode::INTERNAL_SERVER_ERROR,
        "text/plain; charset=utf-8",
        "Internal Server Error",
    )
}

/// A JSON answer.
pub(crate) fn json_response(status: StatusCode, body: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(body) {
        Ok(bytes) => json_bytes(status, bytes),
        Err(error) => internal(&error),
    }
}

/// A JSON answer that is ready.
pub(crate) fn json_bytes(status: StatusCode, bytes: impl Into<Body>) -> Response<Body> {
    text_response(status, "application/json", bytes)
}

pub(crate) fn text_response(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
