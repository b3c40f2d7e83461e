//! Which nodes of a run are made as one (dstack 0.22.5: pipelines §5.3, backends §3): all nodes of a replica, in clouds that make
//! containers in groups.

use dstack_model::instances::InstanceRuntime;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use crate::offers::AvailableOffers;

/// How the nodes of a replica are made, and of which offers.
#[derive(Debug, Clone, PartialEq)]
pub enum NodesMade {
    /// All at once, by one call.
    AsOne(AvailableOffers),
    /// One after the other, beside the first.
    Apart(AvailableOffers),
}

/// How several nodes are made of these offers, best first: as the best of them is made, and the others that are made in the same way
/// are tried after it. `makes_groups`: the backend of an offer makes containers in groups.
pub fn nodes_made(offers: &AvailableOffers, makes_groups: impl Fn(&Offer) -> bool) -> NodesMade {
    let as_one = offers
        .best
        .first()
        .is_some_and(|offer| is_of_group(offer, &makes_groups));
    let same = made_so(offers, as_one, makes_groups);
    match as_one {
        true => NodesMade::AsOne(same),
        false => NodesMade::Apart(same),
    }
}

/// Those of the offers of which several nodes are made as one, or those of which they are made one after the other.
pub fn made_so(
    offers: &AvailableOffers,
    as_one: bool,
    makes_groups: impl Fn(&Offer) -> bool,
) -> AvailableOffers {
    let mut same = offers.clone();
    same.best
        .retain(|offer| is_of_group(offer, &makes_groups) == as_one);
    same.total = offers.total.saturating_sub(offers.best.len() - same.best.len());
    same
}

fn is_of_group(offer: &Offer, makes_groups: impl Fn(&Offer) -> bool) -> bool {
    offer.instance_runtime == InstanceRuntime::Runner && makes_groups(offer)
}

#[cfg(test)]
mod tests {
    use dstack_model::backends::BackendType;

    use super::*;
    use crate::offers::tests::offer;

    #[test]
    fn nodes_are_made_as_the_best_offer_is() {
        let container = |price| Offer {
            instance_runtime: InstanceRuntime::Runner,
            ..offer("runpod", "h100", price)
        };
        let (machine, pod) = (offer("aws", "p5", 1.0), offer("kubernetes", "node", 1.0));
        let makes = |offer: &Offer| offer.backend == BackendType::Runpod;
        let of = |best: &[Offer]| AvailableOffers {
            best: best.to_vec(),
            total: 10,
            late: Vec::new(),
        };
        let made = nodes_made(&of(&[container(1.0), machine.clone(), container(2.0)]), makes);
        let NodesMade::AsOne(offers) = made else {
            panic!("{made:?}");
        };
        assert_eq!(offers.best, [container(1.0), container(2.0)]);
        assert_eq!(offers.total, 9);
        let made = nodes_made(&of(&[pod.clone(), container(1.0), machine.clone()]), makes);
        let NodesMade::Apart(offers) = made else {
            panic!("{made:?}");
        };
        assert_eq!(offers.best, [pod, machine]);
        let none = AvailableOffers::default();
        assert_eq!(
            nodes_made(&none, makes),
            NodesMade::Apart(AvailableOffers::default())
        );
    }
}
