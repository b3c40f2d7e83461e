//! What of the offers is tried.

use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::JobProvisioningData;

use super::in_zone_of;
use crate::volumes::{Location, reach_offer};

/// What backends offer for a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AvailableOffers {
    /// Those that are tried, cheapest first.
    pub best: Vec<Offer>,
    /// How many are available, tried or not.
    pub total: usize,
    /// Backends that have not answered yet: there may be more offers than these.
    pub late: Vec<BackendType>,
}

impl AvailableOffers {
    /// Of all offers for a query, cheapest first: those that are available, in the zone of the cluster's first instance
    /// where that has one; at most `limit` of them are kept. Where the query has volumes, `limit` are kept for each place of these.
    pub fn select(
        offers: &[Offer],
        master: Option<&JobProvisioningData>,
        volumes: &[Location],
        limit: usize,
    ) -> Self {
        let mut found = Self::default();
        let mut left = Limit::new(volumes, limit);
        for offer in offers.iter().filter(|offer| offer.availability.is_available()) {
            let zoned = master.map(|master| in_zone_of(offer.clone(), Some(master)));
            let zones = zoned.as_ref().unwrap_or(offer).availability_zones.as_ref();
            if zones.is_some_and(Vec::is_empty) {
                continue;
            }
            if left.takes(zoned.as_ref().unwrap_or(offer)) {
                found.best.push(zoned.unwrap_or_else(|| offer.clone()));
            }
            found.total += 1;
        }
        found
    }

    /// Without what these backends offer, which have not answered yet.
    #[must_use]
    pub fn without(self, late: &[BackendType]) -> Self {
        Self {
            late: late.to_vec(),
            ..self
        }
    }

    /// Whether there is nothing to be tried, but may be once all backends have answered.
    pub const fn are_awaited(&self) -> bool {
        self.best.is_empty() && !self.late.is_empty()
    }

    /// The price of the cheapest; infinite when there is none.
    pub(crate) fn price(&self) -> f64 {
        self.best.first().map_or(f64::INFINITY, |offer| offer.price)
    }
}

/// How many more offers are kept.
struct Limit<'a> {
    /// At each place of a volume.
    at: Vec<(&'a Location, usize)>,
    /// Where there are no volumes.
    anywhere: usize,
}

impl<'a> Limit<'a> {
    fn new(volumes: &'a [Location], limit: usize) -> Self {
        Self {
            at: volumes.iter().map(|place| (place, limit)).collect(),
            anywhere: if volumes.is_empty() { limit } else { 0 },
        }
    }

    /// Whether the offer is kept; it is counted then at each place where it is.
    fn takes(&mut self, offer: &Offer) -> bool {
        if self.at.is_empty() {
            let takes = self.anywhere > 0;
            self.anywhere -= usize::from(takes);
            return takes;
        }
        let is_there = |place: &Location| reach_offer(std::slice::from_ref(place), offer);
        let mut takes = false;
        for (_, left) in self.at.iter_mut().filter(|(place, _)| is_there(place)) {
            takes |= *left > 0;
            *left = left.saturating_sub(1);
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offers::tests::offer;

    #[test]
    fn each_place_of_a_volume_has_its_offers_however_cheap_those_of_another_are() {
        let at = |region: &str, price| Offer {
            region: region.into(),
            ..offer("aws", "m5", price)
        };
        let place = |region: &str| Location {
            backend: BackendType::Aws,
            region: Some(region.to_owned()),
            zone: None,
        };
        let offers = [
            at("here", 1.0),
            at("here", 2.0),
            at("here", 3.0),
            at("there", 4.0),
        ];
        let both = [place("here"), place("there")];
        let found = AvailableOffers::select(&offers, None, &both, 2);
        assert_eq!(
            (found.best, found.total),
            (vec![at("here", 1.0), at("here", 2.0), at("there", 4.0)], 4)
        );
        let found = AvailableOffers::select(&offers, None, &[], 2);
        assert_eq!(found.best, [at("here", 1.0), at("here", 2.0)]);
    }
}
