//! Why nobody could be identified.

use dstack_system::causes_of;
use oauth2::{ErrorResponseType, RequestTokenError, StandardErrorResponse};
use serde_json::Value;

use crate::error::ApiError;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why. What it says is for whoever logs in; the cause is for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginError {
    /// The provider did not answer.
    #[error("{provider} cannot be reached from this server at the moment. Try again in a while")]
    Unreachable {
        /// What people call it.
        provider: &'static str,
        /// What the HTTP client said.
        #[source]
        cause: Cause,
    },
    /// It takes too long.
    #[error("{provider} did not answer this server in time. Try again in a while")]
    Slow {
        /// What people call it.
        provider: &'static str,
    },
    /// An answer of another kind.
    #[error(
        "{provider} does not answer this server as it should. Try again in a while; if it lasts, ask the server's \
         administrator to look at its log"
    )]
    Odd {
        /// What people call it.
        provider: &'static str,
        /// What could not be read of it.
        #[source]
        cause: Cause,
    },
    /// A code that was used, has expired, or was made up.
    #[error("{provider} does not accept the code. It may have expired: start the login again")]
    Code {
        /// What people call it.
        provider: &'static str,
        /// What the provider, or the check of its answer, said.
        #[source]
        cause: Cause,
    },
    /// It does not know this server.
    #[error(
        "{provider} does not accept this server. Ask the server's administrator to check client_id, client_secret and the \
         registered redirect URI"
    )]
    Client {
        /// What people call it.
        provider: &'static str,
        /// What the provider, or the check of its answer, said.
        #[source]
        cause: Cause,
    },
    /// What it says of the account is not proven.
    #[error("What {provider} says of the account cannot be verified. Start the login again")]
    Unproven {
        /// What people call it.
        provider: &'static str,
        /// What is wrong.
        #[source]
        cause: Cause,
    },
}

impl LoginError {
    /// Why a code was not exchanged for a token.
    pub(super) fn from_exchange<RE, T>(
        provider: &'static str,
        error: RequestTokenError<RE, StandardErrorResponse<T>>,
    ) -> Self
    where
        RE: std::error::Error + Send + Sync + 'static,
        T: ErrorResponseType + std::fmt::Display + Send + Sync + 'static,
    {
        let code = match &error {
            RequestTokenError::Request(_) => {
                let cause = Box::new(error);
                return Self::Unreachable { provider, cause };
            }
            RequestTokenError::ServerResponse(answer) => serde_json::to_value(answer.error()).ok(),
            // GitHub says so with status 200.
            RequestTokenError::Parse(_, body) => serde_json::from_slice::<Value>(body)
                .ok()
                .and_then(|mut body| body.get_mut("error").map(Value::take)),
            RequestTokenError::Other(_) => None,
        };
        let cause: Cause = match &code {
            Some(code) => format!("it says {code}").into(),
            None => Box::new(error),
        };
        match code.as_ref().and_then(Value::as_str) {
            Some("invalid_grant" | "bad_verification_code") => Self::Code { provider, cause },
            Some(
                "invalid_client"
                | "unauthorized_client"
                | "incorrect_client_credentials"
                | "redirect_uri_mismatch",
            ) => Self::Client { provider, cause },
            _ => Self::Odd { provider, cause },
        }
    }
}

impl From<LoginError> for ApiError {
    fn from(error: LoginError) -> Self {
        tracing::warn!(causes = %causes_of(&error), "a login failed: {error}");
        Self::client(error.to_string())
    }
}
