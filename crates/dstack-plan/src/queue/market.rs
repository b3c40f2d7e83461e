//! What backends offer, made ready for many questions.

use std::collections::HashMap;

use dstack_model::instances::Resources;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use crate::matching::{Defaults, Machine, check};
use crate::offers::Query;

/// Offers, and which of them have the same resources: those are matched once for each question.
pub(super) struct Market<'m> {
    offers: &'m [Offer],
    /// For each offer, its kind.
    kinds: Vec<usize>,
    /// For each kind, its resources.
    resources: Vec<&'m Resources>,
}

impl<'m> Market<'m> {
    pub(super) fn new(offers: &'m [Offer]) -> Self {
        let mut known: HashMap<&Resources, usize> = HashMap::new();
        let mut resources = Vec::new();
        let kinds = offers
            .iter()
            .map(|offer| {
                *known.entry(&offer.instance.resources).or_insert_with(|| {
                    resources.push(&offer.instance.resources);
                    resources.len() - 1
                })
            })
            .collect();
        Self {
            offers,
            kinds,
            resources,
        }
    }

    /// The place of the first offer that counts and can be had.
    pub(super) fn first(&self, query: &Query) -> Option<usize> {
        let max_price = query.requirements.max_price.unwrap_or(f64::INFINITY);
        let mut verdicts: Vec<Option<bool>> = vec![None; self.resources.len()];
        let mut suits = |kind: usize| {
            let verdict = verdicts.get_mut(kind)?;
            Some(*verdict.get_or_insert_with(|| {
                // The price is not the kind's.
                let resources = self.resources.get(kind);
                resources.is_some_and(|resources| {
                    check(
                        &query.requirements,
                        Machine::whole(resources, 0.0),
                        Defaults::Enforced,
                    )
                    .is_ok()
                })
            }))
        };
        let mut offers = self.offers.iter().zip(&self.kinds);
        offers.position(|(offer, kind)| {
            offer.price <= max_price
                && suits(*kind) == Some(true)
                && offer.availability.is_available()
                && query.admits(offer).is_ok()
        })
    }
}
