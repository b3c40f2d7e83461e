//! Which instance a job gets (dstack 0.22.5: scheduling §4 and §5).

mod allowed;
mod choice;
mod host_rules;
mod share;

use std::time::Duration;

use dstack_model::backends::BackendType;
use dstack_model::common::EntityReference;
use dstack_model::fleets::FleetSpec;
use dstack_model::health::HealthStatus;
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::profiles::Profile;
use dstack_model::runs::{JobProvisioningData, JobSpec, RunSpec};
use dstack_units::{FleetId, InstanceId, Time};

use crate::matching::{Defaults, Machine, Mismatch, mismatches};
use crate::volumes::Location;

pub use choice::{Choice, HostNetwork};
pub use host_rules::{HostRules, notice_of_processes};
pub use share::Share;

/// An existing instance, as far as placement looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Fleet that the instance belongs to.
    pub fleet_id: FleetId,
    /// The fleet's name.
    pub fleet_name: &'a str,
    /// To whom that fleet belongs.
    pub fleet_owner: FleetOwner<'a>,
    /// The fleet's configuration.
    pub fleet_spec: &'a FleetSpec,
    /// This very machine.
    pub local: bool,
    /// What its owner allows there; `None`: everything.
    pub rules: Option<&'a HostRules>,
    /// Id.
    pub instance_id: InstanceId,
    /// Name.
    pub instance_name: &'a str,
    /// Number within the fleet.
    pub instance_num: i64,
    /// Status.
    pub status: InstanceStatus,
    /// Its agent cannot be reached.
    pub unreachable: bool,
    /// Since when, where it is so.
    pub unreachable_since: Option<Time>,
    /// Its cloud will take it away.
    pub leaving: bool,
    /// Health of its GPUs.
    pub health: HealthStatus,
    /// Blocks it is divided into; unknown until it was provisioned.
    pub total_blocks: Option<i64>,
    /// Number of blocks that jobs have taken.
    pub busy_blocks: i64,
    /// What it offers as a whole.
    pub offer: Option<&'a InstanceOfferWithAvailability>,
    /// Where it is.
    pub provisioning: Option<&'a JobProvisioningData>,
}

/// An agent that is out of reach for less may be there again at once: jobs wait so long for an instance that would do.
pub const AWAY: Duration = Duration::from_secs(30);

/// To whom a fleet belongs, as seen by a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetOwner<'a> {
    /// Name of its project; `None`: it is not known, and matches any.
    pub project: Option<&'a str>,
    /// Whether that is the run's own project.
    pub own: bool,
}

impl FleetOwner<'_> {
    /// The run's own project, whatever its name is.
    pub const OWN: Self = Self {
        project: None,
        own: true,
    };

    /// Whether a reference means its fleet of this name: without a project it means one of the run's own.
    pub fn is_meant(&self, name: &str, reference: &EntityReference) -> bool {
        reference.name == name
            && match &reference.project {
                Some(project) => self.project.is_none_or(|its| its == project),
                None => self.own,
            }
    }
}

/// A job that wants a place.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Specification of the run that the job belongs to.
    pub run_spec: &'a RunSpec,
    /// Specification of the job to place.
    pub job_spec: &'a JobSpec,
    /// The fleet that the run is bound to.
    pub run_fleet: Option<FleetId>,
    /// Where the first node of the replica is: the others must be in the same backend and region.
    pub master: Option<&'a JobProvisioningData>,
    /// Where the network volumes of the first mount point are; empty when there are none.
    pub volumes: &'a [Location],
    /// Backends whose instances reach each other; checked for jobs of several nodes. `None`: any.
    pub multinode_backends: Option<&'a [BackendType]>,
}

impl<'a> Request<'a> {
    /// Of a job whose run is bound to nothing.
    pub const fn new(run_spec: &'a RunSpec, job_spec: &'a JobSpec) -> Self {
        Self {
            run_spec,
            job_spec,
            run_fleet: None,
            master: None,
            volumes: &[],
            multinode_backends: None,
        }
    }

    /// Whether the job is one of several nodes.
    pub fn multinode(&self) -> bool {
        self.job_spec.requirements.multinode.unwrap_or(false) || self.job_spec.jobs_per_replica > 1
    }
}

/// Why an instance is not for a job. Prints as the end of a sentence that starts with the instance's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unfit {
    /// The run has another fleet.
    #[error("is in another fleet than the run")]
    OtherFleet,
    /// `fleets` does not name its fleet.
    #[error("is not in a fleet of `fleets`")]
    NotInFleets,
    /// `instances` does not name it.
    #[error("is not among `instances`")]
    NotSelected,
    /// Several nodes need a cluster.
    #[error("is not in a cluster fleet")]
    NotCluster,
    /// On its way out.
    #[error("is being terminated")]
    Terminating,
    /// Its cloud has said that it goes: a job would end at once.
    #[error("is about to be taken away by its cloud")]
    Leaving,
    /// It is the server's own, and takes no new jobs.
    #[error("is the server's own machine, which the server was not told to offer (`dstack server --local`)")]
    NotOffered,
    /// Its owner's files could be reached.
    #[error("runs nothing that is `privileged` (nor `docker: true`): it is the server's own machine")]
    Privileged,
    /// Its owner's files are there.
    #[error(
        "does not mount {0}: the server's files, keys or container engine are there, and this is its own machine"
    )]
    Protected(String),
    /// Its agent does not answer.
    #[error("is unreachable")]
    Unreachable,
    /// Its GPUs are broken.
    #[error("has failed hardware")]
    Failed,
    /// Nobody knows yet what it will be.
    #[error("is still being set up")]
    SettingUp,
    /// `backends` does not name its backend.
    #[error("is of another backend ({0})")]
    Backend(BackendType),
    /// `regions` does not name its region.
    #[error("is in another region ({0})")]
    Region(String),
    /// `instance_types` does not name its type.
    #[error("is of another instance type ({0})")]
    InstanceType(String),
    /// `availability_zones` does not name its zone.
    #[error("is in another zone ({0})")]
    Zone(String),
    /// Its backend's instances do not reach each other.
    #[error("is of a backend without clusters ({0})")]
    NoClusters(BackendType),
    /// The first node is elsewhere.
    #[error("is not where the first node is")]
    NotWithMaster,
    /// The volumes are elsewhere.
    #[error("is not where the volume is")]
    NotWithVolume,
    /// The volumes are in the account of the run's project.
    #[error("belongs to another project, and gets no network volumes of this one")]
    OthersWithVolume,
    /// Other jobs have a part of it, and this one needs the whole.
    #[error("is shared with other jobs")]
    Shared,
    /// It is not what was asked for.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

