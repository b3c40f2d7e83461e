//! [Lambda](https://lambda.ai): virtual machines with GPUs of NVIDIA.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of a machine, `user_data` what a
//! machine does at its first start.

#![warn(missing_docs)]

mod client;
mod machines;
mod offers;
mod user_data;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_compute::config::LambdaConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use tokio::sync::Mutex;

use client::{Client, Instance, TypeInfo};

/// How long the list of instances serves all machines that are being made: the API takes one request a second.
const LIST_LIFETIME: Duration = Duration::from_secs(10);

/// The kind of backends for Lambda.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(LambdaKind { env })
}

#[derive(Debug)]
struct LambdaKind {
    env: Env,
}

impl LambdaKind {
    fn client(&self, config: &LambdaConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for LambdaKind {
    type Config = LambdaConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    /// Machines boot for 5 to 15 minutes.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(30 * 60)
    }

    async fn check(&self, config: LambdaConfig) -> Result<LambdaConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.instance_types().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: LambdaConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Lambda {
            client: kind.client(&config)?,
            regions: config.regions,
            types: Cached::of_offers(&kind.env),
            listed: Cached::new(Arc::clone(&kind.env.clock), LIST_LIFETIME, Duration::ZERO),
            keys: Mutex::default(),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct Lambda {
    kind: Kind<LambdaKind>,
    /// `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    /// What there is, by name, with where some are free.
    types: Cached<BTreeMap<String, TypeInfo>>,
    /// Instances, for machines that are being made.
    listed: Cached<Vec<Instance>>,
    /// Names of the account's keys, by the key.
    keys: Mutex<HashMap<String, String>>,
}

#[async_trait]
impl Backend for Lambda {
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
