//! What could be made anew for a job.

use std::time::Duration;

use dstack_model::configurations::MountPoint;
use dstack_model::fleets::FleetSpec;
use dstack_model::profiles::{CreationPolicy, DEFAULT_RUN_IDLE_DURATION};
use dstack_model::runs::RunSpec;

use super::Fleet;
use crate::combine::{Conflict, fleet_requirements, profiles, requirements};
use crate::offers::Query;
use crate::placement::Request;

/// Why nothing new can be made for a job in a fleet. Prints as the end of a sentence that starts with the fleet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCapacity {
    /// Its hosts are the ones that were named.
    #[error("is an SSH fleet: it gets no new instances")]
    Ssh,
    /// It has as many instances as it may have.
    #[error("has {max} instances already, its `nodes.max`")]
    Full {
        /// `nodes.max`.
        max: i64,
    },
    /// The run wants existing instances only.
    #[error("may get no new instances for this run: `creation_policy: reuse`")]
    ReuseOnly,
    /// The run names its instances.
    #[error("may get no new instances for this run: it names its `instances`")]
    Targeted,
    /// They contradict each other.
    #[error("cannot get instances for this run: {0}")]
    Conflict(#[from] Conflict),
}

/// Which offers could become instances of the fleet for the job.
///
/// # Errors
/// No offer could become an instance of the fleet; the error says why.
pub fn new_capacity(request: &Request<'_>, fleet: &Fleet<'_>) -> Result<Query, NoCapacity> {
    check_allowed(request)?;
    let configuration = &fleet.spec.configuration;
    if configuration.ssh_config.is_some() {
        return Err(NoCapacity::Ssh);
    }
    if let Some((left, max)) = fleet.instances_left()
        && left <= 0
    {
        return Err(NoCapacity::Full { max });
    }
    let run_profile = request.run_spec.merged_profile();
    let profile = profiles(&fleet.spec.merged_profile(), &run_profile)?;
    let wanted = requirements(&fleet_requirements(fleet.spec), &request.job_spec.requirements)?;
    let master = fleet.master.filter(|_| fleet.is_cluster()).or(request.master);
    Ok(for_job(Query::new(&profile, wanted), request).beside(master))
}

/// Which offers count for a job in no fleet: only to list them.
///
/// # Errors
/// No offer counts for the job; the error says why.
pub fn new_capacity_outside_fleets(request: &Request<'_>) -> Result<Query, NoCapacity> {
    check_allowed(request)?;
    let profile = request.run_spec.merged_profile();
    let wanted = request.job_spec.requirements.clone();
    Ok(for_job(Query::new(&profile, wanted), request))
}

/// How long an instance that is made for the run may be idle; `None`: for ever.
///
/// # Errors
/// Nothing can be made for the run in this fleet.
pub fn idle_for(fleet: &FleetSpec, run: &RunSpec) -> Result<Option<Duration>, Conflict> {
    let both = profiles(&fleet.merged_profile(), &run.merged_profile())?;
    let seconds = both
        .params
        .idle_duration
        .map_or(DEFAULT_RUN_IDLE_DURATION.0, |idle| idle.0);
    // Off is negative.
    Ok(u64::try_from(seconds).ok().map(Duration::from_secs))
}

fn check_allowed(request: &Request<'_>) -> Result<(), NoCapacity> {
    let params = request.run_spec.merged_profile().params;
    if params.creation_policy == Some(CreationPolicy::Reuse) {
        return Err(NoCapacity::ReuseOnly);
    }
    if params.instances.is_some() {
        return Err(NoCapacity::Targeted);
    }
    Ok(())
}

fn for_job(mut query: Query, request: &Request<'_>) -> Query {
    let mounts = &request.run_spec.configuration.base().volumes;
    query.needs.multinode |= request.multinode();
    query.needs.privileged = request.job_spec.privileged;
    query.needs.instance_volumes = mounts
        .iter()
        .any(|mount| matches!(mount, MountPoint::Instance(mount) if !mount.optional));
    // Beside a first node that is there, the others come one after the other.
    let nodes = match request.master {
        Some(_) => 1,
        None => request.job_spec.jobs_per_replica,
    };
    query.at(request.volumes).for_nodes(nodes)
}
