//! What can go wrong when a route is called.

use http::StatusCode;
use serde_json::Value;

use crate::error::{BadRequest, ErrorCode};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not a URL of a server.
    #[error("`{url}` is not the URL of a dstack server: expected a form like http://127.0.0.1:3000")]
    Url {
        /// The URL as the user gave it.
        url: String,
    },
    /// The HTTP client cannot be set up on this machine.
    #[error("cannot set up the HTTP client")]
    Setup {
        /// The part of the setup that failed.
        #[source]
        source: dstack_http::SetupError,
    },
    /// No connection comes about, or it breaks before the answer is complete.
    #[error("Failed to connect to dstack server {url}")]
    Connect {
        /// The server's URL.
        url: String,
        /// What the connection failed with.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused for a reason that it names.
    #[error("{msg}")]
    Refused {
        /// What kind of reason.
        code: ErrorCode,
        /// The server's words, shown as they are.
        msg: String,
        /// Fields that are to blame.
        fields: Option<Vec<String>>,
    },
    /// The server does not understand the request.
    #[error("Server validation error:\n{}", pretty(.detail))]
    Validation {
        /// The whole answer.
        detail: Value,
    },
    /// The token is missing or not accepted, or does not permit this.
    #[error("Access to {url} is denied. Please check your access token")]
    Denied {
        /// The route's URL.
        url: String,
        /// The server's own words, if any.
        reason: Option<String>,
    },
    /// No such route or project.
    #[error("Status code 404 when requesting {url}")]
    NotFound {
        /// The route's URL.
        url: String,
    },
    /// The server does not have this route.
    #[error("Status code 405 when requesting {url}")]
    MethodNotAllowed {
        /// The route's URL.
        url: String,
    },
    /// The server has too much to do, or too many logins failed.
    #[error("{msg}")]
    Busy {
        /// The server's words.
        msg: String,
    },
    /// The request has more bytes than the route takes.
    #[error("{msg}")]
    TooLarge {
        /// The server's words.
        msg: String,
    },
    /// Any other refusal.
    #[error("Unexpected error: status code {status} when requesting {url}. Check the server logs")]
    Status {
        /// The HTTP status of the answer.
        status: u16,
        /// The route's URL.
        url: String,
        /// The answer's beginning.
        text: String,
    },
    /// The answer is not what the route promises.
    #[error("the answer of {url} cannot be read: client and server may have different versions")]
    Unreadable {
        /// The route's URL.
        url: String,
        /// Where the answer differs from what is expected.
        #[source]
        source: serde_json::Error,
    },
    /// Something else than a dstack server answers there.
    #[error("{url} does not answer like a dstack server: check the server's URL")]
    NotDstack {
        /// The route's URL.
        url: String,
    },
}

impl ClientError {
    /// From an answer with an error status.
    pub(super) fn from_answer(status: StatusCode, url: String, body: &[u8]) -> Self {
        match status {
            StatusCode::BAD_REQUEST => Self::from_bad_request(url, body),
            StatusCode::TOO_MANY_REQUESTS => Self::Busy {
                msg: reason(body).unwrap_or_else(|| "The server has too much to do".to_owned()),
            },
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge {
                msg: reason(body).unwrap_or_else(|| "The request is too large for the server".to_owned()),
            },
            StatusCode::UNPROCESSABLE_ENTITY => Self::Validation {
                detail: serde_json::from_slice(body).unwrap_or(Value::Null),
            },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Denied {
                url,
                reason: reason(body),
            },
            StatusCode::NOT_FOUND => Self::NotFound { url },
            StatusCode::METHOD_NOT_ALLOWED => Self::MethodNotAllowed { url },
            _ => Self::other(status, url, body),
        }
    }

    fn from_bad_request(url: String, body: &[u8]) -> Self {
        let details = serde_json::from_slice::<BadRequest>(body)
            .map(|body| body.detail)
            .unwrap_or_default();
        match <[_; 1]>::try_from(details) {
            Ok([detail]) => Self::Refused {
                code: detail.code.unwrap_or(ErrorCode::Error),
                msg: detail.msg,
                fields: detail.fields,
            },
            Err(_) => Self::other(StatusCode::BAD_REQUEST, url, body),
        }
    }

    fn other(status: StatusCode, url: String, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body.get(..body.len().min(500)).unwrap_or_default()).into_owned();
        Self::Status {
            status: status.as_u16(),
            url,
            text,
        }
    }

    /// The code of a refusal.
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the server says that there is no such thing.
    pub fn is_not_exists(&self) -> bool {
        self.code() == Some(ErrorCode::ResourceNotExists)
    }
}

/// The server's words in a 401 or 403, wrapped or not.
fn reason(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let detail = body.get("detail").unwrap_or(&body);
    let text = detail.get("msg").unwrap_or(detail);
    text.as_str().map(str::to_owned)
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
