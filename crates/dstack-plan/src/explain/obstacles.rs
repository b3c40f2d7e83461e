//! What keeps an offer or an instance from being taken.

use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use super::distance;
use crate::matching::{Defaults, Machine, Mismatch, mismatches};
use crate::offers::{Query, Unwanted};

/// Of one offer; no texts, since only a few of many offers are ever shown.
#[derive(Debug)]
pub(super) struct Obstacles {
    pub(super) mismatches: Vec<Mismatch>,
    pub(super) unwanted: Option<Unwanted>,
    /// How far it is from what was asked for.
    pub(super) distance: f64,
}

impl Obstacles {
    pub(super) fn of_offer(query: &Query, offer: &Offer) -> Self {
        Self::new(query, offer, query.counts(offer).err())
    }

    /// Of an instance that was made of this offer. That the offers of instances name no zones does not count against them.
    pub(super) fn of_instance(query: &Query, offer: &Offer) -> Self {
        let unwanted = query.counts(offer).err();
        Self::new(
            query,
            offer,
            unwanted.filter(|unwanted| *unwanted != Unwanted::Zone),
        )
    }

    fn new(query: &Query, offer: &Offer, unwanted: Option<Unwanted>) -> Self {
        let machine = Machine::whole(&offer.instance.resources, offer.price);
        let mismatches: Vec<Mismatch> =
            mismatches(&query.requirements, machine, Defaults::Enforced).collect();
        let far: f64 = mismatches.iter().map(distance::of_mismatch).sum();
        Self {
            distance: far + unwanted.as_ref().map_or(0.0, distance::of_unwanted),
            mismatches,
            unwanted,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.mismatches.len() + usize::from(self.unwanted.is_some())
    }

    /// In words.
    pub(super) fn texts(&self) -> Vec<String> {
        let mismatches = self.mismatches.iter().map(ToString::to_string);
        mismatches
            .chain(self.unwanted.iter().map(ToString::to_string))
            .collect()
    }
}
