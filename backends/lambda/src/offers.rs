use dstack_backend::{compute_error, offers_in, tell_uncatalogued};
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;

use crate::Lambda;

impl Lambda {
    /// What the catalogue has, which is each type in each region, with what is free now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let catalog = &self.kind.env.catalog;
        let regions = self.regions.as_deref();
        let offers = offers_in(catalog, BackendType::Lambda, regions, requirements)?;
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let fetch = async || {
            let types = self.client.instance_types().await;
            let types = types.map_err(|error| compute_error(&error))?;
            let names = types.keys().map(String::as_str);
            tell_uncatalogued(catalog, "lambdalabs", "Lambda", names);
            Ok(types)
        };
        let types = self.types.get(fetch).await?;
        let with_availability = |offer: InstanceOffer| {
            let info = types.get(&offer.instance.name);
            let mut free = info
                .into_iter()
                .flat_map(|info| &info.regions_with_capacity_available);
            let availability = match free.any(|region| *region.name == *offer.region) {
                true => InstanceAvailability::Available,
                false => InstanceAvailability::NotAvailable,
            };
            offer.with_availability(availability, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }
}
