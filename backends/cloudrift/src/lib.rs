//! [CloudRift](https://www.cloudrift.ai): virtual machines in data centers of several owners.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of a machine.

#![warn(missing_docs)]

mod client;
mod machines;
mod offers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_compute::config::CloudRiftConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::{Client, ImageGroup, InstanceKind};

/// The kind of backends for CloudRift.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(CloudRiftKind { env })
}

#[derive(Debug)]
struct CloudRiftKind {
    env: Env,
}

impl CloudRiftKind {
    fn client(&self, config: &CloudRiftConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for CloudRiftKind {
    type Config = CloudRiftConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    /// Machines start slowly.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(30 * 60)
    }

    async fn check(&self, config: CloudRiftConfig) -> Result<CloudRiftConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: CloudRiftConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(CloudRift {
            client: kind.client(&config)?,
            regions: config.regions,
            kinds: Cached::of_offers(&kind.env),
            images: Cached::of_offers(&kind.env),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct CloudRift {
    kind: Kind<CloudRiftKind>,
    /// Data centers; `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    /// What there is, with how many are free.
    kinds: Cached<Vec<InstanceKind>>,
    images: Cached<Vec<ImageGroup>>,
}

#[async_trait]
impl Backend for CloudRift {
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
        self.terminate(&owned.id).await
    }
}
