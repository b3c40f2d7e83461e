//! [Microsoft Azure](https://azure.microsoft.com): virtual machines.
//!
//! `client` is Azure Resource Manager as far as it is used, `auth` has tokens for it, `errors` says what refusals mean. `configure` checks
//! configurations, `offers` has what can be had, `images` and `network` what machines are made of and in, `machines` is their life,
//! `gateways` that of machines for gateways, and `pieces` what Azure makes with them.

#![warn(missing_docs)]

mod auth;
mod certificate;
mod cli;
mod client;
mod configure;
mod errors;
mod gateways;
mod images;
mod machines;
mod names;
mod network;
mod offers;
mod pieces;
mod tags;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, Env};
use dstack_compute::config::{AzureConfig, AzureCreds, BackendConfig, SplitConfig, TypedConfig as _};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, GatewayMachine, Lifecycle, Machine,
    Owned, Removal,
};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use serde_json::Value;

use client::{Client, Thing};
use network::Networks;
use offers::Stock;
use pieces::Piece;

/// How long a list holds that many ask for at the same time, while their machines start or end.
const LIST_LIFETIME: Duration = Duration::from_secs(5);

/// The kind of backends for Azure.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Arc::new(AzureKind { env })
}

/// Not by `CloudKind`: the name of the project is that of its resource group.
#[derive(Debug, Clone)]
struct AzureKind {
    env: Env,
}

#[async_trait]
impl BackendKind for AzureKind {
    fn kind(&self) -> BackendType {
        BackendType::Azure
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            gateways: true,
            ..Capabilities::default()
        }
    }

    async fn configure(&self, project: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        let invalid = ConfigureError::Invalid;
        let config = AzureConfig::of(config.clone());
        let config = config.ok_or_else(|| invalid("the configuration is not one of azure".to_owned()))?;
        if let Some(problem) = configure::problem(&config) {
            return Err(invalid(problem));
        }
        let client = Client::new(&self.env, &config).map_err(|details| match &config.creds {
            AzureCreds::Default(_) => ConfigureError::Credentials {
                fields: vec![vec!["creds".to_owned()]],
                details: Some(details),
            },
            AzureCreds::Client(_) => ConfigureError::Invalid(details),
        })?;
        let checked: BackendConfig = configure::check(&client, project, config).await?.into();
        Ok(checked.split())
    }

    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        let wrong = |text: &str| ComputeError::Configuration(text.to_owned());
        let config = BackendConfig::join(&with_regions(stored)).map_err(ComputeError::Configuration)?;
        let config = AzureConfig::of(config).ok_or_else(|| wrong("the configuration is not one of azure"))?;
        let group = config.resource_group.clone();
        let group = group
            .filter(|group| names::is_name(group))
            .ok_or_else(|| wrong("`resource_group` is not set"))?;
        if !names::is_name(&config.subscription_id) {
            return Err(wrong("`subscription_id` is no id of Azure"));
        }
        let regions = configure::regions(&config);
        if let Some(region) = regions.iter().find(|region| !names::is_name(region)) {
            return Err(ComputeError::Configuration(format!(
                "`regions`: {region} is none"
            )));
        }
        Ok(Arc::new(Azure {
            client: Client::new(&self.env, &config).map_err(ComputeError::Configuration)?,
            regions,
            group,
            config,
            stock: Cached::of_offers(&self.env),
            lists: Mutex::default(),
            everywhere: Cached::new(Arc::clone(&self.env.clock), LIST_LIFETIME, Duration::ZERO),
            networks: Networks::default(),
            kind: self.clone(),
        }))
    }
}

/// Rows of earlier versions of dstack have the regions by another name.
fn with_regions(stored: &SplitConfig) -> SplitConfig {
    let mut config: Value = serde_json::from_str(&stored.config).unwrap_or_default();
    let fields = config.as_object_mut();
    let regions = fields.and_then(|fields| {
        let is_set = fields.get("regions").is_some_and(Value::is_array);
        let locations = fields.remove("locations").filter(|_| !is_set)?;
        fields.insert("regions".to_owned(), locations)
    });
    drop(regions);
    SplitConfig {
        config: match config.is_object() {
            true => config.to_string(),
            false => stored.config.clone(),
        },
        auth: stored.auth.clone(),
    }
}

/// The backend of one resource group, and what was looked up in it.
#[derive(Debug)]
struct Azure {
    kind: AzureKind,
    client: Client,
    config: AzureConfig,
    regions: Vec<String>,
    group: String,
    /// What can be had, by region.
    stock: Cached<HashMap<String, Stock>>,
    /// By resource group.
    lists: Mutex<HashMap<String, Arc<Lists>>>,
    /// For machines of which it is not noted in which resource group they are.
    everywhere: Cached<Everywhere>,
    /// By region, and what machines are for.
    networks: Networks,
}

/// What a resource group has, as it was a moment ago.
#[derive(Debug)]
struct Lists {
    machines: Cached<Vec<Thing<client::Machine>>>,
    pieces: Cached<Vec<Piece>>,
}

/// The machines of all resource groups that the credentials may see, as they were a moment ago.
#[derive(Debug)]
struct Everywhere {
    machines: Vec<Thing<client::Machine>>,
    /// The credentials see all of the subscription; or else the present resource group only.
    is_whole: bool,
}

impl Azure {
    fn lists(&self, group: &str) -> Arc<Lists> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = || Arc::clone(&self.kind.env.clock);
        let new = || Lists {
            machines: Cached::new(clock(), LIST_LIFETIME, Duration::ZERO),
            pieces: Cached::new(clock(), LIST_LIFETIME, Duration::ZERO),
        };
        let key = group.to_lowercase();
        Arc::clone(lists.entry(key).or_insert_with(|| Arc::new(new())))
    }
}

#[async_trait]
impl Backend for Azure {
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

    fn gateways(&self) -> Option<&dyn Lifecycle<GatewayMachine>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    fn is_at(&self, owned: &Owned, place: &JobProvisioningData) -> bool {
        owned.name.eq_ignore_ascii_case(&place.instance_id)
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.end_owned(owned).await
    }
}

#[cfg(test)]
mod tests {
    use dstack_compute::config::Credential;
    use serde_json::json;

    use super::*;

    #[test]
    fn regions_of_old_rows_are_found() {
        let with = |config: Value| {
            let stored = SplitConfig {
                config: config.to_string(),
                auth: Credential::new("{}"),
            };
            let config: Value = serde_json::from_str(&with_regions(&stored).config).unwrap();
            config["regions"].clone()
        };
        assert_eq!(with(json!({"locations": ["eastus"]})), json!(["eastus"]));
        assert_eq!(
            with(json!({"locations": ["eastus"], "regions": null})),
            json!(["eastus"])
        );
        assert_eq!(
            with(json!({"locations": ["eastus"], "regions": ["westus2"]})),
            json!(["westus2"])
        );
    }
}
