//! Which fleet a run gets (dstack 0.22.5: scheduling §4).
//!
//! Fleets whose idle instances suffice come first, then those with the cheapest idle instance, then those whose
//! cheapest new one costs least. Existing instances are matched with what the run asks for alone; new ones with what
//! the fleet and the run ask for together.

mod attempts;
mod capacity;
mod cluster;
mod own;
mod refusal;
mod targeted;

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::fleets::{FleetSpec, InstanceGroupPlacement};
use dstack_model::limits;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobProvisioningData, RunSpec};
use dstack_units::FleetId;

use crate::placement::{Candidate, FleetOwner, Request, Wants, ranked_offers};

pub use attempts::{Failure, MAX_OFFERS_TRIED, add_failure, all_failed, none_for_fleet};
pub use capacity::{NoCapacity, idle_for, new_capacity, new_capacity_outside_fleets};
pub use cluster::{ClusterAnchor, cluster_anchor};
pub use own::{fits, is_cluster, is_of_clouds, own_capacity, own_idle_for};
pub(crate) use refusal::{obstacle, refusal};
pub use targeted::targeted;

/// More offers of backends than this are not looked at while a fleet is searched for.
pub const OFFERS_PER_FLEET: usize = 100;

/// A fleet with its instances.
#[derive(Debug, Clone)]
pub struct Fleet<'a> {
    /// Id.
    pub id: FleetId,
    /// Name.
    pub name: &'a str,
    /// The project it belongs to; `None`: it is not known, and matches any.
    pub project: Option<&'a str>,
    /// Whether that is the run's own project.
    pub own: bool,
    /// What it is made from.
    pub spec: &'a FleetSpec,
    /// Where the first node of the cluster is.
    pub master: Option<&'a JobProvisioningData>,
    /// The first instance of the cluster is being made: where the others go is not known yet.
    pub anchor_pending: bool,
    /// Its instances, cheapest first.
    pub instances: Vec<Candidate<'a>>,
}

impl Fleet<'_> {
    pub(crate) fn is_cluster(&self) -> bool {
        self.spec.configuration.placement == Some(InstanceGroupPlacement::Cluster)
    }

    /// How many instances it may still get, and `nodes.max`; `None`: as many as it likes.
    pub(crate) fn instances_left(&self) -> Option<(i64, i64)> {
        let max = self.spec.configuration.nodes.and_then(|nodes| nodes.max)?;
        let active = self.instances.iter().filter(|one| one.status.is_active()).count();
        Some((max.saturating_sub(i64::try_from(active).unwrap_or(i64::MAX)), max))
    }
}

/// Why a fleet is not for a run. Prints as the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// `fleets` does not name it.
    #[error("is not among `fleets`")]
    NotNamed,
    /// The run has another fleet already.
    #[error("is not the fleet of the run")]
    OtherFleet,
    /// The volumes are in the account of the run's project.
    #[error("belongs to another project, and gets no network volumes of this one")]
    OthersWithVolume,
    /// Several nodes need a cluster.
    #[error("is not a cluster (`placement: cluster`), which a run of several nodes needs")]
    NotCluster,
    /// The fleet cannot take as many more nodes as the run needs.
    #[error("has room for {free} more nodes, the run needs {needed}")]
    TooSmall {
        /// Nodes that it could still take.
        free: i64,
        /// Nodes that the run needs.
        needed: i64,
    },
}

/// How many nodes a run needs at once.
pub fn nodes_required(run: &RunSpec) -> i64 {
    match &run.configuration {
        AnyRunConfiguration::Task(task) => task.nodes_num(),
        AnyRunConfiguration::Service(service) => {
            let groups = service.replica_groups();
            limits::sum(groups.iter().map(|group| group.replicas.min.unwrap_or(0)))
        }
        AnyRunConfiguration::DevEnvironment(_) => 1,
    }
}

/// Whether a run may look at a fleet at all: `fleets`, and the fleet it already has.
///
/// # Errors
/// It may not.
pub fn check_named(request: &Request<'_>, fleet: &Fleet<'_>) -> Result<(), Skipped> {
    if request.run_fleet.is_some_and(|id| id != fleet.id) {
        return Err(Skipped::OtherFleet);
    }
    let params = request.run_spec.merged_profile().params;
    let named = params.fleets.is_none_or(|fleets| {
        let owner = FleetOwner {
            project: fleet.project,
            own: fleet.own,
        };
        fleets
            .iter()
            .any(|reference| owner.is_meant(fleet.name, reference))
    });
    match named {
        false => Err(Skipped::NotNamed),
        true if !request.volumes.is_empty() && !fleet.own => Err(Skipped::OthersWithVolume),
        true => Ok(()),
    }
}

