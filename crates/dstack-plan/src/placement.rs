//! Which instance a job gets (dstack 0.22.5: scheduling §4 and §5).

use dstack_model::common::NetworkMode;
use dstack_model::fleets::{FleetSpec, InstanceGroupPlacement};
use dstack_model::health::HealthStatus;
use dstack_model::instances::{InstanceAvailability, InstanceStatus, Resources};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::profiles::{InstanceSelector, Profile};
use dstack_model::runs::{JobProvisioningData, JobRuntimeData, JobSpec, RunSpec};
use dstack_units::{FleetId, InstanceId, Memory};

use crate::matching::{Defaults, check};

/// An existing instance, as far as placement looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its fleet.
    pub fleet_id: FleetId,
    /// The fleet's name.
    pub fleet_name: &'a str,
    /// The fleet's configuration.
    pub fleet_spec: &'a FleetSpec,
    /// This very machine.
    pub local: bool,
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
    /// Health of its GPUs.
    pub health: HealthStatus,
    /// Blocks it is divided into; unknown until it was provisioned.
    pub total_blocks: Option<i64>,
    /// Blocks taken.
    pub busy_blocks: i64,
    /// What it offers as a whole.
    pub offer: Option<&'a InstanceOfferWithAvailability>,
    /// Where it is.
    pub provisioning: Option<&'a JobProvisioningData>,
}

/// A job that wants a place.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its run.
    pub run_spec: &'a RunSpec,
    /// The job.
    pub job_spec: &'a JobSpec,
    /// The fleet that the run is bound to.
    pub run_fleet: Option<FleetId>,
}

/// A place.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Fleet of the instance.
    pub fleet_id: FleetId,
    /// The instance.
    pub instance_id: InstanceId,
    /// The job's share of it.
    pub offer: InstanceOfferWithAvailability,
    /// Takes the whole instance.
    pub whole: bool,
    /// This very machine.
    pub local: bool,
}

impl Choice {
    /// What the job's row records of its place. The network is the host's when the job has the machine to
    /// itself (`DSTACK_SERVER_JOB_NETWORK_MODE` 2); on this very machine it never is, so that a job's ports cannot
    /// clash with those of the server or of another program.
    pub fn runtime_data(&self) -> JobRuntimeData {
        let share = &self.offer.instance.resources;
        let limited = !self.whole;
        JobRuntimeData {
            network_mode: if self.whole && !self.local {
                NetworkMode::Host
            } else {
                NetworkMode::Bridge
            },
            gpu: limited.then_some(i64::try_from(share.gpus.len()).unwrap_or(0)),
            cpu: limited.then_some(to_f64(share.cpus)),
            memory: limited.then_some(Memory::from_mib(to_f64(share.memory_mib))),
            ports: None,
            volume_names: None,
            offer: Some(self.offer.clone()),
            working_dir: None,
            username: None,
        }
    }
}

#[allow(clippy::cast_precision_loss)] // sizes of machines
const fn to_f64(value: i64) -> f64 {
    value as f64
}

/// One instance with the share that the job would get, or why it would get none.
#[derive(Debug, Clone)]
pub struct Considered<'a> {
    /// The instance.
    pub candidate: Candidate<'a>,
    /// The share, available or busy; or the reason against it.
    pub verdict: Result<InstanceOfferWithAvailability, String>,
}

/// Looks at every candidate, in order.
pub fn consider<'a>(request: &Request<'_>, candidates: &[Candidate<'a>]) -> Vec<Considered<'a>> {
    let profile = request.run_spec.merged_profile();
    candidates
        .iter()
        .map(|candidate| Considered {
            candidate: *candidate,
            verdict: share(request, &profile, candidate),
        })
        .collect()
}

/// The instance for a job: the cheapest available one, fleets in order; or the message of dstack 0.22.5.
pub fn choose(request: &Request<'_>, candidates: &[Candidate<'_>]) -> Result<Choice, String> {
    let considered = consider(request, candidates);
    let available = considered.iter().filter_map(|considered| {
        let offer = considered.verdict.as_ref().ok()?;
        (offer.availability == InstanceAvailability::Idle).then_some((considered.candidate, offer))
    });
    let cheapest = available.min_by(|(_, a), (_, b)| a.price.total_cmp(&b.price));
    let Some((candidate, offer)) = cheapest else {
        return Err(no_place(request, &considered));
    };
    Ok(Choice {
        fleet_id: candidate.fleet_id,
        instance_id: candidate.instance_id,
        offer: offer.clone(),
        whole: i64::from(offer.blocks) >= candidate.total_blocks.unwrap_or(1),
        local: candidate.local,
    })
}

