//! Why a job is placed where it is, and what to change when it cannot be placed.

mod changes;
mod distance;
mod funnel;
mod obstacles;

use dstack_model::explanations::{ChangeSet, FleetVerdict, InstanceVerdict, JobExplanation, OfferVerdict};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::Requirements;
use dstack_units::{FleetId, GpuSpec};

use crate::combine::{fleet_requirements, profiles, requirements};
use crate::fleets::{Fleet, NoCapacity, check_named, check_room, new_capacity, own_capacity};
use crate::matching::{Defaults, Machine, Mismatch, check};
use crate::offers::Query;
use crate::placement::{Candidate, Request, Unfit, Wants};

use changes::{Gives, Suggestion};
use obstacles::Obstacles;

/// Refused offers that are shown.
const OFFERS_SHOWN: usize = 20;
/// Sets of changes that are shown.
const CHANGES_SHOWN: usize = 3;

/// What was decided about a job.
#[derive(Debug, Clone, Copy)]
pub struct Decided {
    /// The fleet it would get.
    pub fleet: Option<FleetId>,
    /// Whether something is available for it.
    pub fits: bool,
}

/// Explains the decision about a job. `market` has all that backends offer for [`loosened`] requirements; `query` says
/// which of it counts.
pub fn job<'a>(
    request: &Request<'_>,
    fleets: &[Fleet<'_>],
    query: &Query,
    market: impl IntoIterator<Item = &'a Offer>,
    decided: Decided,
) -> JobExplanation {
    let wants = Wants::new(*request);
    let machines = fleets.iter().flat_map(|fleet| &fleet.instances);
    let instances: Vec<InstanceVerdict> = machines.map(|one| instance(&wants, one)).collect();
    let offers: Vec<(&Offer, Obstacles)> = market
        .into_iter()
        .map(|offer| (offer, Obstacles::of_offer(query, offer)))
        .collect();
    let (refused_offers, total_refused_offers) = refused(&offers);
    JobExplanation {
        job_name: request.job_spec.job_name.clone(),
        fits: decided.fits,
        fleets: fleets.iter().map(|one| fleet(request, one, decided)).collect(),
        instances,
        refused_offers,
        total_refused_offers,
        backends: funnel::of_backends(&offers),
        changes: if decided.fits {
            Vec::new()
        } else {
            smallest_changes(request, fleets, query, &offers)
        },
    }
}

/// Requirements that everything satisfies which could do with a change of the configuration. The disk stays: backends
/// make it as large as asked for.
pub fn loosened(requirements: &Requirements) -> Requirements {
    Requirements {
        resources: ResourcesSpec {
            disk: requirements.resources.disk,
            gpu: Some(GpuSpec::any_or_none()),
            ..ResourcesSpec::unconstrained()
        },
        max_price: None,
        spot: None,
        ..requirements.clone()
    }
}

fn fleet(request: &Request<'_>, fleet: &Fleet<'_>, decided: Decided) -> FleetVerdict {
    let skipped = check_named(request, fleet).and_then(|()| check_room(request, fleet));
    FleetVerdict {
        name: fleet.name.to_owned(),
        chosen: decided.fleet == Some(fleet.id),
        reason: skipped.err().map(|reason| reason.to_string()),
        no_new_instances: new_capacity(request, fleet)
            .err()
            .map(|reason| reason.to_string()),
    }
}

fn instance(wants: &Wants<'_>, candidate: &Candidate<'_>) -> InstanceVerdict {
    let (available, reasons) = match wants.share_of(candidate) {
        Ok(share) if share.idle => (true, Vec::new()),
        Ok(_) => (false, vec!["is busy".to_owned()]),
        Err(Unfit::Mismatch(_)) => (false, texts(&wants.mismatches(candidate))),
        Err(unfit) => (false, vec![unfit.to_string()]),
    };
    InstanceVerdict {
        name: candidate.instance_name.to_owned(),
        fleet: candidate.fleet_name.to_owned(),
        available,
        reasons,
    }
}

/// The offers that are not taken, those that were nearly taken first, the cheapest of them first: the first few, and how many
/// there are.
fn refused(offers: &[(&Offer, Obstacles)]) -> (Vec<OfferVerdict>, u64) {
    let mut refused: Vec<(f64, &Offer, &Obstacles)> = offers
        .iter()
        .filter(|(offer, obstacles)| obstacles.count() > 0 || !offer.availability.is_available())
        .map(|(offer, obstacles)| {
            let waiting = if offer.availability.is_available() {
                0.0
            } else {
                distance::NOT_TO_BE_HAD
            };
            (obstacles.distance + waiting, *offer, obstacles)
        })
        .collect();
    refused.sort_by(|(far, a, _), (further, b, _)| {
        let by_distance = far.total_cmp(further);
        by_distance.then(a.price.total_cmp(&b.price))
    });
    let total = u64::try_from(refused.len()).unwrap_or(u64::MAX);
    let shown = refused.into_iter().take(OFFERS_SHOWN);
    let shown = shown
        .map(|(_, offer, obstacles)| verdict(offer, obstacles))
        .collect();
    (shown, total)
}

