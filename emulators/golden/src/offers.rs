//! The recorded catalogue, loaded when it is asked for first.

use std::sync::Arc;

use dstack_catalog::Catalog;
use dstack_catalog_offers::{CatalogQuery, catalog_offers};
use dstack_compute::ComputeError;
use dstack_model::offers::InstanceOffer;
use tokio::sync::OnceCell;

/// Offers of the recorded catalogue.
#[derive(Debug, Clone)]
pub struct Offers {
    catalog: Arc<Catalog>,
    loaded: Arc<OnceCell<()>>,
}

impl Offers {
    /// From this catalogue.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self {
            catalog,
            loaded: Arc::default(),
        }
    }

    /// From what this catalogue has already.
    pub(crate) fn as_it_is(catalog: Arc<Catalog>) -> Self {
        Self {
            catalog,
            loaded: Arc::new(OnceCell::new_with(Some(()))),
        }
    }

    pub(crate) async fn find(&self, query: &CatalogQuery<'_>) -> Result<Vec<InstanceOffer>, ComputeError> {
        self.loaded
            .get_or_init(|| async {
                self.catalog.refresh().await;
            })
            .await;
        catalog_offers(&self.catalog, query).map_err(|error| ComputeError::Configuration(error.to_string()))
    }
}
