//! What of the offers is tried.

use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::JobProvisioningData;

use super::in_zone_of;

/// What backends offer for a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AvailableOffers {
    /// Those that are tried, cheapest first.
    pub best: Vec<Offer>,
    /// How many are available, tried or not.
    pub total: usize,
}

impl AvailableOffers {
    /// Of all offers for a query, cheapest first: those that are available, in the zone of the cluster's first instance
    /// where that has one; at most `limit` of them are kept.
    pub fn select(offers: &[Offer], master: Option<&JobProvisioningData>, limit: usize) -> Self {
        let mut found = Self::default();
        for offer in offers.iter().filter(|offer| offer.availability.is_available()) {
            let zoned = master.map(|master| in_zone_of(offer.clone(), Some(master)));
            let zones = zoned.as_ref().unwrap_or(offer).availability_zones.as_ref();
            if zones.is_some_and(Vec::is_empty) {
                continue;
            }
            if found.best.len() < limit {
                found.best.push(zoned.unwrap_or_else(|| offer.clone()));
            }
            found.total += 1;
        }
        found
    }

    /// The price of the cheapest; infinite when there is none.
    pub(crate) fn price(&self) -> f64 {
        self.best.first().map_or(f64::INFINITY, |offer| offer.price)
    }
}
