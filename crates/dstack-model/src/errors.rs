//! Codes of errors.

use serde::{Deserialize, Serialize};

/// Codes that clients act upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The code of errors without one of their own.
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
