//! [Seeweb](https://www.seeweb.it): virtual machines with GPUs of NVIDIA, in Italy, Switzerland and Croatia.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of a machine, `setup` what happens
//! at its first start.

#![warn(missing_docs)]

mod client;
mod machines;
mod offers;
mod setup;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_compute::config::SeewebConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::Client;
use offers::Sold;

/// How long what can be had is taken for true.
const OFFERS_LIFETIME: Duration = Duration::from_secs(60);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for Seeweb.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(SeewebKind { env })
}

#[derive(Debug)]
struct SeewebKind {
    env: Env,
}

impl SeewebKind {
    fn client(&self, config: &SeewebConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_token.expose())
    }
}

#[async_trait]
impl CloudKind for SeewebKind {
    type Config = SeewebConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    /// Docker is installed at the first start, and then the machine is started again.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: SeewebConfig) -> Result<SeewebConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_token"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: SeewebConfig) -> Result<Arc<dyn Backend>, String> {
        let clock = Arc::clone(&kind.env.clock);
        Ok(Arc::new(Seeweb {
            client: kind.client(&config)?,
            regions: config.regions,
            sold: Cached::new(clock, OFFERS_LIFETIME, STALE_LIFETIME),
            kind,
        }))
    }
}

/// The backend of one API token, and what was fetched of late with it.
#[derive(Debug)]
struct Seeweb {
    kind: Kind<SeewebKind>,
    /// `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    /// What there is, with what is free.
    sold: Cached<Sold>,
}

impl Seeweb {
    async fn sold(&self) -> Result<Arc<Sold>, ComputeError> {
        self.sold.get(|| self.fetch_sold()).await
    }
}

#[async_trait]
impl Backend for Seeweb {
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
