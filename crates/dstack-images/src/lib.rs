//! What an image says of itself: user, entrypoint, command, architectures.

use std::fmt::Debug;

use async_trait::async_trait;
use dstack_plan::ImageConfig;
use dstack_system::Secret;

/// Credentials of a registry.
#[derive(Debug, Clone)]
pub struct RegistryCredentials {
    /// User name.
    pub username: String,
    /// Password or token.
    pub password: Secret,
}

/// Why an image's configuration is not known. The text is for users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImageError(pub String);

/// Looks up configurations of images.
#[async_trait]
pub trait Images: Send + Sync + Debug {
    /// Of one image reference (`[registry/]name[:tag|@digest]`).
    ///
    /// # Errors
    /// No such image, no access to it, or nobody answers.
    async fn config(
        &self,
        image: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, ImageError>;
}
