use std::collections::HashMap;

use async_trait::async_trait;
use dstack_backend::Cached;
use dstack_catalog_offers::VendorRows;
use dstack_compute::config::ManifestConfig;
use dstack_compute::{Backend, BackendKind, ComputeError, Lifecycle, Machine, Owned, Removal};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::{Client, config_scope};
use crate::kind::ManifestKind;
use crate::manifest::{MachineRules, Manifest};
use crate::offers::FreePlaces;
use crate::template::Scope;

/// The backend of one account, and what was fetched of late with it.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) kind: ManifestKind,
    pub(crate) client: Client,
    /// `None`: all.
    pub(crate) regions: Option<Vec<String>>,
    /// The fields of the configuration that templates may use.
    pub(crate) scope: Scope,
    /// What the vendor sells, where the catalogue does not tell.
    pub(crate) sold: Cached<VendorRows>,
    /// What is free, of what the catalogue has.
    pub(crate) free: Cached<FreePlaces>,
    /// By what the account knows keys, by the key.
    pub(crate) keys: Mutex<HashMap<String, serde_json::Value>>,
    /// When the next machine may be asked for.
    pub(crate) next_making: Mutex<Instant>,
}

impl Machines {
    /// # Errors
    /// A field is missing, or cannot be sent.
    pub(crate) fn open(kind: ManifestKind, config: ManifestConfig) -> Result<Self, String> {
        Ok(Self {
            client: Client::new(&kind.env, kind.kind, &kind.manifest, &config)?,
            scope: config_scope(&kind.manifest, &config),
            regions: config.regions,
            sold: Cached::of_offers(&kind.env),
            free: Cached::of_offers(&kind.env),
            keys: Mutex::default(),
            next_making: Mutex::new(Instant::now()),
            kind,
        })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.kind.manifest
    }

    pub(crate) fn rules(&self) -> &MachineRules {
        &self.kind.manifest.machine
    }

    /// The vendor's name, for people.
    pub(crate) fn title(&self) -> &str {
        &self.kind.manifest.title
    }
}

#[async_trait]
impl Backend for Machines {
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
