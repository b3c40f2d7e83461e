//! Many waiting jobs at once: each gets the cheapest free share of an instance that suits it, or else new capacity in the
//! fleet where that costs least.
//!
//! What one job gets is taken for those after it. Jobs that want the same are matched once: a queue of thousands takes a
//! fraction of a second.

mod market;

use std::collections::HashMap;

use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_units::{FleetId, InstanceId, JobId};

use crate::fleets::{Fleet, check_named, check_room, new_capacity};
use crate::offers::Query;
use crate::placement::{Candidate, Request, Share, Wants};

use market::Market;

/// A job of the queue.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// The job.
    pub id: JobId,
    /// What it wants.
    pub request: Request<'a>,
}

/// Where a job goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On an instance that is there.
    Instance {
        /// The instance.
        id: InstanceId,
        /// The job's share of it.
        share: Share,
    },
    /// On one that is to be made.
    New {
        /// In this fleet.
        fleet: FleetId,
        /// From the offer with this place in the market.
        offer: usize,
    },
    /// Nowhere for now.
    Nowhere,
}

/// Places the jobs in the order given. `market` has what backends offer, cheapest first.
///
/// Each job is looked at by itself: of a run of several nodes, those after the first are to be asked for once the run has
/// its fleet.
pub fn place_all(queue: &[Waiting<'_>], fleets: &[Fleet<'_>], market: &[Offer]) -> Vec<(JobId, Place)> {
    let mut pool = Pool::new(fleets);
    let market = Market::new(market);
    let mut known: HashMap<Vec<u8>, Choices> = HashMap::new();
    queue
        .iter()
        .map(|job| {
            let choices = known
                .entry(likeness(&job.request))
                .or_insert_with(|| Choices::new(&pool, &job.request, fleets, &market));
            (job.id, pool.take(choices))
        })
        .collect()
}

/// The same for jobs that want the same.
fn likeness(request: &Request<'_>) -> Vec<u8> {
    let volumes: Vec<_> = request
        .volumes
        .iter()
        .map(|volume| (volume.backend, &volume.region, &volume.zone))
        .collect();
    let master = request
        .master
        .map(|master| (master.base_backend(), &master.region));
    let mounts = &request.run_spec.configuration.base().volumes;
    let wants = (
        &request.job_spec.requirements,
        request.run_spec.merged_profile().params,
        (
            request.run_fleet,
            request.multinode(),
            request.job_spec.privileged,
        ),
        (
            volumes,
            master,
            mounts,
            crate::fleets::nodes_required(request.run_spec),
        ),
    );
    // Plain data: cannot fail. If it did, jobs would be taken as alike only when nothing of them is known.
    serde_json::to_vec(&wants).unwrap_or_default()
}

/// Instances and fleets with what is left of them.
struct Pool<'c> {
    instances: Vec<Instance<'c>>,
    rooms: Vec<Room>,
}

struct Instance<'c> {
    candidate: &'c Candidate<'c>,
    /// Place of its fleet.
    fleet: usize,
    /// Blocks that are not taken.
    free: i64,
}

/// How many instances a fleet may still get.
struct Room {
    fleet: FleetId,
    left: i64,
}

impl<'c> Pool<'c> {
    /// Cheapest instances first, fleets in order among equals.
    fn new(fleets: &'c [Fleet<'c>]) -> Self {
        let of_fleet = |(fleet, one): (usize, &'c Fleet<'c>)| {
            one.instances.iter().map(move |candidate| Instance {
                candidate,
                fleet,
                free: candidate
                    .total_blocks
                    .unwrap_or(0)
                    .saturating_sub(candidate.busy_blocks),
            })
        };
        let mut instances: Vec<_> = fleets.iter().enumerate().flat_map(of_fleet).collect();
        let price = |one: &Instance<'_>| one.candidate.offer.map_or(f64::INFINITY, |offer| offer.price);
        instances.sort_by(|a, b| price(a).total_cmp(&price(b)));
        Self {
            instances,
            rooms: fleets.iter().map(room).collect(),
        }
    }

    fn take(&mut self, choices: &mut Choices) -> Place {
        // What is not free now will not become free while the queue is placed.
        while let Some((at, share)) = choices.shares.get(choices.next).copied() {
            if let Some(instance) = self.instances.get_mut(at)
                && share.blocks <= instance.free
            {
                instance.free -= share.blocks;
                return Place::Instance {
                    id: instance.candidate.instance_id,
                    share,
                };
            }
            choices.next += 1;
        }
        for (at, offer) in &choices.new {
            if let Some(room) = self.rooms.get_mut(*at)
                && room.left > 0
            {
                room.left -= 1;
                return Place::New {
                    fleet: room.fleet,
                    offer: *offer,
                };
            }
        }
        Place::Nowhere
    }
}

fn room(fleet: &Fleet<'_>) -> Room {
    let active = fleet
        .instances
        .iter()
        .filter(|one| one.status.is_active())
        .count();
    let active = i64::try_from(active).unwrap_or(i64::MAX);
    let max = fleet.spec.configuration.nodes.and_then(|nodes| nodes.max);
    Room {
        fleet: fleet.id,
        left: max.map_or(i64::MAX, |max| max.saturating_sub(active)),
    }
}

/// What suits all jobs that want the same.
struct Choices {
    /// Instances by their place in the pool, cheapest first.
    shares: Vec<(usize, Share)>,
    /// The first of them that may still be free.
    next: usize,
    /// For each fleet, by its place, the cheapest offer by its place; cheapest first.
    new: Vec<(usize, usize)>,
}

impl Choices {
    fn new(pool: &Pool<'_>, request: &Request<'_>, fleets: &[Fleet<'_>], market: &Market<'_>) -> Self {
        let wants = Wants::new(*request);
        let allowed =
            |fleet: &Fleet<'_>| check_named(request, fleet).is_ok() && check_room(request, fleet).is_ok();
        let allowed: Vec<bool> = fleets.iter().map(allowed).collect();
        let suits = |(at, instance): (usize, &Instance<'_>)| {
            if !allowed.get(instance.fleet).copied().unwrap_or(false) {
                return None;
            }
            let share = wants.share_of(instance.candidate).ok()?;
            share.idle.then_some((at, share))
        };
        let shares = pool.instances.iter().enumerate().filter_map(suits).collect();
        // Fleets that are alike ask for the same.
        let mut asked: Vec<(Query, Option<usize>)> = Vec::new();
        let mut new = Vec::new();
        for (at, (fleet, _)) in fleets
            .iter()
            .zip(&allowed)
            .enumerate()
            .filter(|(_, (_, allowed))| **allowed)
        {
            let Ok(query) = new_capacity(request, fleet) else {
                continue;
            };
            let known = asked
                .iter()
                .find(|(other, _)| *other == query)
                .map(|(_, first)| *first);
            let first = known.unwrap_or_else(|| {
                let first = market.first(&query);
                asked.push((query, first));
                first
            });
            new.extend(first.map(|first| (at, first)));
        }
        // The market is by price, so that an earlier offer costs less.
        new.sort_by_key(|(at, offer)| (*offer, *at));
        Self { shares, next: 0, new }
    }
}

#[cfg(test)]
mod tests;
