//! Whether a job may use an instance, whatever the instance has.

use dstack_model::fleets::InstanceGroupPlacement;
use dstack_model::health::HealthStatus;
use dstack_model::instances::InstanceStatus;
use dstack_model::profiles::InstanceSelector;
use dstack_model::runs::JobProvisioningData;

use super::{Candidate, Unfit, Wants};
use crate::volumes;

pub(super) fn check(wants: &Wants<'_>, candidate: &Candidate<'_>) -> Result<(), Unfit> {
    chosen(wants, candidate)?;
    if let Some(rules) = candidate.rules {
        rules.check(wants.request.job_spec)?;
    }
    alive(candidate)?;
    reasons_against_place(wants, candidate).next().map_or(Ok(()), Err)
}

/// Every choice of the run that speaks against where the instance is.
///
/// # Errors
/// Something else speaks against the instance, which no other place would change.
pub(super) fn places(wants: &Wants<'_>, candidate: &Candidate<'_>) -> Result<Vec<Unfit>, Unfit> {
    chosen(wants, candidate)?;
    if let Some(rules) = candidate.rules {
        rules.check(wants.request.job_spec)?;
    }
    alive(candidate)?;
    Ok(reasons_against_place(wants, candidate).collect())
}

fn reasons_against_place<'a>(
    wants: &'a Wants<'_>,
    candidate: &Candidate<'a>,
) -> impl Iterator<Item = Unfit> + 'a {
    let place = candidate.provisioning;
    place
        .into_iter()
        .flat_map(move |place| PLACES.iter().filter_map(move |check| check(wants, place)))
}

/// The run, `fleets` and `instances` do not exclude it.
fn chosen(wants: &Wants<'_>, candidate: &Candidate<'_>) -> Result<(), Unfit> {
    let params = &wants.profile.params;
    if wants
        .request
        .run_fleet
        .is_some_and(|fleet| fleet != candidate.fleet_id)
    {
        return Err(Unfit::OtherFleet);
    }
    if let Some(fleets) = &params.fleets
        && !fleets
            .iter()
            .any(|fleet| candidate.fleet_owner.is_meant(candidate.fleet_name, fleet))
    {
        return Err(Unfit::NotInFleets);
    }
    if let Some(selectors) = &params.instances
        && !selectors.iter().any(|selector| selects(selector, candidate))
    {
        return Err(Unfit::NotSelected);
    }
    let cluster = candidate.fleet_spec.configuration.placement == Some(InstanceGroupPlacement::Cluster);
    if wants.request.multinode() && !cluster {
        return Err(Unfit::NotCluster);
    }
    // They are attached in the account of the run's project.
    if !wants.request.volumes.is_empty() && !candidate.fleet_owner.own {
        return Err(Unfit::OthersWithVolume);
    }
    Ok(())
}

fn alive(candidate: &Candidate<'_>) -> Result<(), Unfit> {
    if matches!(
        candidate.status,
        InstanceStatus::Terminating | InstanceStatus::Terminated
    ) {
        return Err(Unfit::Terminating);
    }
    if candidate.leaving {
        return Err(Unfit::Leaving);
    }
    if candidate.unreachable {
        return Err(Unfit::Unreachable);
    }
    if candidate.health == HealthStatus::Failure {
        return Err(Unfit::Failed);
    }
    Ok(())
}

type PlaceCheck = fn(&Wants<'_>, &JobProvisioningData) -> Option<Unfit>;

const PLACES: &[PlaceCheck] = &[backend, clusters, master, region, instance_type, zone, volume];

fn backend(wants: &Wants<'_>, place: &JobProvisioningData) -> Option<Unfit> {
    let backend = place.base_backend();
    let backends = wants.profile.params.backends.as_ref()?;
    (!backends.contains(&backend)).then_some(Unfit::Backend(backend))
}

fn clusters(wants: &Wants<'_>, place: &JobProvisioningData) -> Option<Unfit> {
    let (request, backend) = (&wants.request, place.base_backend());
    let backends = request.multinode_backends.filter(|_| request.multinode())?;
    (!backends.contains(&backend)).then_some(Unfit::NoClusters(backend))
}

fn master(wants: &Wants<'_>, place: &JobProvisioningData) -> Option<Unfit> {
    let master = wants.request.master?;
    let is_there =
        master.base_backend() == place.base_backend() && master.region.eq_ignore_ascii_case(&place.region);
    (!is_there).then_some(Unfit::NotWithMaster)
}

fn region(wants: &Wants<'_>, place: &JobProvisioningData) -> Option<Unfit> {
    let is_named = named(wants.profile.params.regions.as_deref(), &place.region);
    (!is_named).then(|| Unfit::Region(place.region.clone()))
}

fn instance_type(wants: &Wants<'_>, place: &JobProvisioningData) -> Option<Unfit> {
    let name = &place.instance_type.name;
    let is_named = named(wants.profile.params.instance_types.as_deref(), name);
    (!is_named).then(|| Unfit::InstanceType(name.clone()))
}

fn zone(wants: &Wants<'_>, place: &JobProvisioningData) -> Option<Unfit> {
    let zone = place.availability_zone.as_ref()?;
    let is_named = named(wants.profile.params.availability_zones.as_deref(), zone);
    (!is_named).then(|| Unfit::Zone(zone.clone()))
}

fn volume(wants: &Wants<'_>, place: &JobProvisioningData) -> Option<Unfit> {
    let (backend, zone) = (place.base_backend(), place.availability_zone.as_deref());
    let is_reached = volumes::reach_instance(wants.request.volumes, backend, &place.region, zone);
    (!is_reached).then_some(Unfit::NotWithVolume)
}

/// Names match in any case; unset names everything.
fn named(names: Option<&[String]>, name: &str) -> bool {
    names.is_none_or(|names| names.iter().any(|other| other.eq_ignore_ascii_case(name)))
}

fn selects(selector: &InstanceSelector, candidate: &Candidate<'_>) -> bool {
    let place = candidate.provisioning;
    match selector {
        InstanceSelector::Name(by) => by.name == candidate.instance_name,
        InstanceSelector::Hostname(by) => place.is_some_and(|place| {
            [place.hostname.as_deref(), place.internal_ip.as_deref()]
                .into_iter()
                .flatten()
                .any(|name| name.eq_ignore_ascii_case(&by.hostname))
        }),
        InstanceSelector::Fleet(by) => {
            candidate.fleet_owner.is_meant(candidate.fleet_name, &by.fleet)
                && by.instance == candidate.instance_num
        }
    }
}
