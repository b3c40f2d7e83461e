//! Runs that name their instances (`instances`): one fleet's, and only existing ones.

use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use super::{Fleet, cheapest_available, check_named, instance_offers, nodes_required};
use crate::placement::{Request, Wants};

/// By which fleets are compared: the least is best.
type Rank = (bool, bool, f64, f64);

/// The named instances of the best fleet: one that has enough of them idle, then one where the job is no process though it names
/// something of a container, then the one with the cheapest idle one,
/// then the one with the cheapest.
pub fn targeted(request: &Request<'_>, fleets: &[Fleet<'_>]) -> Vec<Offer> {
    let wants = Wants::new(*request);
    let master = request.multinode() && request.job_spec.job_num == 0;
    let needed = if master {
        nodes_required(request.run_spec)
    } else {
        1
    };
    let needed = usize::try_from(needed).unwrap_or(0);
    let mut best: Option<(Rank, Vec<Offer>)> = None;
    for fleet in fleets.iter().filter(|fleet| check_named(request, fleet).is_ok()) {
        let (is_last_resort, offers) = instance_offers(&wants, fleet);
        let Some(first) = offers.first() else { continue };
        if offers.len() < needed {
            continue;
        }
        let idle = offers.iter().filter(|offer| offer.availability.is_available());
        let rank = (
            idle.count() < needed,
            is_last_resort,
            cheapest_available(&offers),
            first.price,
        );
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, offers));
        }
    }
    best.map(|(_, offers)| offers).unwrap_or_default()
}
