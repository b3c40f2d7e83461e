//! [TensorDock](https://www.tensordock.com): virtual machines with GPUs on hosts of many owners.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of a machine.

#![warn(missing_docs)]

mod client;
mod machines;
mod offers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_compute::config::TensorDockConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::{Client, Hostnode};

/// How long what can be had is taken for true.
const OFFERS_LIFETIME: Duration = Duration::from_secs(60);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for TensorDock.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(TensorDockKind { env })
}

#[derive(Debug)]
struct TensorDockKind {
    env: Env,
}

#[async_trait]
impl CloudKind for TensorDockKind {
    type Config = TensorDockConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    async fn check(&self, config: TensorDockConfig) -> Result<TensorDockConfig, ConfigureError> {
        let client = Client::new(&self.env, &config.creds).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        // Which of the two is wrong it does not say.
        let pair: [&[&str]; 2] = [&["creds", "api_key"], &["creds", "api_token"]];
        checked.map_err(|error| configure_error(&error, &pair))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: TensorDockConfig) -> Result<Arc<dyn Backend>, String> {
        let clock = Arc::clone(&kind.env.clock);
        Ok(Arc::new(TensorDock {
            client: Client::new(&kind.env, &config.creds)?,
            regions: config.regions,
            hosts: Cached::new(clock, OFFERS_LIFETIME, STALE_LIFETIME),
            kind,
        }))
    }
}

/// The backend of one pair of key and token, and what was fetched of late with it.
#[derive(Debug)]
struct TensorDock {
    kind: Kind<TensorDockKind>,
    /// Countries; `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    /// By their ids.
    hosts: Cached<BTreeMap<String, Hostnode>>,
}

#[async_trait]
impl Backend for TensorDock {
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
