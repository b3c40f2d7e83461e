//! [Vast.ai](https://vast.ai): containers at hosts of a marketplace.
//!
//! `client` is the vendor's API as far as it is used, `offers` what the marketplace has, `requests` what is asked for, `containers` the
//! life of a container.

#![warn(missing_docs)]

mod client;
mod containers;
mod offers;
mod requests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{CloudKind, Env, Kind, configure_error};
use dstack_compute::config::VastAiConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Lifecycle, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::Client;
use offers::Searches;

/// How long what can be had is taken for true.
const OFFERS_LIFETIME: Duration = Duration::from_secs(180);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for Vast.ai.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(VastAiKind { env })
}

#[derive(Debug)]
struct VastAiKind {
    env: Env,
}

impl VastAiKind {
    fn client(&self, config: &VastAiConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for VastAiKind {
    type Config = VastAiConfig;

    fn capabilities() -> Capabilities {
        Capabilities::default()
    }

    /// Images are pulled first, by hosts of all kinds. The ten minutes of dstack 0.22.5 are too short for large ones (its issue 2809).
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: VastAiConfig) -> Result<VastAiConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: VastAiConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(VastAi {
            client: kind.client(&config)?,
            // dstack 0.22.5 stores an empty list for all.
            regions: config.regions.filter(|regions| !regions.is_empty()),
            may_use_community: config.community_cloud.unwrap_or(true),
            searches: Mutex::default(),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct VastAi {
    kind: Kind<VastAiKind>,
    /// Places such as `us-california`; `None`: all.
    regions: Option<Vec<String>>,
    /// Whether hosts outside of data centers are offered.
    may_use_community: bool,
    client: Client,
    searches: Mutex<Searches>,
}

#[async_trait]
impl Backend for VastAi {
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

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.destroy(&owned.id).await
    }
}
