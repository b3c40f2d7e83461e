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
    alive(candidate)?;
    match candidate.provisioning {
        Some(place) => somewhere_allowed(wants, place),
        None => Ok(()),
    }
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
        && !fleets.iter().any(|fleet| fleet.name == candidate.fleet_name)
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
    Ok(())
}

fn alive(candidate: &Candidate<'_>) -> Result<(), Unfit> {
    if matches!(
        candidate.status,
        InstanceStatus::Terminating | InstanceStatus::Terminated
    ) {
        return Err(Unfit::Terminating);
    }
    if candidate.unreachable {
        return Err(Unfit::Unreachable);
    }
    if candidate.health == HealthStatus::Failure {
        return Err(Unfit::Failed);
    }
    Ok(())
}

fn somewhere_allowed(wants: &Wants<'_>, place: &JobProvisioningData) -> Result<(), Unfit> {
    let (request, params) = (&wants.request, &wants.profile.params);
    let backend = place.base_backend();
    if let Some(backends) = &params.backends
        && !backends.contains(&backend)
    {
        return Err(Unfit::Backend(backend));
    }
    if request.multinode()
        && request
            .multinode_backends
            .is_some_and(|backends| !backends.contains(&backend))
    {
        return Err(Unfit::NoClusters(backend));
    }
    if let Some(master) = request.master
        && (master.base_backend() != backend || !master.region.eq_ignore_ascii_case(&place.region))
    {
        return Err(Unfit::NotWithMaster);
    }
    if !named(params.regions.as_deref(), &place.region) {
        return Err(Unfit::Region(place.region.clone()));
    }
    if !named(params.instance_types.as_deref(), &place.instance_type.name) {
        return Err(Unfit::InstanceType(place.instance_type.name.clone()));
    }
    if let Some(zone) = &place.availability_zone
        && !named(params.availability_zones.as_deref(), zone)
    {
        return Err(Unfit::Zone(zone.clone()));
    }
    let zone = place.availability_zone.as_deref();
    if !volumes::reach_instance(request.volumes, backend, &place.region, zone) {
        return Err(Unfit::NotWithVolume);
    }
    Ok(())
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
            by.fleet.name == candidate.fleet_name && by.instance == candidate.instance_num
        }
    }
}
