//! How many offers of each backend are left after each check.

use std::collections::BTreeMap;

use dstack_model::backends::BackendType;
use dstack_model::explanations::{BackendOffers, OfferCheck, RefusedOffers};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use super::obstacles::Obstacles;
use crate::matching::Mismatch;
use crate::offers::Unwanted;

/// Of every backend that offers something, in the order of their types.
pub(super) fn of_backends(offers: &[(&Offer, Obstacles)]) -> Vec<BackendOffers> {
    let mut found: BTreeMap<BackendType, Counts> = BTreeMap::new();
    for (offer, obstacles) in offers {
        let counts = found.entry(offer.backend).or_default();
        counts.count(offer, first_check(offer, obstacles));
    }
    found
        .into_iter()
        .map(|(backend, counts)| counts.of(backend))
        .collect()
}

/// Of one backend.
#[derive(Debug, Default)]
struct Counts {
    total: u64,
    fit: u64,
    cheapest: Option<f64>,
    refused: BTreeMap<OfferCheck, u64>,
}

impl Counts {
    fn count(&mut self, offer: &Offer, fails: Option<OfferCheck>) {
        self.total += 1;
        if let Some(check) = fails {
            *self.refused.entry(check).or_default() += 1;
            return;
        }
        self.fit += 1;
        self.cheapest = Some(self.cheapest.map_or(offer.price, |price| price.min(offer.price)));
    }

    fn of(self, backend: BackendType) -> BackendOffers {
        let refused = self.refused.into_iter();
        BackendOffers {
            backend,
            total: self.total,
            fit: self.fit,
            cheapest: self.cheapest,
            refused: refused
                .map(|(check, offers)| RefusedOffers { check, offers })
                .collect(),
        }
    }
}

/// The first check that the offer does not pass.
fn first_check(offer: &Offer, obstacles: &Obstacles) -> Option<OfferCheck> {
    let mismatches = obstacles.mismatches.iter().map(of_mismatch);
    let first = mismatches.chain(obstacles.unwanted.iter().map(of_unwanted)).min();
    first.or_else(|| (!offer.availability.is_available()).then_some(OfferCheck::Availability))
}

const fn of_mismatch(mismatch: &Mismatch) -> OfferCheck {
    match mismatch {
        Mismatch::NoGpu { .. }
        | Mismatch::GpuVendor { .. }
        | Mismatch::GpuCount { .. }
        | Mismatch::GpuName { .. }
        | Mismatch::ComputeCapability { .. }
        | Mismatch::GpuMemory { .. }
        | Mismatch::GpuTotalMemory { .. } => OfferCheck::Gpu,
        Mismatch::Cpus { .. } | Mismatch::Architecture { .. } => OfferCheck::Cpu,
        Mismatch::Memory { .. } => OfferCheck::Memory,
        Mismatch::Disk { .. } => OfferCheck::Disk,
        Mismatch::Spot { .. } => OfferCheck::Spot,
        Mismatch::Price { .. } => OfferCheck::Price,
    }
}

const fn of_unwanted(unwanted: &Unwanted) -> OfferCheck {
    match unwanted {
        Unwanted::Backend(_) | Unwanted::Region(_) | Unwanted::Zone | Unwanted::Volume => OfferCheck::Place,
        Unwanted::InstanceType(_) | Unwanted::Blocks | Unwanted::Nodes(_) => OfferCheck::InstanceType,
    }
}