/// Whether a run could fit into a fleet. May say yes where in the end it does not fit.
///
/// # Errors
/// It surely does not fit.
pub fn check_room(request: &Request<'_>, fleet: &Fleet<'_>) -> Result<(), Skipped> {
    check_room_besides(request, fleet, 0)
}

/// The same once other jobs have taken `taken` more instances of it.
pub(crate) fn check_room_besides(
    request: &Request<'_>,
    fleet: &Fleet<'_>,
    taken: i64,
) -> Result<(), Skipped> {
    if request.multinode() && !fleet.is_cluster() {
        return Err(Skipped::NotCluster);
    }
    // A run that has the fleet already has some of its nodes there.
    let needed = match request.run_fleet {
        Some(_) => 1,
        None => nodes_required(request.run_spec),
    };
    match room(fleet).map(|free| free.saturating_sub(taken)) {
        Some(free) if free < needed => Err(Skipped::TooSmall { free, needed }),
        _ => Ok(()),
    }
}

/// Nodes that the fleet could still take, where that is known.
fn room(fleet: &Fleet<'_>) -> Option<i64> {
    let configuration = &fleet.spec.configuration;
    if let Some(nodes) = &configuration.nodes {
        // Nobody knows how many jobs an instance takes that is divided.
        let whole = configuration.blocks == dstack_model::fleets::Blocks::Count(1);
        let max = nodes.max.filter(|_| whole)?;
        let busy = fleet.instances.iter().filter(|one| one.busy_blocks > 0).count();
        return Some(max.saturating_sub(i64::try_from(busy).unwrap_or(i64::MAX)));
    }
    configuration.ssh_config.as_ref()?;
    let free = |one: &Candidate<'_>| one.total_blocks.unwrap_or(1).saturating_sub(one.busy_blocks);
    Some(fleet.instances.iter().map(free).sum())
}

/// A fleet that could take the run, with what its instances offer.
#[derive(Debug, Clone)]
pub struct Eligible<'f, 'a> {
    /// The fleet that could take the run.
    pub fleet: &'f Fleet<'a>,
    /// Shares of its instances, idle or not, cheapest first; those where the job would be a process, though it names
    /// something of a container, last.
    pub instance_offers: Vec<Offer>,
    /// What is idle would run the job as such a process.
    pub is_last_resort: bool,
    /// Whether its idle instances suffice for the whole run.
    pub has_capacity: bool,
}

impl Eligible<'_, '_> {
    /// By which fleets are compared: the least is best.
    fn rank(&self, new: &[Offer]) -> ((bool, bool), f64, f64) {
        (
            (!self.has_capacity, self.is_last_resort),
            cheapest_available(&self.instance_offers),
            cheapest_available(new),
        )
    }
}

/// Infinite when nothing is available.
fn cheapest_available(offers: &[Offer]) -> f64 {
    let mut available = offers.iter().filter(|offer| offer.availability.is_available());
    available.next().map_or(f64::INFINITY, |offer| offer.price)
}

/// The fleets that the run could fit into.
pub fn eligible<'f, 'a>(request: &Request<'_>, fleets: &'f [Fleet<'a>]) -> Vec<Eligible<'f, 'a>> {
    let wants = Wants::new(*request);
    let needed = nodes_required(request.run_spec);
    fleets
        .iter()
        .filter(|fleet| check_named(request, fleet).is_ok() && check_room(request, fleet).is_ok())
        .map(|fleet| {
            let (is_last_resort, instance_offers) = instance_offers(&wants, fleet);
            let idle = instance_offers
                .iter()
                .filter(|offer| offer.availability.is_available())
                .count();
            Eligible {
                fleet,
                is_last_resort,
                // A service that starts from no replicas needs none: still an empty fleet has no capacity.
                has_capacity: idle > 0 && i64::try_from(idle).unwrap_or(i64::MAX) >= needed,
                instance_offers,
            }
        })
        .collect()
}

/// What the fleet's instances offer, and whether what is idle of that is the last resort only.
fn instance_offers(wants: &Wants<'_>, fleet: &Fleet<'_>) -> (bool, Vec<Offer>) {
    let ranked = ranked_offers(wants, &fleet.instances);
    let mut available = ranked
        .iter()
        .filter(|(_, offer)| offer.availability.is_available());
    let is_last_resort = available.next().is_some_and(|(last, _)| *last);
    (
        is_last_resort,
        ranked.into_iter().map(|(_, offer)| offer).collect(),
    )
}

/// The best fleet, the earlier among equals: its place in the list. `new` has what backends offer for each (empty where
/// nothing new may be made).
pub fn best(eligible: &[Eligible<'_, '_>], new: &[Vec<Offer>]) -> Option<usize> {
    let ranks = eligible
        .iter()
        .enumerate()
        .map(|(at, one)| (at, one.rank(new.get(at).map_or(&[], Vec::as_slice))));
    ranks
        .min_by(|(_, a), (_, b)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2)))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests;
