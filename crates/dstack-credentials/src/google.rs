//! Google: application default credentials (a file, gcloud's, or the metadata server), as bearer tokens.

use std::sync::Arc;

use dstack_system::Secret;
use object_store::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GcpCredentialProvider, GoogleCloudStorageBuilder};

use crate::CredentialError;

/// Gives tokens, and new ones before they end.
#[derive(Debug, Clone)]
pub struct Google {
    provider: GcpCredentialProvider,
}

impl Google {
    /// Nothing is asked for yet.
    ///
    /// # Errors
    /// A file of credentials is there and cannot be read.
    pub fn of_this_machine() -> Result<Self, CredentialError> {
        dstack_http::install_crypto();
        // The bucket is never asked for: tokens are good for everything that their owner may.
        let made = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name("none")
            .build();
        let store = made.map_err(|error| CredentialError::Google(Box::new(error)))?;
        Ok(Self {
            provider: store.credentials().clone(),
        })
    }

    /// Whether requests carry no token: to another endpoint than Google's, unless there is a file of credentials.
    pub fn is_anonymous(endpoint: Option<&str>) -> bool {
        endpoint.is_some() && dstack_system::env::var("GOOGLE_APPLICATION_CREDENTIALS").is_none()
    }

    /// With a token that is known.
    pub fn with_token(token: &Secret) -> Self {
        let credential = GcpCredential {
            bearer: token.expose().to_owned(),
        };
        Self {
            provider: Arc::new(StaticCredentialProvider::new(credential)),
        }
    }

    /// A token for the header `authorization: Bearer …`.
    ///
    /// # Errors
    /// There are no credentials, or Google refuses them.
    pub async fn token(&self) -> Result<String, CredentialError> {
        match self.provider.get_credential().await {
            Ok(credential) => Ok(credential.bearer.clone()),
            Err(error) => Err(CredentialError::Google(Box::new(error))),
        }
    }
}
