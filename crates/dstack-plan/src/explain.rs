//! Why a job is placed where it is, and what to change when it cannot be placed.

mod changes;
mod distance;

use dstack_model::explanations::{ChangeSet, FleetVerdict, InstanceVerdict, JobExplanation, OfferVerdict};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::Requirements;
use dstack_units::{FleetId, GpuSpec};

use crate::fleets::{Fleet, check_named, check_room, new_capacity};
use crate::matching::{Defaults, Machine, Mismatch, mismatches};
use crate::offers::{Query, Unwanted};
use crate::placement::{Candidate, Request, Unfit, Wants};

use changes::Suggestion;

/// Refused offers that are shown.
const OFFERS_SHOWN: usize = 20;
/// Sets of changes that are shown.
const CHANGES_SHOWN: usize = 3;

/// What was decided about a job.
#[derive(Debug, Clone, Copy)]
pub struct Decided {
    /// The fleet it would get.
    pub fleet: Option<FleetId>,
    /// Whether something can be had for it.
    pub fits: bool,
}

/// Explains the decision about a job. `market` has all that backends offer for [`loosened`] requirements; `query` says
/// which of it counts.
pub fn job(
    request: &Request<'_>,
    fleets: &[Fleet<'_>],
    query: &Query,
    market: &[Offer],
    decided: Decided,
) -> JobExplanation {
    let wants = Wants::new(*request);
    let machines = || fleets.iter().flat_map(|fleet| &fleet.instances);
    let instances: Vec<InstanceVerdict> = machines().map(|one| instance(&wants, one)).collect();
    let mut refused: Vec<(f64, OfferVerdict)> =
        market.iter().filter_map(|offer| refusal(query, offer)).collect();
    refused.sort_by(|(far, a), (further, b)| {
        let by_distance = far.total_cmp(further);
        by_distance.then(a.price.total_cmp(&b.price))
    });
    let total_refused_offers = u64::try_from(refused.len()).unwrap_or(u64::MAX);
    refused.truncate(OFFERS_SHOWN);
    let refused_offers = refused.into_iter().map(|(_, verdict)| verdict).collect();
    JobExplanation {
        job_name: request.job_spec.job_name.clone(),
        fits: decided.fits,
        fleets: fleets.iter().map(|one| fleet(request, one, decided)).collect(),
        instances,
        refused_offers,
        total_refused_offers,
        changes: if decided.fits {
            Vec::new()
        } else {
            smallest_changes(query, market, machines().copied())
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

/// Why an offer is not taken, and how far it is from what was asked for; `None` when it is.
fn refusal(query: &Query, offer: &Offer) -> Option<(f64, OfferVerdict)> {
    let mismatches = of_offer(query, offer);
    let unwanted = query.accept(offer.clone()).err();
    let mut reasons = texts(&mismatches);
    let mut far: f64 = mismatches.iter().map(distance::of_mismatch).sum();
    if let Some(unwanted) = &unwanted {
        reasons.push(unwanted.to_string());
        far += distance::of_unwanted(unwanted);
    }
    if !offer.availability.is_available() {
        // Said only when nothing else is in the way: the rest can be changed by the user.
        if reasons.is_empty() {
            reasons.push(format!("cannot be had: {}", offer.availability));
        }
        far += distance::NOT_TO_BE_HAD;
    }
    let verdict = OfferVerdict {
        backend: offer.backend,
        region: offer.region.clone(),
        instance: offer.instance.name.clone(),
        spot: offer.instance.resources.spot,
        price: offer.price,
        reasons,
    };
    (!verdict.reasons.is_empty()).then_some((far, verdict))
}

fn of_offer(query: &Query, offer: &Offer) -> Vec<Mismatch> {
    let machine = Machine::whole(&offer.instance.resources, offer.price);
    mismatches(&query.requirements, machine, Defaults::Enforced).collect()
}

fn texts(mismatches: &[Mismatch]) -> Vec<String> {
    mismatches.iter().map(ToString::to_string).collect()
}

/// The sets with the fewest changes: the smallest first, then the cheapest; one of each kind.
fn smallest_changes<'a>(
    query: &Query,
    market: &[Offer],
    instances: impl Iterator<Item = Candidate<'a>>,
) -> Vec<ChangeSet> {
    let usable = market.iter().filter(|offer| offer.availability.is_available());
    let of_offers = usable.filter_map(|offer| {
        let unwanted = query.accept(offer.clone()).err();
        let gives = format!("{} {} in {}", offer.backend, offer.instance.name, offer.region);
        Suggestion::new(
            query,
            &of_offer(query, offer),
            unwanted.as_ref(),
            gives,
            offer.price,
        )
    });
    let of_instances = instances.filter_map(|candidate| {
        let offer = candidate.offer?;
        let gives = format!("instance {}", candidate.instance_name);
        let mismatches = of_offer(query, offer);
        let unwanted = query.accept(offer.clone()).err();
        let unwanted = unwanted.filter(|unwanted| *unwanted != Unwanted::Zone);
        Suggestion::new(query, &mismatches, unwanted.as_ref(), gives, offer.price)
    });
    let mut all: Vec<Suggestion> = of_instances.chain(of_offers).collect();
    all.sort_by(|a, b| {
        a.fields
            .len()
            .cmp(&b.fields.len())
            .then(a.distance.total_cmp(&b.distance))
            .then(a.price.total_cmp(&b.price))
    });
    let fewest = all.first().map_or(0, |first| first.fields.len());
    let mut shown: Vec<ChangeSet> = Vec::new();
    for suggestion in all.into_iter().take_while(|one| one.fields.len() == fewest) {
        let same = |other: &ChangeSet| {
            let names = |fields: &[dstack_model::explanations::FieldChange]| {
                fields.iter().map(|field| field.field.clone()).collect::<Vec<_>>()
            };
            names(&other.fields) == names(&suggestion.fields)
        };
        if !shown.iter().any(same) {
            shown.push(suggestion.into_set());
        }
        if shown.len() == CHANGES_SHOWN {
            break;
        }
    }
    shown
}

#[cfg(test)]
mod tests;
