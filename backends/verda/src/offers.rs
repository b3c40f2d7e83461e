use std::collections::BTreeSet;

use dstack_backend::{compute_error, find_offers, tell_uncatalogued};
use dstack_catalog_offers::DiskSize;
use dstack_compute::{Backend as _, ComputeError};
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};

use crate::Verda;

/// The images need as much.
const SMALLEST_DISK_GB: f64 = 50.0;

/// A type that is free at a location, as spot machine or otherwise.
pub(crate) type Free = (String, String, bool);

impl Verda {
    /// What the catalogue has, with what is free now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        if self.regions.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let disk = DiskSize::Configurable(Range::at_least(Memory::from_gb(SMALLEST_DISK_GB)));
        let offers = find_offers(
            &self.catalog,
            self.kind(),
            self.regions.as_deref(),
            requirements,
            &|_| true,
            &|_| disk,
        )?;
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let free = self.free.get(async || self.fetch_free().await).await?;
        let with_availability = |offer: InstanceOffer| {
            let key = (
                offer.instance.name.clone(),
                offer.region.to_string(),
                offer.instance.resources.spot,
            );
            let availability = match free.contains(&key) {
                true => InstanceAvailability::Available,
                false => InstanceAvailability::NotAvailable,
            };
            offer.with_availability(availability, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }

    async fn fetch_free(&self) -> Result<BTreeSet<Free>, ComputeError> {
        let mut free = BTreeSet::new();
        for is_spot in [false, true] {
            let places = self.client.availabilities(is_spot).await;
            for place in places.map_err(|error| compute_error(&error))? {
                let types = place.availabilities.into_iter();
                free.extend(types.map(|name| (name, place.location_code.clone(), is_spot)));
            }
        }
        let names = free.iter().map(|(name, ..)| name.as_str());
        tell_uncatalogued(&self.catalog, "verda", "Verda", names);
        Ok(free)
    }
}
