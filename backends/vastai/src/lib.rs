//! [Vast.ai](https://vast.ai): containers at hosts of a marketplace.
//!
//! `client` is the vendor's API as far as it is used, `offers` what the marketplace has, `requests` what is asked for, `containers` the
//! life of a container.

#![warn(missing_docs)]

mod client;
mod containers;
mod offers;
mod requests;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{CloudKind, Env, Kind, RecentFailures, configure_error};
use dstack_compute::config::VastAiConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Lifecycle, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use dstack_system::Secret;

use client::{Account, Client};
use offers::Searches;

/// How long what can be had is taken for true.
const OFFERS_LIFETIME: Duration = Duration::from_secs(180);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for Vast.ai.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(VastAiKind {
        env,
        accounts: Mutex::default(),
    })
}

#[derive(Debug)]
struct VastAiKind {
    env: Env,
    /// Of API keys in use: Vast.ai counts the calls of all that use one.
    accounts: Mutex<Vec<(Secret, Weak<Account>)>>,
}

impl VastAiKind {
    fn client(&self, config: &VastAiConfig) -> Result<Client, String> {
        let key = &config.creds.api_key;
        Client::new(&self.env, key.expose(), self.account(key.expose()))
    }

    fn account(&self, key: &str) -> Arc<Account> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|(_, account)| account.strong_count() > 0);
        let known = accounts.iter().find(|(known, _)| known.expose() == key);
        if let Some(known) = known.and_then(|(_, account)| account.upgrade()) {
            return known;
        }
        let new = Arc::new(Account::new(&self.env));
        accounts.push((key.into(), Arc::downgrade(&new)));
        new
    }
}

#[async_trait]
impl CloudKind for VastAiKind {
    type Config = VastAiConfig;

    fn capabilities() -> Capabilities {
        Capabilities::default()
    }

    /// Images are pulled first, by hosts of all kinds. The ten minutes of dstack 0.22.5 are too short for large ones (its issue 2809).
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: VastAiConfig) -> Result<VastAiConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let checked = client.check_account().await;
        checked.map_err(|error| configure_error(&error, &[&["creds", "api_key"]]))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: VastAiConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(VastAi {
            client: kind.client(&config)?,
            // dstack 0.22.5 stores an empty list for all.
            regions: config.regions.filter(|regions| !regions.is_empty()),
            may_use_community: config.community_cloud.unwrap_or(true),
            searches: Mutex::default(),
            taken: RecentFailures::new(Arc::clone(&kind.env.clock), OFFERS_LIFETIME),
            kind,
        }))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct VastAi {
    kind: Kind<VastAiKind>,
    /// Places such as `us-california`; `None`: all.
    regions: Option<Vec<String>>,
    /// Whether hosts outside of data centers are offered.
    may_use_community: bool,
    client: Client,
    searches: Mutex<Searches>,
    /// Offers that searches may still have, and that were taken by us or others.
    taken: RecentFailures,
}

#[async_trait]
impl Backend for VastAi {
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

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.destroy(&owned.id).await
    }
}
