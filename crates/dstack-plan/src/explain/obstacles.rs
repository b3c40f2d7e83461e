//! What keeps an offer or an instance from being taken.

use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use super::distance;
use crate::matching::{Defaults, Machine, Mismatch, mismatches};
use crate::offers::{Query, Unwanted};
use crate::placement::{Candidate, Unfit, Wants};

/// Of one offer or instance; no texts, since only a few of many offers are ever shown.
#[derive(Debug)]
pub(super) struct Obstacles {
    pub(super) mismatches: Vec<Mismatch>,
    pub(super) unwanted: Vec<Unwanted>,
    /// How far it is from what was asked for.
    pub(super) distance: f64,
}

impl Obstacles {
    pub(super) fn of_offer(query: &Query, offer: &Offer) -> Self {
        let machine = Machine::whole(&offer.instance.resources, offer.price);
        let found = mismatches(&query.requirements, machine, Defaults::Enforced).collect();
        Self::new(found, query.all_unwanted(offer))
    }

    /// What a change of the configuration would have to remove for the job to start on the instance at once; `None` where
    /// none helps.
    pub(super) fn of_instance(wants: &Wants<'_>, candidate: &Candidate<'_>) -> Option<Self> {
        let places = wants.against_place(candidate).ok()?;
        let unwanted: Option<Vec<Unwanted>> = places.into_iter().map(of_place).collect();
        let mismatches = wants.nearest_free_share(candidate, distance::of_mismatch)?;
        Some(Self::new(mismatches, unwanted?))
    }

    fn new(mismatches: Vec<Mismatch>, unwanted: Vec<Unwanted>) -> Self {
        let far: f64 = mismatches.iter().map(distance::of_mismatch).sum();
        let elsewhere: f64 = unwanted.iter().map(distance::of_unwanted).sum();
        Self {
            distance: far + elsewhere,
            mismatches,
            unwanted,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.mismatches.len() + self.unwanted.len()
    }

    /// Returns every obstacle in words, mismatches of the requirements first.
    pub(super) fn texts(&self) -> Vec<String> {
        let mismatches = self.mismatches.iter().map(ToString::to_string);
        mismatches
            .chain(self.unwanted.iter().map(ToString::to_string))
            .collect()
    }
}

/// `None` where the configuration has no say.
fn of_place(unfit: Unfit) -> Option<Unwanted> {
    match unfit {
        Unfit::Backend(backend) => Some(Unwanted::Backend(backend)),
        Unfit::Region(region) => Some(Unwanted::Region(region)),
        Unfit::InstanceType(name) => Some(Unwanted::InstanceType(name)),
        Unfit::Zone(_) => Some(Unwanted::Zone),
        _ => None,
    }
}
