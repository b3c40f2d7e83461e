use std::time::Duration;

use http::StatusCode;

/// Longest part of an answer that is shown.
const SHOWN: usize = 600;

/// Why a request has no answer that can be used. Its texts name no header and no query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request never left this machine: nothing was done.
    #[error("{api} cannot be reached: {details}")]
    NotSent {
        /// Host of the API.
        api: String,
        /// What stood in the way.
        details: String,
    },
    /// The request was sent, and there is no answer: nobody knows whether it was carried out.
    #[error("{api} did not answer: {details}")]
    Lost {
        /// Host of the API.
        api: String,
        /// What happened to the answer.
        details: String,
    },
    /// The API answered with an error.
    #[error("{api} answered {status}{}", shown(.body))]
    Status {
        /// Host of the API.
        api: String,
        /// HTTP status.
        status: StatusCode,
        /// The answer.
        body: String,
        /// When the API wants to be asked again, if it says so.
        retry_after: Option<Duration>,
    },
    /// The API says that it did what it was asked for, in a form that is not understood.
    #[error("{api} answered in a form that is not understood: {details}")]
    Malformed {
        /// Host of the API.
        api: String,
        /// What is wrong with it.
        details: String,
    },
}

impl ApiError {
    /// HTTP status of the answer, if there was one with an error.
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// What the API answered; empty: nothing.
    pub fn body(&self) -> &str {
        match self {
            Self::Status { body, .. } => body,
            _ => "",
        }
    }

    /// Whether the request has certainly not been carried out. An API that answers with an error of its own (5xx) may have
    /// carried it out before.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::NotSent { .. } => true,
            Self::Status { status, .. } => {
                !status.is_server_error() && *status != StatusCode::REQUEST_TIMEOUT
            }
            Self::Lost { .. } | Self::Malformed { .. } => false,
        }
    }

    /// The pause that the API wants before the next request; `None`: it does not complain of too many.
    pub fn throttled(&self) -> Option<Duration> {
        match self {
            Self::Status {
                status: StatusCode::TOO_MANY_REQUESTS,
                retry_after,
                ..
            } => Some(retry_after.unwrap_or(Duration::from_secs(10))),
            Self::Status {
                status: StatusCode::SERVICE_UNAVAILABLE,
                retry_after,
                ..
            } => *retry_after,
            _ => None,
        }
    }
}

fn shown(body: &str) -> String {
    let text = body.trim();
    if text.is_empty() {
        return String::new();
    }
    let cut = text.floor_char_boundary(SHOWN);
    let (shown, rest) = text.split_at(cut);
    format!(": {shown}{}", if rest.is_empty() { "" } else { "…" })
}
