//! Many waiting jobs, one after the other: each gets the cheapest free share of an instance that suits it, or else new
//! capacity in the fleet where that costs least.
//!
//! What one job gets is taken for those after it. Jobs that want the same are matched once: a queue of thousands takes a
//! fraction of a second. The server's scheduling and the benchmarks place with this and nothing else.

mod capacity;
mod ranking;
mod slots;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_model::runs::JobProvisioningData;
use dstack_units::{FleetId, Time};

use crate::fleets::{Fleet, nodes_required};
use crate::offers::{AvailableOffers, Query, Unanswered};
use crate::placement::{Choice, Request, Wants};

use capacity::Capacity;
use slots::{Cursor, Slots};

/// Where a job goes.
#[derive(Debug, Clone, PartialEq)]
pub enum Placement {
    /// On an instance that is there.
    Instance(Box<Choice>),
    /// On one that is to be made.
    New(Box<NewInstance>),
    /// Not known yet: backends have not answered, or the first instance of a cluster is still being made.
    Pending,
    /// Nowhere but on an instance that is away for a moment, and is waited for until then.
    Away(Time),
    /// Nowhere for now, for this reason.
    Impossible(String),
}

/// An instance that is to be made for a job.
#[derive(Debug, Clone, PartialEq)]
pub struct NewInstance {
    /// Id of the fleet that gets the instance.
    pub fleet: FleetId,
    /// What clouds are asked for, best first.
    pub offers: Arc<AvailableOffers>,
    /// Who may offer more, having not answered yet.
    pub unanswered: Option<Unanswered>,
    /// The reservation that it is to be made of.
    pub reservation: Option<String>,
    /// How long it may be idle; `None`: for ever.
    pub idle_for: Option<Duration>,
}

/// Knows what backends offer.
pub trait OfferSource {
    /// The available offers for a query, beside `master` if that is given, of those backends that have answered in time. `None`: the
    /// backends have been asked, and have not answered yet.
    fn offers(&mut self, query: &Query, master: Option<&JobProvisioningData>) -> Option<AvailableOffers>;
}

/// Places jobs on the instances of some fleets, and in those fleets.
#[derive(Debug)]
pub struct Placer<'c> {
    slots: Slots<'c>,
    fleets: Vec<FleetState<'c>>,
    /// By what jobs want.
    cursors: HashMap<Vec<u8>, Cursor>,
    capacities: HashMap<Vec<u8>, Capacity>,
    /// For instances that are away for a moment; `None`: nobody waits for them.
    now: Option<Time>,
}

/// A fleet, with what has become of it since the first job was placed.
#[derive(Debug)]
struct FleetState<'c> {
    fleet: &'c Fleet<'c>,
    /// Instances that had no job and have one now.
    taken: i64,
    /// Instances that are to be made.
    made: i64,
}

impl<'c> Placer<'c> {
    /// Of fleets in their order; nothing of them is given away yet.
    pub fn new(fleets: &'c [Fleet<'c>]) -> Self {
        Self {
            slots: Slots::new(fleets),
            fleets: fleets
                .iter()
                .map(|fleet| FleetState {
                    fleet,
                    taken: 0,
                    made: 0,
                })
                .collect(),
            cursors: HashMap::new(),
            capacities: HashMap::new(),
            now: None,
        }
    }

    /// With jobs that wait for instances which are away for a moment at this time.
    #[must_use]
    pub fn waiting_at(self, now: Time) -> Self {
        Self {
            now: Some(now),
            ..self
        }
    }

    /// Finds a place for the job, and takes it. Of a run of several nodes, those after the first are to be asked for with
    /// the fleet that the first one has got, and with where it is.
    pub fn place(&mut self, request: &Request<'_>, source: &mut dyn OfferSource) -> Placement {
        match self.take_instance(request) {
            Some(choice) => Placement::Instance(Box::new(choice)),
            None => self.make_or_wait(&Wants::new(*request), source),
        }
    }

    fn make_or_wait(&mut self, wants: &Wants<'_>, source: &mut dyn OfferSource) -> Placement {
        let made = self.make(wants, source);
        let away_until = || self.slots.away_until(wants, self.now?);
        match &made {
            Placement::Impossible(_) => away_until().map_or(made, Placement::Away),
            _ => made,
        }
    }

    /// Finds an existing instance for the job, and takes the job's share of it.
    pub fn take_instance(&mut self, request: &Request<'_>) -> Option<Choice> {
        let wants = Wants::new(*request);
        if request.run_fleet.is_some() || nodes_required(request.run_spec) <= 1 {
            return self.take_share(&wants);
        }
        // One fleet for all nodes: the one with enough instances that are free now.
        let fleet = self.fleet_for_several(&wants)?;
        let bound = Request {
            run_fleet: Some(fleet),
            ..*request
        };
        self.take_share(&Wants::new(bound))
    }

    /// Takes the cheapest free share of an instance, fleets in order among equals.
    fn take_share(&mut self, wants: &Wants<'_>) -> Option<Choice> {
        let cursor = self.cursors.entry(likeness(wants)).or_default();
        let taken = self.slots.take(cursor, wants)?;
        if taken.first_job
            && let Some(state) = self.fleets.get_mut(taken.fleet)
        {
            state.taken += 1;
        }
        Some(taken.choice)
    }
}

/// The same for jobs that want the same.
fn likeness(wants: &Wants<'_>) -> Vec<u8> {
    let request = wants.request();
    let volumes: Vec<_> = request
        .volumes
        .iter()
        .map(|volume| (volume.backend, &volume.region, &volume.zone))
        .collect();
    let master = request
        .master
        .map(|master| (master.base_backend(), &master.region, &master.availability_zone));
    let mounts = &request.run_spec.configuration.base().volumes;
    let all = (
        &request.job_spec.requirements,
        &wants.profile().params,
        (
            request.run_fleet,
            request.multinode(),
            request.job_spec.privileged,
            wants.names_container(),
        ),
        (volumes, master, mounts, nodes_required(request.run_spec)),
    );
    // Plain data: cannot fail. If it did, jobs would be taken as alike only when nothing of them is known.
    serde_json::to_vec(&all).unwrap_or_default()
}

#[cfg(test)]
mod tests;
