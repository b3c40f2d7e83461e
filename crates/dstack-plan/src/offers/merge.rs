//! Offers of several backends as one list.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use dstack_model::offers::InstanceOfferWithAvailability as Offer;

/// Takes the cheapest of the backends' next offers each time, the earlier backend's among equals. Each backend's order
/// is kept, also where it is not by price (Vast.ai orders by score).
pub fn merge<'a, L>(by_backend: impl IntoIterator<Item = L>) -> impl Iterator<Item = &'a Offer>
where
    L: IntoIterator<Item = &'a Offer>,
{
    let mut lists: Vec<L::IntoIter> = by_backend.into_iter().map(L::into_iter).collect();
    let mut heads: BinaryHeap<Reverse<Head<'a>>> = lists
        .iter_mut()
        .enumerate()
        .filter_map(|(list, rest)| {
            Some(Reverse(Head {
                offer: rest.next()?,
                list,
            }))
        })
        .collect();
    std::iter::from_fn(move || {
        let Reverse(Head { offer, list }) = heads.pop()?;
        if let Some(next) = lists.get_mut(list).and_then(Iterator::next) {
            heads.push(Reverse(Head { offer: next, list }));
        }
        Some(offer)
    })
}

struct Head<'a> {
    offer: &'a Offer,
    list: usize,
}

impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_price = self.offer.price.total_cmp(&other.offer.price);
        by_price.then(self.list.cmp(&other.list))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}
