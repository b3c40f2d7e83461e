//! Clouds that offer all that the built-in catalogue has of them: for the measure of plans.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_catalog_offers::{CatalogQuery, DiskSize};
use dstack_compute::config::{BackendConfig, SplitConfig};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use crate::Offers;
use crate::idle::capabilities;
use crate::no_capacity::NoCapacity;

#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub(crate) kind: BackendType,
    pub(crate) offers: Offers,
}

#[async_trait]
impl BackendKind for Whole {
    fn kind(&self) -> BackendType {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.kind)
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        Ok(config.split())
    }

    fn open(&self, _: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Backend for Whole {
    fn backend_kind(&self) -> &dyn BackendKind {
        self
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let query = CatalogQuery {
            backend: self.kind,
            locations: None,
            requirements,
            accept: &|_| true,
            disk: &|_| DiskSize::any(),
        };
        let found = self.offers.find(&query).await?;
        let available = |offer: dstack_model::offers::InstanceOffer| {
            offer.with_availability(InstanceAvailability::Unknown, InstanceRuntime::Shim)
        };
        Ok(found.into_iter().map(available).collect())
    }

    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        Some(&NoCapacity)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        Ok(Vec::new())
    }

    async fn remove_owned(&self, _: &Owned) -> Result<Removal, ComputeError> {
        Ok(Removal::Gone)
    }
}
