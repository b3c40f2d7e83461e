//! Fleets and instances as the planner sees them.

use dstack_model::fleets::FleetStatus;
use dstack_plan::fleets::{ClusterAnchor, Fleet, cluster_anchor, is_cluster};
use dstack_plan::placement::{Candidate, FleetOwner};
use dstack_store::PlacementSnapshot;
use dstack_store::rows::{AgentAddress, FleetRow, InstanceRow};
use dstack_units::Time;

/// The fleets that a project may use and that are not being ended, with their instances: those with instances first as dstack 0.22.5 has
/// them, oldest first otherwise. `project` is its name, where that is known.
pub fn fleets<'a>(placement: &'a PlacementSnapshot, project: Option<&'a str>) -> Vec<Fleet<'a>> {
    let mut fleets: Vec<Fleet<'a>> = placement
        .fleets
        .iter()
        .filter(|row| row.status() != FleetStatus::Terminating)
        .map(|row| fleet(placement, row, project))
        .collect();
    fleets.sort_by_key(|fleet| fleet.instances.is_empty());
    fleets
}

fn fleet<'a>(placement: &'a PlacementSnapshot, row: &'a FleetRow, project: Option<&'a str>) -> Fleet<'a> {
    let its = || {
        let instances = placement.instances.iter();
        instances.filter(|instance| instance.fleet_id == Some(row.id))
    };
    let anchor = if is_cluster(&row.spec) {
        let alive = its().filter(|row| row.status().is_active());
        let places = alive.map(|row| (row.id, row.job_provisioning_data.as_deref()));
        cluster_anchor(places, row.current_master_instance_id)
    } else {
        ClusterAnchor::None
    };
    let owner = FleetOwner {
        project: match placement.project_names.get(&row.project_id) {
            Some(name) => Some(name),
            None => project,
        },
        own: row.project_id == placement.project,
    };
    Fleet {
        id: row.id,
        name: &row.name,
        project: owner.project,
        own: owner.own,
        spec: &row.spec,
        master: match anchor {
            ClusterAnchor::At(place) => Some(place),
            ClusterAnchor::None | ClusterAnchor::Undecided => None,
        },
        anchor_pending: anchor == ClusterAnchor::Undecided,
        instances: its().map(|instance| candidate(row, owner, instance)).collect(),
    }
}

fn candidate<'a>(fleet: &'a FleetRow, owner: FleetOwner<'a>, instance: &'a InstanceRow) -> Candidate<'a> {
    Candidate {
        fleet_id: fleet.id,
        fleet_name: &fleet.name,
        fleet_owner: owner,
        fleet_spec: &fleet.spec,
        local: fleet.local,
        rules: instance.agent.as_deref().map(AgentAddress::rules),
        instance_id: instance.id,
        instance_name: &instance.name,
        instance_num: instance.instance_num,
        status: instance.status(),
        unreachable: instance.unreachable,
        unreachable_since: instance.unreachable_since.filter(|_| instance.unreachable),
        leaving: instance.leaving_because.is_some(),
        health: instance.health,
        total_blocks: instance.total_blocks,
        busy_blocks: instance.busy_blocks,
        offer: instance.offer.as_deref(),
        provisioning: instance.job_provisioning_data.as_deref(),
    }
}

/// The fleet as it is written whenever its instances were counted to decide about one of them: of two who count at the same
/// time, one counts again. So a fleet is never larger or smaller than it may be.
pub(super) fn counted(fleet: &FleetRow, now: Time) -> FleetRow {
    let mut counted = fleet.clone();
    counted.last_processed_at = now;
    counted
}
