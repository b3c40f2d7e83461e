//! [Oracle Cloud Infrastructure](https://www.oracle.com/cloud): virtual and bare-metal machines.
//!
//! `client` is the vendor's APIs as far as they are used, `signing` its signatures, `configure` checks configurations, `offers` what can be
//! had, `images` and `network` what machines are made of and in, `machines` their life, and `inventory` finds what was left behind.

#![warn(missing_docs)]

mod client;
mod configure;
mod images;
mod inventory;
mod machines;
mod network;
mod offers;
mod signing;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, Env};
use dstack_compute::config::{BackendConfig, OciConfig, SplitConfig, TypedConfig as _};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Inventory, Lifecycle, Machine, Owned,
    PROVISIONING_TIMEOUT, Removal,
};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use tokio::sync::Mutex;

use client::Client;
use network::Network;
use offers::Domains;
use signing::{Account, is_region};

/// The kind of backends for OCI.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Arc::new(OciKind { env })
}

/// Not by `CloudKind`: the name of the project is that of its compartment.
#[derive(Debug, Clone)]
struct OciKind {
    env: Env,
}

#[async_trait]
impl BackendKind for OciKind {
    fn kind(&self) -> BackendType {
        BackendType::Oci
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    /// Bare metal starts slowly.
    fn provisioning_timeout(&self, instance_type: &str) -> Duration {
        match instance_type.starts_with("BM.") {
            true => Duration::from_secs(20 * 60),
            false => PROVISIONING_TIMEOUT,
        }
    }

    async fn configure(&self, project: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        let config = OciConfig::of(config.clone());
        let config = config
            .ok_or_else(|| ConfigureError::Invalid("the configuration is not one of oci".to_owned()))?;
        let account = Account::of(&config.creds).map_err(configure::unusable)?;
        let client = Client::new(&self.env, account);
        let checked: BackendConfig = configure::check(&client, project, config).await?.into();
        Ok(checked.split())
    }

    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        let config = BackendConfig::join(stored).map_err(ComputeError::Configuration)?;
        let wrong = |text: &str| ComputeError::Configuration(text.to_owned());
        let config = OciConfig::of(config).ok_or_else(|| wrong("the configuration is not one of oci"))?;
        let account = Account::of(&config.creds)
            .map_err(|(field, why)| ComputeError::Configuration(format!("creds.{field}: {why}")))?;
        let regions = config.regions.unwrap_or_default();
        if let Some(region) = regions.iter().find(|region| !is_region(region)) {
            return Err(ComputeError::Configuration(format!("regions: {region} is none")));
        }
        Ok(Arc::new(Oci {
            client: Client::new(&self.env, account),
            regions,
            compartment: config
                .compartment_id
                .ok_or_else(|| wrong("compartment_id is not set"))?,
            experimental: config.experimental_instance_types.unwrap_or_default(),
            stock: Cached::of_offers(&self.env),
            images: Mutex::default(),
            networks: Mutex::default(),
            kind: self.clone(),
        }))
    }
}

/// The backend of one compartment, and what was looked up in it.
#[derive(Debug)]
struct Oci {
    kind: OciKind,
    client: Client,
    regions: Vec<String>,
    compartment: String,
    /// Shapes that are offered although they are not tested.
    experimental: Vec<String>,
    /// What is free, by region.
    stock: Cached<BTreeMap<String, Domains>>,
    /// Ids of images, by region and listing.
    images: Mutex<HashMap<String, String>>,
    /// By region and project.
    networks: Mutex<HashMap<String, Network>>,
}

impl Oci {
    /// Networks and images are looked up again.
    async fn forget_lookups(&self) {
        self.images.lock().await.clear();
        self.networks.lock().await.clear();
    }
}

#[async_trait]
impl Backend for Oci {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.find_offers(requirements).await
    }

    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await?.into_whole()
    }

    async fn inventory_by_region(&self) -> Result<Inventory, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.terminate(&owned.region, &owned.id).await
    }
}
