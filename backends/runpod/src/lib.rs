//! [Runpod](https://www.runpod.io): containers ("pods") in the vendor's data centers and at hosts of the community, clusters of
//! them, and network volumes.
//!
//! `client` is the vendor's API as far as it is used, `errors` what its refusals mean, `requests` what it is asked for, `offers` what
//! can be had; `pods`, `clusters` and `volumes` are the lives of those, and `inventory` finds what was left behind.

#![warn(missing_docs)]

mod client;
mod clusters;
mod errors;
mod inventory;
mod offers;
mod pieces;
mod pods;
mod requests;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_compute::config::RunpodConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Group, Lifecycle, Owned,
    Removal, Volumes,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::{Client, DataCenter};

/// How long it is taken for true what is in stock.
const STOCK_LIFETIME: Duration = Duration::from_secs(180);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for Runpod.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(RunpodKind { env })
}

#[derive(Debug)]
struct RunpodKind {
    env: Env,
}

impl RunpodKind {
    fn client(&self, config: &RunpodConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for RunpodKind {
    type Config = RunpodConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            multinode: true,
            compute_groups: true,
            volumes: true,
            ..Capabilities::default()
        }
    }

    /// Images are downloaded first.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: RunpodConfig) -> Result<RunpodConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: RunpodConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Runpod {
            client: kind.client(&config)?,
            regions: config.regions,
            may_use_community: config.community_cloud.unwrap_or(false),
            stock: Cached::new(Arc::clone(&kind.env.clock), STOCK_LIFETIME, STALE_LIFETIME),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct Runpod {
    kind: Kind<RunpodKind>,
    /// Data centers, and countries of the community cloud; `None`: all.
    regions: Option<Vec<String>>,
    /// Whether pods at hosts of the community are offered.
    may_use_community: bool,
    client: Client,
    /// What is in stock, by data center.
    stock: Cached<Vec<DataCenter>>,
}

#[async_trait]
impl Backend for Runpod {
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

    fn groups(&self) -> Option<&dyn Lifecycle<Group>> {
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

/// Whether a region is a data center of the vendor (`US-TX-3`) and not a country of the community cloud (`CA`).
fn is_secure_cloud(region: &str) -> bool {
    region.contains('-')
}
