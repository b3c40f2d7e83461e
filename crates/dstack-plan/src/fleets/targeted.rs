//! Runs that name their instances (`instances`): one fleet's, and only existing ones.

use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use super::{Fleet, cheapest_available, check_named, nodes_required};
use crate::placement::{Request, Wants, offers};

/// The named instances of the best fleet: one that has enough of them idle, then the one with the cheapest idle one,
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
    let mut best: Option<((bool, f64, f64), Vec<Offer>)> = None;
    for fleet in fleets.iter().filter(|fleet| check_named(request, fleet).is_ok()) {
        let offers = offers(&wants, &fleet.instances);
        let Some(first) = offers.first() else { continue };
        if offers.len() < needed {
            continue;
        }
        let idle = offers.iter().filter(|offer| offer.availability.is_available());
        let rank = (idle.count() < needed, cheapest_available(&offers), first.price);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, offers));
        }
    }
    best.map(|(_, offers)| offers).unwrap_or_default()
}
