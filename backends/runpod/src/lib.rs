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
use dstack_backend::{Cached, Env, configure_error};
use dstack_compute::config::{BackendConfig, RunpodConfig, SplitConfig};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Group, Lifecycle, Owned,
    Removal, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::{Client, DataCenter};

/// How long it is taken for true what is in stock.
const STOCK_LIFETIME: Duration = Duration::from_secs(180);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for Runpod.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Arc::new(Kind { env })
}

#[derive(Debug, Clone)]
struct Kind {
    env: Env,
}

impl Kind {
    fn client(&self, config: &RunpodConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl BackendKind for Kind {
    fn kind(&self) -> BackendType {
        BackendType::Runpod
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multinode: true,
            compute_groups: true,
            volumes: true,
            ..Capabilities::default()
        }
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        let BackendConfig::Runpod(own) = config else {
            return Err(ConfigureError::Invalid(
                "the configuration is not of Runpod".to_owned(),
            ));
        };
        let client = self.client(own).map_err(ConfigureError::Invalid)?;
        client
            .check_account()
            .await
            .map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config.split())
    }

    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        let config = BackendConfig::join(stored).map_err(ComputeError::Configuration)?;
        let BackendConfig::Runpod(config) = config else {
            return Err(ComputeError::Configuration("it is not of Runpod".to_owned()));
        };
        let client = self.client(&config).map_err(ComputeError::Configuration)?;
        Ok(Arc::new(Runpod {
            kind: self.clone(),
            regions: config.regions,
            may_use_community: config.community_cloud.unwrap_or(false),
            client,
            stock: Cached::new(Arc::clone(&self.env.clock), STOCK_LIFETIME, STALE_LIFETIME),
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct Runpod {
    kind: Kind,
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
