//! [Cudo Compute](https://www.cudocompute.com): virtual machines that are composed of CPUs, memory, GPUs and a disk.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `images` what machines start with, `machines` the life of a
//! machine.

#![warn(missing_docs)]

mod client;
mod images;
mod machines;
mod offers;

use std::sync::Arc;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_compute::config::CudoConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use http::StatusCode;

use client::Client;
use images::Images;
use offers::Sold;

/// The kind of backends for Cudo.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(CudoKind { env })
}

#[derive(Debug)]
struct CudoKind {
    env: Env,
}

impl CudoKind {
    fn client(&self, config: &CudoConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose(), &config.project_id)
    }
}

#[async_trait]
impl CloudKind for CudoKind {
    type Config = CudoConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    /// The key first, then the project: one that there is not, or that the key may not use, is a wrong `project_id`.
    async fn check(&self, config: CudoConfig) -> Result<CudoConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_key().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        let checked = client.check_project().await;
        checked.map_err(|error| match error.status() {
            Some(StatusCode::NOT_FOUND) => ConfigureError::Credentials {
                fields: vec![vec!["project_id".to_owned()]],
                details: Some(error.to_string()),
            },
            _ => configure_error(&error, &[&["project_id"]]),
        })?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: CudoConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Cudo {
            client: kind.client(&config)?,
            regions: config.regions,
            sold: Cached::of_offers(&kind.env),
            images: Cached::of_offers(&kind.env),
            kind,
        }))
    }
}

/// The backend of one project.
#[derive(Debug)]
struct Cudo {
    kind: Kind<CudoKind>,
    /// Data centers; `None` or empty: all.
    regions: Option<Vec<String>>,
    client: Client,
    sold: Cached<Sold>,
    /// Machines that were offered start also while it is not told what can be had.
    images: Cached<Images>,
}

#[async_trait]
impl Backend for Cudo {
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
