//! What a fleet and a run ask for together: decides about new capacity in the fleet (dstack 0.22.5: scheduling §3).
//!
//! Unset is unconstrained. A conflict makes the fleet unusable for new capacity; its existing instances are matched
//! with what the run asks for alone.

mod fields;

use dstack_model::fleets::{FleetSpec, InstanceGroupPlacement};
use dstack_model::profiles::{Profile, ProfileParams, SpotPolicy, VastAiProfileOptions};
use dstack_model::resources::{DiskSpec, ResourcesSpec};
use dstack_model::runs::Requirements;
use dstack_units::{CpuSpec, GpuSpec};

use fields::{both, equal, intersection, larger, names, narrowed, smaller};

/// A fleet and a run that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` of the fleet ({fleet}) contradicts that of the run ({run})")]
pub struct Conflict {
    /// As in the configuration: `resources.gpu.count`.
    pub field: &'static str,
    /// What the fleet asks for.
    pub fleet: String,
    /// What the run asks for.
    pub run: String,
}

/// What instances of a fleet must be like.
pub fn fleet_requirements(spec: &FleetSpec) -> Requirements {
    let params = spec.merged_profile().params;
    let resources = &spec.configuration.resources;
    Requirements {
        resources: resources.clone().unwrap_or_else(ResourcesSpec::unconstrained),
        max_price: params.max_price,
        spot: params.spot_policy.unwrap_or(SpotPolicy::OnDemand).requirement(),
        reservation: spec.configuration.reservation.clone(),
        multinode: Some(spec.configuration.placement == Some(InstanceGroupPlacement::Cluster)),
        backend_options: params.backend_options,
    }
}

/// The parameters that decide which offers count, and those that new instances get. Others (retry, durations,
/// schedule, …) stay the run's affair and are unset here.
///
/// # Errors
/// They contradict each other.
pub fn profiles(fleet: &Profile, run: &Profile) -> Result<Profile, Conflict> {
    let (a, b) = (&fleet.params, &run.params);
    let params = ProfileParams {
        backends: intersection(a.backends.as_deref(), b.backends.as_deref(), |x, y| x == y),
        regions: names(a.regions.as_deref(), b.regions.as_deref()),
        availability_zones: names(a.availability_zones.as_deref(), b.availability_zones.as_deref()),
        instance_types: names(a.instance_types.as_deref(), b.instance_types.as_deref()),
        reservation: equal("reservation", a.reservation.as_ref(), b.reservation.as_ref())?,
        spot_policy: spot_policy(a.spot_policy, b.spot_policy)?,
        max_price: smaller(a.max_price, b.max_price),
        idle_duration: both(a.idle_duration, b.idle_duration, |x, y| {
            match (x.0 < 0, y.0 < 0) {
                (true, false) => y,
                (false, true) => x,
                _ => x.min(y),
            }
        }),
        tags: both(a.tags.clone(), b.tags.clone(), |mut tags, of_run| {
            tags.extend(of_run);
            tags
        }),
        backend_options: backend_options(a.backend_options.as_deref(), b.backend_options.as_deref())?,
        ..ProfileParams::default()
    };
    Ok(Profile {
        params,
        ..Profile::default()
    })
}

fn spot_policy(fleet: Option<SpotPolicy>, run: Option<SpotPolicy>) -> Result<Option<SpotPolicy>, Conflict> {
    match (fleet, run) {
        (Some(SpotPolicy::Auto), Some(other)) | (Some(other), Some(SpotPolicy::Auto)) => Ok(Some(other)),
        _ => equal("spot_policy", fleet.as_ref(), run.as_ref()),
    }
}

