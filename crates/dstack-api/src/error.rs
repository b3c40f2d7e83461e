//! The shapes of error answers.

use serde::{Deserialize, Serialize};

/// Codes that clients act upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Anything else.
    Error,
    /// The name is taken.
    ResourceExists,
    /// There is no such thing.
    ResourceNotExists,
    /// Credentials of a backend are not accepted.
    InvalidCredentials,
    /// The backend is not configured.
    BackendNotAvailable,
    /// The repo has not been initialised.
    RepoDoesNotExist,
    /// A gateway refused.
    GatewayError,
}

impl ErrorCode {
    /// The message when none is given.
    pub const fn default_message(self) -> &'static str {
        match self {
            Self::Error | Self::RepoDoesNotExist => "",
            Self::ResourceExists => "Resource exists",
            Self::ResourceNotExists => "Resource not found",
            Self::InvalidCredentials => "Invalid credentials",
            Self::BackendNotAvailable => "Backend not available",
            Self::GatewayError => "Gateway error",
        }
    }
}

/// One item of `detail`. The Python client refuses any other key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// What is wrong.
    pub msg: String,
    /// Its code.
    pub code: Option<ErrorCode>,
    /// The request's field that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<String>>,
}

/// Body of an answer 400.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRequest {
    /// What is wrong; one item per field, or just one.
    pub detail: Vec<ErrorDetail>,
}
