//! [Lium](https://lium.io): containers ("pods") on nodes of many providers, and network volumes.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `requests` what is asked for, `pods` and `volumes` are the
//! lives of those, `rents` what became of calls for pods, and `inventory` finds what was left behind.

#![warn(missing_docs)]

mod client;
mod inventory;
mod offers;
mod pods;
mod rents;
mod requests;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_catalog_offers::VendorRows;
use dstack_compute::config::LiumConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Lifecycle, Owned, Removal,
    Volumes,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::{Client, Pod};

/// How long the list of pods serves all that start or end: an account may make 60 calls in a minute.
const LIST_LIFETIME: Duration = Duration::from_secs(9);

/// How long what the API can do is taken for known.
const FEATURES_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// The kind of backends for Lium.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(LiumKind { env })
}

#[derive(Debug)]
struct LiumKind {
    env: Env,
}

impl LiumKind {
    fn client(&self, config: &LiumConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for LiumKind {
    type Config = LiumConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            volumes: true,
            ..Capabilities::default()
        }
    }

    /// Images are pulled first. The ten minutes of dstack 0.22.5 are too short for large ones on slow nodes.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: LiumConfig) -> Result<LiumConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: LiumConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Lium {
            client: kind.client(&config)?,
            regions: config.regions.filter(|regions| !regions.is_empty()),
            nodes: Cached::of_offers(&kind.env),
            listed: Cached::new(Arc::clone(&kind.env.clock), LIST_LIFETIME, Duration::ZERO),
            features: Cached::new(Arc::clone(&kind.env.clock), FEATURES_LIFETIME, Duration::ZERO),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late.
#[derive(Debug)]
struct Lium {
    kind: Kind<LiumKind>,
    /// Country and subdivision, such as `us-ca`; `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    /// What nodes have.
    nodes: Cached<VendorRows>,
    listed: Cached<Vec<Pod>>,
    /// What the API can do.
    features: Cached<Vec<String>>,
}

#[async_trait]
impl Backend for Lium {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.find_offers(requirements).await
    }

    fn containers(&self) -> Option<&dyn Lifecycle<Container>> {
        Some(self)
    }

    fn volumes(&self) -> Option<&dyn Volumes> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.remove_by_kind(owned).await
    }
}
