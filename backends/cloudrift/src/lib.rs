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
use dstack_backend::{Cached, Env, configure_error};
use dstack_compute::config::{BackendConfig, CloudRiftConfig, SplitConfig};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::{Client, ImageGroup, InstanceKind};

/// How long what can be had is taken for true.
const OFFERS_LIFETIME: Duration = Duration::from_secs(180);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for CloudRift.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Arc::new(Kind { env })
}

#[derive(Debug, Clone)]
struct Kind {
    env: Env,
}

impl Kind {
    fn client(&self, config: &CloudRiftConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl BackendKind for Kind {
    fn kind(&self) -> BackendType {
        BackendType::CloudRift
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        let BackendConfig::CloudRift(own) = config else {
            return Err(ConfigureError::Invalid(
                "the configuration is not of CloudRift".to_owned(),
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
        let BackendConfig::CloudRift(config) = config else {
            return Err(ComputeError::Configuration("it is not of CloudRift".to_owned()));
        };
        let client = self.client(&config).map_err(ComputeError::Configuration)?;
        let clock = || Arc::clone(&self.env.clock);
        Ok(Arc::new(CloudRift {
            kind: self.clone(),
            regions: config.regions,
            client,
            kinds: Cached::new(clock(), OFFERS_LIFETIME, STALE_LIFETIME),
            images: Cached::new(clock(), OFFERS_LIFETIME, STALE_LIFETIME),
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct CloudRift {
    kind: Kind,
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