/// What new instances must be like.
///
/// # Errors
/// They contradict each other.
pub fn requirements(fleet: &Requirements, run: &Requirements) -> Result<Requirements, Conflict> {
    Ok(Requirements {
        resources: resources(&fleet.resources, &run.resources)?,
        max_price: smaller(fleet.max_price, run.max_price),
        spot: spot(fleet.spot, run.spot)?,
        reservation: equal(
            "reservation",
            fleet.reservation.as_ref(),
            run.reservation.as_ref(),
        )?,
        multinode: match (fleet.multinode, run.multinode) {
            (Some(true), _) => Some(true),
            (_, of_run) => of_run,
        },
        backend_options: backend_options(fleet.backend_options.as_deref(), run.backend_options.as_deref())?,
    })
}

/// Spot, on-demand, or either when unset.
fn spot(fleet: Option<bool>, run: Option<bool>) -> Result<Option<bool>, Conflict> {
    let policy = |spot: bool| {
        if spot {
            SpotPolicy::Spot
        } else {
            SpotPolicy::OnDemand
        }
    };
    let both = equal(
        "spot_policy",
        fleet.map(policy).as_ref(),
        run.map(policy).as_ref(),
    )?;
    Ok(both.and_then(SpotPolicy::requirement))
}

fn resources(fleet: &ResourcesSpec, run: &ResourcesSpec) -> Result<ResourcesSpec, Conflict> {
    Ok(ResourcesSpec {
        cpu: CpuSpec {
            arch: equal(
                "resources.cpu.arch",
                fleet.cpu.arch.as_ref(),
                run.cpu.arch.as_ref(),
            )?,
            count: narrowed("resources.cpu", fleet.cpu.count, run.cpu.count)?,
        },
        memory: narrowed("resources.memory", fleet.memory, run.memory)?,
        shm_size: smaller(fleet.shm_size, run.shm_size),
        gpu: match (&fleet.gpu, &run.gpu) {
            (Some(fleet), Some(run)) => Some(gpu(fleet, run)?),
            (fleet, run) => run.as_ref().or(fleet.as_ref()).cloned(),
        },
        disk: match (&fleet.disk, &run.disk) {
            (Some(fleet), Some(run)) => Some(DiskSpec {
                size: narrowed("resources.disk", fleet.size, run.size)?,
            }),
            (fleet, run) => run.or(*fleet),
        },
    })
}

fn gpu(fleet: &GpuSpec, run: &GpuSpec) -> Result<GpuSpec, Conflict> {
    let range = |field, a, b| match (a, b) {
        (Some(a), Some(b)) => narrowed(field, a, b).map(Some),
        (a, b) => Ok(a.or(b)),
    };
    Ok(GpuSpec {
        vendor: equal("resources.gpu.vendor", fleet.vendor.as_ref(), run.vendor.as_ref())?,
        name: names(fleet.name.as_deref(), run.name.as_deref()),
        count: narrowed("resources.gpu.count", fleet.count, run.count)?,
        memory: range("resources.gpu.memory", fleet.memory, run.memory)?,
        total_memory: range("resources.gpu.total_memory", fleet.total_memory, run.total_memory)?,
        compute_capability: larger(fleet.compute_capability, run.compute_capability),
    })
}

/// At most one entry for each backend; Vast.ai is the only one that has any.
fn backend_options(
    fleet: Option<&[VastAiProfileOptions]>,
    run: Option<&[VastAiProfileOptions]>,
) -> Result<Option<Vec<VastAiProfileOptions>>, Conflict> {
    let (Some(fleet), Some(run)) = (fleet, run) else {
        return Ok(fleet.or(run).map(<[_]>::to_vec));
    };
    match (fleet.first(), run.first()) {
        (Some(a), Some(b)) => Ok(Some(vec![VastAiProfileOptions {
            kind: a.kind,
            offer_order: equal("backend_options", a.offer_order.as_ref(), b.offer_order.as_ref())?,
            min_reliability: larger(a.min_reliability, b.min_reliability),
            min_score: larger(a.min_score, b.min_score),
        }])),
        (a, b) => Ok(Some(a.or(b).into_iter().cloned().collect())),
    }
}

#[cfg(test)]
mod tests;