fn no_place(request: &Request<'_>, considered: &[Considered<'_>]) -> String {
    let profile = request.run_spec.merged_profile();
    let headline = if profile.params.instances.is_some() {
        "Failed to use specified instances"
    } else if profile.params.fleets.is_some() {
        "Failed to use specified fleets"
    } else {
        "No matching fleet found"
    };
    let why = |one: &Considered<'_>| {
        let reason = match &one.verdict {
            Ok(_) => "is busy".to_owned(),
            Err(reason) => reason.clone(),
        };
        format!("{} {reason}", one.candidate.instance_name)
    };
    match considered.len() {
        0 => format!("{headline}. The project has no fleet with an instance"),
        _ => {
            let mut reasons: Vec<String> = considered.iter().take(3).map(why).collect();
            if considered.len() > reasons.len() {
                reasons.push(format!("and {} more", considered.len() - reasons.len()));
            }
            format!("{headline}. {}", reasons.join("; "))
        }
    }
}

fn share(
    request: &Request<'_>,
    profile: &Profile,
    candidate: &Candidate<'_>,
) -> Result<InstanceOfferWithAvailability, String> {
    allowed(request, profile, candidate)?;
    let total = candidate.total_blocks.ok_or("is still being set up")?;
    let offer = candidate.offer.ok_or("is still being set up")?;
    let defaults = if candidate.local {
        Defaults::Relaxed
    } else {
        Defaults::Enforced
    };
    let requirements = &request.job_spec.requirements;
    let multinode = requirements.multinode.unwrap_or(false);
    let mut reason = String::new();
    let smallest = if multinode { total } else { 1 };
    for blocks in smallest..=total.max(1) {
        let part = part(offer, blocks, total.max(1));
        match check(requirements, &part.instance.resources, part.price, defaults) {
            Ok(()) => return Ok(with_availability(part, candidate, blocks, total, multinode)),
            Err(mismatch) => reason = mismatch,
        }
    }
    Err(reason)
}

fn with_availability(
    mut part: InstanceOfferWithAvailability,
    candidate: &Candidate<'_>,
    blocks: i64,
    total: i64,
    multinode: bool,
) -> InstanceOfferWithAvailability {
    let up = matches!(candidate.status, InstanceStatus::Idle | InstanceStatus::Busy);
    let free = total - candidate.busy_blocks;
    let fits = if multinode {
        candidate.busy_blocks == 0
    } else {
        blocks <= free
    };
    part.availability = if up && fits {
        InstanceAvailability::Idle
    } else {
        InstanceAvailability::Busy
    };
    part
}

/// The share of `blocks` out of `total`: CPUs, memory and GPUs divided, disk and price whole.
fn part(offer: &InstanceOfferWithAvailability, blocks: i64, total: i64) -> InstanceOfferWithAvailability {
    let mut part = offer.clone();
    let whole = &offer.instance.resources;
    let of = |value: i64| value / total * blocks;
    if total > 1 {
        let gpus = usize::try_from(of(i64::try_from(whole.gpus.len()).unwrap_or(0))).unwrap_or(0);
        part.instance.resources = Resources {
            cpus: of(whole.cpus),
            memory_mib: of(whole.memory_mib),
            gpus: whole.gpus.iter().take(gpus).cloned().collect(),
            ..whole.clone()
        };
    }
    part.blocks = u32::try_from(blocks).unwrap_or(1);
    part.total_blocks = u32::try_from(total).unwrap_or(1);
    part
}

fn allowed(request: &Request<'_>, profile: &Profile, candidate: &Candidate<'_>) -> Result<(), String> {
    if request.run_fleet.is_some_and(|fleet| fleet != candidate.fleet_id) {
        return Err("is in another fleet than the run".to_owned());
    }
    if let Some(fleets) = &profile.params.fleets
        && !fleets.iter().any(|fleet| fleet.name == candidate.fleet_name)
    {
        return Err("is not in a fleet of `fleets`".to_owned());
    }
    if let Some(selectors) = &profile.params.instances
        && !selectors.iter().any(|selector| selects(selector, candidate))
    {
        return Err("is not among `instances`".to_owned());
    }
    let cluster = candidate.fleet_spec.configuration.placement == Some(InstanceGroupPlacement::Cluster);
    if request.job_spec.requirements.multinode.unwrap_or(false) && !cluster {
        return Err("is not in a cluster fleet".to_owned());
    }
    if matches!(
        candidate.status,
        InstanceStatus::Terminating | InstanceStatus::Terminated
    ) {
        return Err("is being terminated".to_owned());
    }
    if candidate.unreachable {
        return Err("is unreachable".to_owned());
    }
    if candidate.health == HealthStatus::Failure {
        return Err("has failed hardware".to_owned());
    }
    let Some(place) = candidate.provisioning else {
        return Ok(());
    };
    if let Some(backends) = &profile.params.backends
        && !backends.contains(&place.backend)
    {
        return Err("is of another backend".to_owned());
    }
    let any = |names: &Option<Vec<String>>, name: &str| {
        names
            .as_ref()
            .is_none_or(|names| names.iter().any(|other| other.eq_ignore_ascii_case(name)))
    };
    if !any(&profile.params.regions, &place.region) {
        return Err("is in another region".to_owned());
    }
    if !any(&profile.params.instance_types, &place.instance_type.name) {
        return Err("is of another instance type".to_owned());
    }
    match &place.availability_zone {
        Some(zone) if !any(&profile.params.availability_zones, zone) => Err("is in another zone".to_owned()),
        _ => Ok(()),
    }
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
