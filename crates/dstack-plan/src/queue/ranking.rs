//! Which fleet a run of several nodes gets, when existing instances can take some of them.

use dstack_units::FleetId;

use super::Placer;
use crate::fleets::{check_named, check_room_besides, nodes_required};
use crate::placement::Wants;

/// What a fleet has for a run now.
#[derive(Debug, Default, Clone, Copy)]
struct Idle {
    count: i64,
    /// The price of the cheapest; the slots come by price.
    price: Option<f64>,
    /// How many of them are the last resort of the job.
    last_resorts: i64,
}

impl Placer<'_> {
    /// The fleet whose idle instances suffice, with as few as possible that are the last resort, or else the one with the cheapest idle instance; the earlier among equals.
    /// `None`: no fleet that could take the run has any.
    pub(super) fn fleet_for_several(&self, wants: &Wants<'_>) -> Option<FleetId> {
        let request = wants.request();
        let open: Vec<bool> = self
            .fleets
            .iter()
            .map(|state| {
                check_named(request, state.fleet).is_ok()
                    && check_room_besides(request, state.fleet, state.taken + state.made).is_ok()
            })
            .collect();
        let mut idle = vec![Idle::default(); self.fleets.len()];
        for slot in self.slots.iter() {
            if open.get(slot.fleet).is_some_and(|open| *open)
                && slot.free_share(wants).is_some()
                && let Some(idle) = idle.get_mut(slot.fleet)
            {
                idle.count += 1;
                idle.last_resorts += i64::from(wants.is_last_resort(&slot.candidate));
                idle.price = idle.price.or(slot.candidate.offer.map(|offer| offer.price));
            }
        }
        let needed = nodes_required(request.run_spec);
        let ranks = self.fleets.iter().zip(idle).filter(|(_, idle)| idle.count > 0);
        // The others are taken first.
        let taken = |idle: &Idle| needed.saturating_sub(idle.count - idle.last_resorts).max(0);
        let rank = |idle: &Idle| {
            let last_resorts = taken(idle).min(idle.last_resorts);
            (
                (idle.count < needed, last_resorts),
                idle.price.unwrap_or(f64::INFINITY),
            )
        };
        ranks
            .min_by(|(_, a), (_, b)| {
                let (a, b) = (rank(a), rank(b));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
            })
            .map(|(state, _)| state.fleet.id)
    }
}
