//! What this machine may do in clouds: the credentials that it finds in its surroundings, as the vendors' own libraries do.
//!
//! Nothing here knows a user's credentials: those of configured backends are elsewhere.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "google")]
pub mod google;

use std::time::Duration;

use dstack_http::{ClientOptions, SetupError};

/// Why a request cannot be made in this machine's name.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The HTTP client cannot be made.
    #[error(transparent)]
    Client(#[from] SetupError),
    /// No usable AWS credentials were found.
    #[error(
        "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
    )]
    Aws(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The AWS profile assumes a role.
    #[error(
        "the AWS profile {0} assumes a role (`role_arn`), which is not done for profiles: set AWS_PROFILE to the one whose keys assume it \
         (`source_profile`), and name the role in the configuration of the backend (`creds.role_arn`)"
    )]
    AwsProfileRole(String),
    /// No AWS region is set.
    #[error("no AWS region: set AWS_REGION")]
    Region,
    /// Google.
    #[error(
        "no Google credentials: set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`, or give this machine a service account"
    )]
    Google(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A client for services that the administrator configures. `total` bounds a whole request.
///
/// # Errors
/// The certificates of this machine cannot be read.
pub fn http_client(total: Duration) -> Result<reqwest::Client, CredentialError> {
    let options = ClientOptions {
        connect_timeout: Some(CONNECT),
        total_timeout: Some(total),
        ..ClientOptions::default()
    };
    Ok(options.build()?)
}
