//! [Vultr](https://www.vultr.com): virtual machines and machines of bare metal, with a private network in each region.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of a machine, `networks` what
//! connects them.

#![warn(missing_docs)]

mod client;
mod machines;
mod networks;
mod offers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_catalog_offers::VendorRows;
use dstack_compute::config::VultrConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned,
    PROVISIONING_TIMEOUT, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use dstack_units::Time;

use client::{Client, PlanType, Vpc};

/// The kind of backends for Vultr.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(VultrKind { env })
}

#[derive(Debug)]
struct VultrKind {
    env: Env,
}

impl VultrKind {
    fn client(&self, config: &VultrConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for VultrKind {
    type Config = VultrConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    fn provisioning_timeout(instance_type: &str) -> Duration {
        match PlanType::of(instance_type) {
            PlanType::Vm => PROVISIONING_TIMEOUT,
            PlanType::BareMetal => Duration::from_secs(55 * 60),
        }
    }

    async fn check(&self, config: VultrConfig) -> Result<VultrConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_key().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: VultrConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Vultr {
            client: kind.client(&config)?,
            regions: config.regions,
            sold: Cached::of_offers(&kind.env),
            making_network: tokio::sync::Mutex::default(),
            networks: Mutex::default(),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct Vultr {
    kind: Kind<VultrKind>,
    /// `None` or empty: all.
    regions: Option<Vec<String>>,
    client: Client,
    sold: Cached<VendorRows>,
    /// Held while a network is looked for and made.
    making_network: tokio::sync::Mutex<()>,
    /// Networks that were made or found here, by region, with the time: those of late may not be listed yet.
    networks: Mutex<HashMap<String, (Time, Vpc)>>,
}

impl Vultr {
    fn lock_networks(&self) -> MutexGuard<'_, HashMap<String, (Time, Vpc)>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for Vultr {
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
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.delete_any(&owned.id).await
    }
}
