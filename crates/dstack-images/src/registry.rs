//! Asks a registry: the OCI distribution API v2 (manifest or index, then the configuration blob).
//!
//! Answers are bounded in size and in time: whoever may plan a run chooses whom the server asks.

use std::sync::{Once, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use dstack_plan::ImageConfig;
use reqwest::Client;
use tokio::time::timeout;

use crate::reference::is_digest;
use crate::{ImageError, Images, Reference, RegistryCredentials};

mod auth;
mod error;
pub(crate) mod manifest;
mod session;

use error::LookupError;
use manifest::{Choice, ConfigBlob, Manifest};
use session::Session;

/// How long and how much a registry may answer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// To open a connection.
    pub connect: Duration,
    /// For a whole lookup, which is about four requests.
    pub total: Duration,
    /// Bytes of a manifest or a configuration (dstack 0.22.5: 4 MiB).
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(4),
            total: Duration::from_secs(10),
            bytes: 4 << 20,
        }
    }
}

/// A client of all registries.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    client: OnceLock<Client>,
}

impl Registry {
    /// Cheap: TLS roots are loaded with the first lookup.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            client: OnceLock::new(),
        }
    }

    fn client(&self) -> Result<&Client, LookupError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        install_crypto();
        let client = Client::builder()
            .user_agent(concat!("dstack/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.limits.connect)
            .build()
            .map_err(LookupError::Setup)?;
        Ok(self.client.get_or_init(|| client))
    }

    async fn look_up(
        &self,
        reference: &Reference,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, LookupError> {
        let mut session = Session::new(self.client()?, self.limits.bytes, reference, credentials);
        let (manifest, architectures) = match session.manifest(reference.manifest()).await? {
            Manifest::Image(image) => (image, None),
            Manifest::Index(index) => {
                let Choice {
                    digest,
                    architectures,
                } = index.choose().ok_or(LookupError::NoPlatform)?;
                let digest = valid(digest)?;
                match session.manifest(&digest).await? {
                    Manifest::Image(image) => (image, Some(architectures)),
                    Manifest::Index(_) => return Err(LookupError::NestedIndex),
                }
            }
        };
        let config: ConfigBlob = session.config(&valid(manifest.config.digest)?).await?;
        let architectures = match architectures {
            Some(architectures) => architectures,
            None => vec![config.architecture().ok_or(LookupError::NoPlatform)?],
        };
        Ok(config.into_image_config(architectures))
    }
}

#[async_trait]
impl Images for Registry {
    async fn config(
        &self,
        image: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, ImageError> {
        let reference = Reference::parse(image)?;
        let result = timeout(self.limits.total, self.look_up(&reference, credentials))
            .await
            .unwrap_or(Err(LookupError::Slow(self.limits.total)));
        result.map_err(|error| {
            tracing::debug!(
                image,
                error = &error as &dyn std::error::Error,
                "No configuration of an image"
            );
            let text = error.explain(reference.registry_name(), credentials.is_some());
            match error.is_transient() {
                true => ImageError::Transient(text),
                false => ImageError::Refused(text),
            }
        })
    }
}

/// A digest goes into a path: it must be one.
fn valid(digest: String) -> Result<String, LookupError> {
    if is_digest(&digest) {
        return Ok(digest);
    }
    Err(LookupError::NotRegistry {
        what: "a manifest with valid digests",
        kind: format!("`{digest}`"),
    })
}

/// Makes ring the crypto of TLS, unless the program chose already.
fn install_crypto() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // Fails only when a provider is installed already, which serves as well.
        drop(rustls::crypto::ring::default_provider().install_default());
    });
}
