//! [Hot Aisle](https://hotaisle.xyz): virtual machines and whole servers with GPUs of AMD.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of both, `naming` how a virtual machine,
//! which is made without a name, is told from others.

#![warn(missing_docs)]

mod client;
mod machines;
mod naming;
mod offers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_catalog_offers::VendorRows;
use dstack_compute::config::HotAisleConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned,
    PROVISIONING_TIMEOUT, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};

use client::Client;
use naming::Naming;

/// How long a server may take until its agent answers: its operating system is installed first.
const SERVER_TIMEOUT: Duration = Duration::from_secs(55 * 60);

/// The kind of backends for Hot Aisle.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(HotAisleKind { env })
}

#[derive(Debug)]
struct HotAisleKind {
    env: Env,
}

impl HotAisleKind {
    fn client(&self, config: &HotAisleConfig) -> Result<Client, String> {
        Client::new(&self.env, config.creds.api_key.expose(), &config.team_handle)
    }
}

const API_KEY: &[&str] = &["creds", "api_key"];

fn refused(field: &[&str], details: String) -> ConfigureError {
    ConfigureError::Credentials {
        fields: vec![field.iter().map(|part| (*part).to_owned()).collect()],
        details: Some(details),
    }
}

#[async_trait]
impl CloudKind for HotAisleKind {
    type Config = HotAisleConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    fn provisioning_timeout(instance_type: &str) -> Duration {
        match instance_type.starts_with("bm-") {
            true => SERVER_TIMEOUT,
            false => PROVISIONING_TIMEOUT,
        }
    }

    async fn check(&self, config: HotAisleConfig) -> Result<HotAisleConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let teams = client.teams().await;
        let teams = teams.map_err(|error| configure_error(&error, &[API_KEY]))?;
        let team = &config.team_handle;
        if teams.is_empty() {
            return Err(refused(API_KEY, "its user has no team".to_owned()));
        }
        let Some(found) = teams.iter().find(|one| one.handle == *team && !one.invitation) else {
            let details = format!("the user of the API key is not in a team '{team}'");
            return Err(refused(&["team_handle"], details));
        };
        let roles = found.effective_roles.as_ref();
        if roles.is_some_and(|roles| !roles.iter().any(|role| role == "operator")) {
            let details = format!("it has not the role 'operator' in the team '{team}'");
            return Err(refused(API_KEY, details));
        }
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: HotAisleConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(HotAisle {
            client: kind.client(&config)?,
            regions: config.regions,
            sells_bare_metal: config.bare_metal == Some(true),
            rows: Cached::of_offers(&kind.env),
            naming: Naming::default(),
            kind,
        }))
    }
}

/// The backend of one team, and what was fetched of late for it.
#[derive(Debug)]
struct HotAisle {
    kind: Kind<HotAisleKind>,
    /// `None`: all.
    regions: Option<Vec<String>>,
    sells_bare_metal: bool,
    client: Client,
    /// What is free.
    rows: Cached<VendorRows>,
    naming: Naming,
}

#[async_trait]
impl Backend for HotAisle {
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

    fn is_at(&self, owned: &Owned, place: &JobProvisioningData) -> bool {
        machines::is_at(owned, place)
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.end_owned(owned).await
    }
}
