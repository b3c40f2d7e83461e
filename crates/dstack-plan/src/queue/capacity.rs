//! New instances for jobs that no existing one can take.

use std::sync::Arc;

use dstack_model::runs::JobProvisioningData;
use dstack_units::FleetId;

use super::{AvailableOffers, FleetState, NewInstance, OfferSource, Placement, Placer, likeness};
use crate::fleets::{
    Fleet, NoCapacity, all_failed, check_named, check_room_besides, idle_for, new_capacity, obstacle, refusal,
};
use crate::offers::{Query, Unanswered};
use crate::placement::{Request, Wants};

/// What new instances jobs that want the same could get.
#[derive(Debug)]
pub(super) enum Capacity {
    /// Not known yet.
    Pending,
    /// In these fleets, best first.
    Known {
        open: Vec<Open>,
        /// Why a fleet that would do gets no instance.
        obstacle: Option<String>,
        /// There may be others, of which it is not known yet what they get: backends are late.
        are_awaited: bool,
    },
}

/// A fleet that could get an instance.
#[derive(Debug)]
pub(super) struct Open {
    /// Index of the fleet among those of the placer.
    fleet: usize,
    offers: Arc<AvailableOffers>,
    unanswered: Option<Unanswered>,
    reservation: Option<String>,
}

impl Placer<'_> {
    /// A new instance for the job, which is counted in its fleet from then on.
    pub(super) fn make(&mut self, wants: &Wants<'_>, source: &mut dyn OfferSource) -> Placement {
        let request = wants.request();
        let key = likeness(wants);
        if !self.capacities.contains_key(&key) {
            let capacity = self.look_for_capacity(request, source);
            self.capacities.insert(key.clone(), capacity);
        }
        let (open, known, are_awaited) = match self.capacities.get(&key) {
            None | Some(Capacity::Pending) => return Placement::Pending,
            Some(Capacity::Known {
                open,
                obstacle,
                are_awaited,
            }) => (open, obstacle, *are_awaited),
        };
        let nowhere = |reason| match are_awaited {
            true => Placement::Pending,
            false => Placement::Impossible(reason),
        };
        let mut full = None;
        for one in open {
            let Some(state) = self.fleets.get_mut(one.fleet) else {
                continue;
            };
            if let Err(reason) = state.check_may_grow(request) {
                full.get_or_insert(reason);
                continue;
            }
            if state.is_undecided() {
                return Placement::Pending;
            }
            if one.offers.best.is_empty() {
                return nowhere(all_failed(state.fleet.name, 0, 0, &[]));
            }
            let idle_for = match idle_for(state.fleet.spec, request.run_spec) {
                Ok(idle_for) => idle_for,
                Err(conflict) => {
                    full = Some(obstacle(state.fleet.name, &conflict.into()));
                    break;
                }
            };
            state.made += 1;
            return Placement::New(Box::new(NewInstance {
                fleet: state.fleet.id,
                offers: Arc::clone(&one.offers),
                unanswered: one.unanswered.clone(),
                reservation: one.reservation.clone(),
                idle_for,
            }));
        }
        let told = full.as_ref().or(known.as_ref());
        nowhere(self.refusal(request, told.map(String::as_str)))
    }

    /// Takes so many more new instances of a fleet, besides one that was given: for the other nodes that are made with it.
    ///
    /// # Errors
    /// The fleet may not have as many: why, for users.
    pub fn make_more(&mut self, request: &Request<'_>, fleet: FleetId, more: i64) -> Result<(), String> {
        let Some(state) = self.fleets.iter_mut().find(|state| state.fleet.id == fleet) else {
            return Err(self.refusal(request, None));
        };
        if let Some((left, max)) = state.fleet.instances_left()
            && left - state.made < more
        {
            let full = obstacle(state.fleet.name, &NoCapacity::Full { max });
            return Err(self.refusal(request, Some(&full)));
        }
        state.made += more;
        Ok(())
    }

    fn refusal(&self, request: &Request<'_>, obstacle: Option<&str>) -> String {
        let fleets: Vec<&Fleet<'_>> = self.fleets.iter().map(|state| state.fleet).collect();
        refusal(request, &fleets, obstacle)
    }

    /// Asks for what every fleet that could take the job could get.
    fn look_for_capacity(&self, request: &Request<'_>, source: &mut dyn OfferSource) -> Capacity {
        // Fleets that are alike ask for the same.
        let mut asked: Vec<(Query, Option<JobProvisioningData>, Option<Arc<AvailableOffers>>)> = Vec::new();
        let (mut open, mut first_obstacle) = (Vec::new(), None);
        for (at, state) in self.fleets.iter().enumerate() {
            if check_named(request, state.fleet).is_err() || state.check_room(request).is_err() {
                continue;
            }
            let query = match new_capacity(request, state.fleet) {
                Ok(query) => query,
                Err(reason @ (NoCapacity::Full { .. } | NoCapacity::Conflict(_))) => {
                    first_obstacle.get_or_insert_with(|| obstacle(state.fleet.name, &reason));
                    continue;
                }
                Err(_) => continue,
            };
            let master = state.fleet.master.or(request.master);
            let known = asked
                .iter()
                .find(|(other, beside, _)| *other == query && beside.as_ref() == master)
                .map(|(.., offers)| offers.clone());
            let offers = known.unwrap_or_else(|| {
                let offers = source.offers(&query, master).map(Arc::new);
                asked.push((query.clone(), master.cloned(), offers.clone()));
                offers
            });
            open.extend(offers.map(|offers| Open {
                fleet: at,
                unanswered: Unanswered::after(&query, &offers),
                offers,
                reservation: query.requirements.reservation,
            }));
        }
        if asked.iter().any(|(.., offers)| offers.is_none()) {
            return Capacity::Pending;
        }
        let known = open.len();
        open.retain(|one| !one.offers.are_awaited());
        let are_awaited = open.len() < known;
        open.sort_by(|a, b| a.offers.price().total_cmp(&b.offers.price()));
        Capacity::Known {
            open,
            obstacle: first_obstacle,
            are_awaited,
        }
    }
}

impl FleetState<'_> {
    /// Whether the run could fit, with what has become of the fleet meanwhile.
    fn check_room(&self, request: &Request<'_>) -> Result<(), String> {
        check_room_besides(request, self.fleet, self.taken + self.made)
            .map_err(|skipped| format!("Fleet {} {skipped}", self.fleet.name))
    }

    /// Whether the fleet may have one more instance.
    fn check_may_grow(&self, request: &Request<'_>) -> Result<(), String> {
        match self.fleet.instances_left() {
            Some((left, max)) if left <= self.made => {
                Err(obstacle(self.fleet.name, &NoCapacity::Full { max }))
            }
            _ => self.check_room(request),
        }
    }

    /// Whether nobody knows yet where the instances of the fleet will be.
    fn is_undecided(&self) -> bool {
        self.fleet.anchor_pending || (self.fleet.is_cluster() && self.fleet.master.is_none() && self.made > 0)
    }
}