/// What a job wants, taken together once for many instances.
#[derive(Debug, Clone)]
pub struct Wants<'a> {
    request: Request<'a>,
    profile: Profile,
    /// The job names something that only a container has.
    names_container: bool,
}

impl<'a> Wants<'a> {
    /// Of a job.
    pub fn new(request: Request<'a>) -> Self {
        Self {
            profile: request.run_spec.merged_profile(),
            names_container: host_rules::names_container(request.run_spec, request.job_spec),
            request,
        }
    }

    /// The smallest share of the instance that the job could have.
    ///
    /// # Errors
    /// It could have none.
    pub fn share_of(&self, candidate: &Candidate<'_>) -> Result<Share, Unfit> {
        allowed::check(self, candidate)?;
        share::smallest(self, candidate)
    }

    /// Every choice of the run that speaks against where the instance is: backend, region, type, zone.
    ///
    /// # Errors
    /// Something else speaks against the instance, which no other choice would change.
    pub(crate) fn against_place(&self, candidate: &Candidate<'_>) -> Result<Vec<Unfit>, Unfit> {
        allowed::places(self, candidate)
    }

    /// The requirements that the nearest free share of the instance does not satisfy, by their number and then by
    /// `distance`; `None`: no share of it is free.
    pub(crate) fn nearest_free_share(
        &self,
        candidate: &Candidate<'_>,
        distance: impl Fn(&Mismatch) -> f64,
    ) -> Option<Vec<Mismatch>> {
        share::nearest_free(self, candidate, distance)
    }

    /// Every requirement that the whole instance does not satisfy.
    pub fn mismatches(&self, candidate: &Candidate<'_>) -> Vec<Mismatch> {
        let Some(offer) = candidate.offer else {
            return Vec::new();
        };
        let machine = Machine::whole(&offer.instance.resources, offer.price);
        mismatches(&self.request.job_spec.requirements, machine, defaults(candidate)).collect()
    }

    /// Whether the job names something that only a container has: `image`, `docker`, `user`, `privileged` or `volumes`.
    pub const fn names_container(&self) -> bool {
        self.names_container
    }

    /// Whether the instance is the last one for the job: it would run as a process there, and what it names of a container
    /// would be ignored.
    pub fn is_last_resort(&self, candidate: &Candidate<'_>) -> bool {
        candidate.rules.is_some_and(|rules| !rules.containers) && self.names_container
    }

    /// The request that was asked with: the job and what it is bound to.
    pub const fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// The run's profile.
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }
}

/// How the requirements of the configuration language's defaults count for an instance.
const fn defaults(candidate: &Candidate<'_>) -> Defaults {
    if candidate.local {
        Defaults::Relaxed
    } else {
        Defaults::Enforced
    }
}

/// One instance with the share that the job would get, or why it would get none.
#[derive(Debug, Clone)]
pub struct Considered<'a> {
    /// The instance that was looked at.
    pub candidate: Candidate<'a>,
    /// The share, available or busy; or the reason against it.
    pub verdict: Result<InstanceOfferWithAvailability, Unfit>,
}

/// Looks at every candidate, in order.
pub fn consider<'a>(request: &Request<'_>, candidates: &[Candidate<'a>]) -> Vec<Considered<'a>> {
    let wants = Wants::new(*request);
    candidates
        .iter()
        .map(|candidate| Considered {
            candidate: *candidate,
            verdict: wants
                .share_of(candidate)
                .and_then(|share| share.offer(candidate).ok_or(Unfit::SettingUp)),
        })
        .collect()
}

/// The instances that could take the job, now or once they are idle: those that are the last resort last, else cheapest first,
/// ties in order.
pub fn offers(wants: &Wants<'_>, candidates: &[Candidate<'_>]) -> Vec<InstanceOfferWithAvailability> {
    let ranked = ranked_offers(wants, candidates).into_iter();
    ranked.map(|(_, offer)| offer).collect()
}

/// Same as [`offers`], each with whether it is the last resort.
pub(crate) fn ranked_offers(
    wants: &Wants<'_>,
    candidates: &[Candidate<'_>],
) -> Vec<(bool, InstanceOfferWithAvailability)> {
    let mut offers: Vec<_> = candidates
        .iter()
        .filter_map(|candidate| {
            let offer = wants.share_of(candidate).ok()?.offer(candidate)?;
            Some((wants.is_last_resort(candidate), offer))
        })
        .collect();
    offers.sort_by(|(last, a), (last_too, b)| last.cmp(last_too).then(a.price.total_cmp(&b.price)));
    offers
}

#[cfg(test)]
pub(crate) mod tests;
