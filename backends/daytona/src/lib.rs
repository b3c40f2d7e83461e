//! [Daytona](https://www.daytona.io): sandboxes as containers, and volumes.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `requests` what is asked for, `sandboxes` and `volumes` are the
//! lives of those, and `inventory` finds what was left behind.

#![warn(missing_docs)]

mod client;
mod inventory;
mod offers;
mod requests;
mod sandboxes;
mod volumes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_compute::config::DaytonaConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Lifecycle, Owned, Removal,
    Volumes,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::Client;
use offers::Facts;

/// Permissions without which a key cannot be used.
const NEEDED_PERMISSIONS: &[&str] = &["delete:sandboxes", "read:limits", "write:sandboxes"];

/// Where sandboxes with GPUs are.
const GPU_REGION: &str = "earth";

/// The kind of backends for Daytona.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(DaytonaKind { env })
}

#[derive(Debug)]
struct DaytonaKind {
    env: Env,
}

impl DaytonaKind {
    fn client(&self, config: &DaytonaConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose())
    }
}

#[async_trait]
impl CloudKind for DaytonaKind {
    type Config = DaytonaConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            volumes: true,
            ..Capabilities::default()
        }
    }

    /// Images are built first.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: DaytonaConfig) -> Result<DaytonaConfig, ConfigureError> {
        const KEY: &[&str] = &["creds", "api_key"];
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let key = client.current_key().await;
        let key = key.map_err(|error| configure_error(&error, &[KEY]))?;
        let has = |needed: &&&str| key.permissions.iter().any(|has| has == **needed);
        let missing: Vec<&str> = NEEDED_PERMISSIONS
            .iter()
            .filter(|needed| !has(needed))
            .copied()
            .collect();
        if !missing.is_empty() {
            return Err(ConfigureError::Credentials {
                fields: vec![KEY.iter().map(|part| (*part).to_owned()).collect()],
                details: Some(format!(
                    "the API key is missing permissions: {}",
                    missing.join(", ")
                )),
            });
        }
        if let Some(regions) = config.regions.as_ref().filter(|regions| !regions.is_empty()) {
            let shared = client.shared_regions().await;
            let shared = shared.map_err(|error| configure_error(&error, &[KEY]))?;
            let ids = shared.as_array().into_iter().flatten();
            let mut known: BTreeSet<&str> = ids.filter_map(|region| region.get("id")?.as_str()).collect();
            known.insert(GPU_REGION);
            if let Some(unknown) = regions.iter().find(|region| !known.contains(region.as_str())) {
                let known: Vec<&str> = known.into_iter().collect();
                return Err(ConfigureError::Invalid(format!(
                    "`regions`: Daytona has no region {unknown}, only {}",
                    known.join(", ")
                )));
            }
        }
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: DaytonaConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Daytona {
            client: kind.client(&config)?,
            regions: config.regions.filter(|regions| !regions.is_empty()),
            facts: Cached::of_offers(&kind.env),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct Daytona {
    kind: Kind<DaytonaKind>,
    /// Shared regions, and `earth` for GPUs; `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    facts: Cached<Facts>,
}

#[async_trait]
impl Backend for Daytona {
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
