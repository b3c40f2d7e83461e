use dstack_backend::vendor_offers;
use dstack_catalog::collectors::lium::items;
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use crate::Lium;
use crate::requests::told;

impl Lium {
    /// What nodes have free now: any number of their GPUs that their owners allow, with that share of the node.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let fetch = async || {
            let nodes = told(self.client.nodes().await)?;
            let items = items(&nodes).map_err(|error| ComputeError::Unclear(error.to_string()))?;
            Ok(VendorRows::new(items))
        };
        let rows = self.nodes.get(fetch).await?;
        let offers = vendor_offers(&rows, BackendType::Lium, self.regions.as_deref(), requirements)?;
        let available = offers.into_iter();
        Ok(available
            .map(|offer| offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Runner))
            .collect())
    }
}
