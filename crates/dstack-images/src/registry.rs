//! Asks a registry: the OCI distribution API v2 (manifest or index, then the configuration blob).
//!
//! Whoever may plan a run chooses whom the server asks. So answers are bounded in size and in time, and only networks that the
//! administrator allows are reached, by the registry and by whatever it leads to: a service for tokens, a store of blobs.

use std::time::Duration;

use async_trait::async_trait;
use dstack_http::{ClientOptions, GuardedClient, Network, OutboundPolicy};
use dstack_plan::ImageConfig;
use dstack_system::chain;
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
    client: GuardedClient,
}

/// How long it may take to find out on what kind of network a registry is that did not answer.
const NETWORK_LIMIT: Duration = Duration::from_secs(1);

impl Registry {
    /// Cheap: TLS roots are loaded with the first lookup.
    pub fn new(limits: Limits, policy: OutboundPolicy) -> Self {
        let options = ClientOptions {
            connect_timeout: Some(limits.connect),
            ..ClientOptions::default()
        };
        Self {
            limits,
            client: GuardedClient::new(policy, options),
        }
    }

    /// Whether the registry is inside, where users are not told more than that it is of no use.
    async fn is_inside(&self, reference: &Reference) -> bool {
        let network = timeout(NETWORK_LIMIT, self.client.network_of(reference.host_name())).await;
        !matches!(network, Ok(Network::Public))
    }

    async fn look_up(
        &self,
        reference: &Reference,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, LookupError> {
        let mut session = Session::new(&self.client, self.limits.bytes, reference, credentials);
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
        let error = match result {
            Ok(config) => return Ok(config),
            Err(error) => error,
        };
        let registry = reference.registry_name();
        if error.may_probe() && self.is_inside(&reference).await {
            tracing::warn!(image, error = %chain(&error), "no configuration of an image, from a registry that is not public");
            // Whether it may be answered later would tell, too.
            return Err(ImageError::Transient(error::explain_inside(registry)));
        }
        tracing::debug!(image, error = %chain(&error), "no configuration of an image");
        Err(error.with_text(error.explain(registry, credentials.is_some())))
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
