//! [JarvisLabs](https://jarvislabs.ai): virtual machines with GPUs of NVIDIA, and without, in India and Europe.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of a machine.

#![warn(missing_docs)]

mod client;
mod machines;
mod offers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_catalog_offers::VendorRows;
use dstack_compute::config::JarvisLabsConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use tokio::sync::Mutex;

use client::{Client, is_region, region_names};

/// How long the keys of the account are taken for known.
const KEYS_LIFETIME: Duration = Duration::from_secs(60);

/// Until an agent answers: machines may be created for ten minutes before they start.
const PROVISIONING_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// The kind of backends for JarvisLabs.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(JarvisLabsKind { env })
}

#[derive(Debug)]
struct JarvisLabsKind {
    env: Env,
}

impl JarvisLabsKind {
    fn client(&self, config: &JarvisLabsConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for JarvisLabsKind {
    type Config = JarvisLabsConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    fn provisioning_timeout(_instance_type: &str) -> Duration {
        PROVISIONING_TIMEOUT
    }

    async fn check(&self, config: JarvisLabsConfig) -> Result<JarvisLabsConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        let unknown = config.regions.iter().flatten().find(|region| !is_region(region));
        match unknown {
            None => Ok(config),
            Some(unknown) => Err(ConfigureError::Invalid(format!(
                "regions: JarvisLabs has no region '{unknown}' that is known here; there are {}",
                region_names()
            ))),
        }
    }

    fn open(kind: Kind<Self>, config: JarvisLabsConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(JarvisLabs {
            client: kind.client(&config)?,
            regions: config.regions,
            rows: Cached::of_offers(&kind.env),
            keys: Cached::new(Arc::clone(&kind.env.clock), KEYS_LIFETIME, Duration::ZERO),
            registering: Mutex::default(),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct JarvisLabs {
    kind: Kind<JarvisLabsKind>,
    /// `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    /// What is free.
    rows: Cached<VendorRows>,
    /// Keys of the account, without their comments.
    keys: Cached<BTreeSet<String>>,
    /// Held by who looks whether a key is there and adds it: the vendor would take it twice.
    registering: Mutex<()>,
}

#[async_trait]
impl Backend for JarvisLabs {
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
        self.destroy(&owned.id, &owned.region).await
    }
}
