use std::collections::BTreeMap;

use dstack_backend::{compute_error, offers_in};
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;

use crate::CloudRift;
use crate::client::InstanceKind;

impl CloudRift {
    /// What the catalogue has, with what is free now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let catalog = &self.kind.env.catalog;
        let offers = offers_in(
            catalog,
            BackendType::CloudRift,
            self.regions.as_deref(),
            requirements,
        )?;
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let fetch = async || {
            self.client
                .instance_kinds()
                .await
                .map_err(|error| compute_error(&error))
        };
        let kinds = self.kinds.get(fetch).await?;
        let free = free_machines(&kinds);
        let with_availability = |offer: InstanceOffer| {
            let is_free = free
                .get(&(offer.instance.name.as_str(), &*offer.region))
                .is_some_and(|free| *free > 0);
            let availability = match is_free {
                true => InstanceAvailability::Available,
                false => InstanceAvailability::NotAvailable,
            };
            offer.with_availability(availability, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }
}

/// How many are free, by size and data center.
fn free_machines(kinds: &[InstanceKind]) -> BTreeMap<(&str, &str), i64> {
    let variants = kinds.iter().flat_map(|kind| &kind.variants);
    variants
        .flat_map(|variant| {
            let of_regions = variant.available_nodes_per_dc.iter();
            of_regions.map(|(region, free)| ((variant.name.as_str(), region.as_str()), *free))
        })
        .collect()
}