/// Why an offer is not taken.
fn verdict(offer: &Offer, obstacles: &Obstacles) -> OfferVerdict {
    let mut reasons = obstacles.texts();
    // Said only when nothing else is in the way: the rest can be changed by the user.
    if reasons.is_empty() {
        reasons.push(format!("cannot be had: {}", offer.availability));
    }
    OfferVerdict {
        backend: offer.backend,
        region: offer.region.to_string(),
        instance: offer.instance.name.clone(),
        spot: offer.instance.resources.spot,
        price: offer.price,
        reasons,
    }
}

fn texts(mismatches: &[Mismatch]) -> Vec<String> {
    mismatches.iter().map(ToString::to_string).collect()
}

/// The sets with the fewest changes: the smallest first, then the cheapest; one of each kind. All of them are enough: with
/// its changes, the job starts on the instance, or a fleet gets the offer for it.
fn smallest_changes(
    request: &Request<'_>,
    fleets: &[Fleet<'_>],
    query: &Query,
    offers: &[(&Offer, Obstacles)],
) -> Vec<ChangeSet> {
    let wants = Wants::new(*request);
    let open: Vec<&Fleet<'_>> = fleets
        .iter()
        .filter(|fleet| check_named(request, fleet).is_ok() && check_room(request, fleet).is_ok())
        .collect();
    let instances: Vec<(&Candidate<'_>, Obstacles)> = open
        .iter()
        .flat_map(|fleet| &fleet.instances)
        .filter_map(|candidate| Some((candidate, Obstacles::of_instance(&wants, candidate)?)))
        .collect();
    let makers: Vec<Query> = open.iter().filter_map(|fleet| makes(request, fleet)).collect();
    let price = |candidate: &Candidate<'_>| candidate.offer.map_or(0.0, |offer| offer.price);
    let of_instances = instances.iter().filter_map(|(candidate, obstacles)| {
        Suggestion::new(
            obstacles,
            Gives::Instance(candidate.instance_name),
            price(candidate),
        )
    });
    let of_offers = offers
        .iter()
        .filter(|(offer, _)| offer.availability.is_available() && !makers.is_empty())
        .filter_map(|(offer, obstacles)| Suggestion::new(obstacles, Gives::Offer(offer), offer.price));
    let mut all: Vec<Suggestion<'_>> = of_instances.chain(of_offers).collect();
    all.sort_by(|a, b| {
        let by_count = a.obstacles.count().cmp(&b.obstacles.count());
        let by_distance = a.obstacles.distance.total_cmp(&b.obstacles.distance);
        by_count.then(by_distance).then(a.price.total_cmp(&b.price))
    });
    let mut fewest = None;
    let mut shown: Vec<(Vec<&str>, ChangeSet)> = Vec::new();
    for suggestion in &all {
        let count = suggestion.obstacles.count();
        if shown.len() == CHANGES_SHOWN || fewest.is_some_and(|fewest| count > fewest) {
            break;
        }
        let fields = suggestion.fields();
        if shown.iter().any(|(other, _)| *other == fields) || !is_made(suggestion, &makers) {
            continue;
        }
        fewest = Some(count);
        shown.push((fields, suggestion.to_set(query)));
    }
    shown.into_iter().map(|(_, set)| set).collect()
}

/// What the fleet by itself may get, if it may get something for the run.
fn makes(request: &Request<'_>, fleet: &Fleet<'_>) -> Option<Query> {
    let may_get = match new_capacity(request, fleet) {
        Ok(_) => true,
        // A contradiction of fleet and run may be what is to be changed.
        Err(NoCapacity::Conflict(_)) => !stays_in_conflict(request, fleet),
        Err(_) => false,
    };
    may_get.then(|| own_capacity(fleet.spec, fleet.master))
}

/// Whether fleet and run contradict each other in what no offer can be an obstacle by, such as the reservation: nothing that
/// is advised would change that.
fn stays_in_conflict(request: &Request<'_>, fleet: &Fleet<'_>) -> bool {
    let of_fleet = fleet_requirements(fleet.spec);
    let of_run = Requirements {
        resources: of_fleet.resources.clone(),
        spot: None,
        max_price: None,
        ..request.job_spec.requirements.clone()
    };
    let mut profile = request.run_spec.merged_profile();
    profile.params.spot_policy = None;
    requirements(&of_fleet, &of_run).is_err() || profiles(&fleet.spec.merged_profile(), &profile).is_err()
}

/// Whether a fleet would get what is suggested; what is there already need not be got.
fn is_made(suggestion: &Suggestion<'_>, makers: &[Query]) -> bool {
    let Gives::Offer(offer) = suggestion.gives else {
        return true;
    };
    makers.iter().any(|own| {
        let machine = Machine::whole(&offer.instance.resources, offer.price);
        own.counts(offer).is_ok() && check(&own.requirements, machine, Defaults::Enforced).is_ok()
    })
}

#[cfg(test)]
mod tests;
