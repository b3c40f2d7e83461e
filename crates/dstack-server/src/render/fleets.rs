//! Fleets and instances.

use dstack_control::fleets::hosts::without_keys;
use dstack_model::fleets::{Fleet, FleetSpec};
use dstack_model::instances::Instance;
use dstack_store::queries::views::{ListedFleet, ListedInstance};
use dstack_units::FleetId;

/// Returns the instance as clients see it.
pub(crate) fn instance(listed: &ListedInstance) -> Instance {
    let row = &listed.instance;
    let offer = row.offer.as_deref();
    let place = row.job_provisioning_data.as_deref();
    Instance {
        id: row.id,
        project_name: listed.project_name.clone(),
        backend: offer.map(|offer| offer.backend),
        instance_type: place.map(|place| place.instance_type.clone()),
        name: row.name.clone(),
        fleet_id: row.fleet_id,
        fleet_name: listed.fleet_name.clone(),
        instance_num: count(row.instance_num),
        job_name: listed.job_name.clone(),
        hostname: place.and_then(|place| place.hostname.clone()),
        status: row.status(),
        unreachable: row.unreachable,
        health_status: row.health,
        termination_reason: row.termination_reason().map(|reason| reason.as_str().to_owned()),
        termination_reason_message: row.termination_reason_message().map(str::to_owned),
        created: row.created_at,
        finished_at: row.finished_at,
        region: offer.map(|offer| offer.region.to_string()),
        availability_zone: place.and_then(|place| place.availability_zone.clone()),
        price: offer.map(|offer| offer.price),
        total_blocks: row.total_blocks.map(count),
        busy_blocks: count(row.busy_blocks),
        gpu_driver: place.and_then(|place| place.gpu_driver.clone()),
        waiting_for: row.waiting_for().map(ToString::to_string),
        waits_until: row.deadline_at().filter(|_| row.waiting_for().is_some()),
    }
}

fn count(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A fleet with those of the instances that are its own.
pub(crate) fn fleet(listed: &ListedFleet, instances: &[ListedInstance]) -> Fleet {
    let row = &listed.fleet;
    Fleet {
        id: row.id,
        name: row.name.clone(),
        project_name: listed.project_name.clone(),
        spec: without_keys(FleetSpec::clone(&row.spec)),
        created_at: row.created_at,
        status: row.status(),
        status_message: row.status_message.clone(),
        instances: instances
            .iter()
            .filter(|listed| belongs(listed, row.id))
            .map(instance)
            .collect(),
    }
}

fn belongs(listed: &ListedInstance, fleet: FleetId) -> bool {
    listed.instance.fleet_id == Some(fleet)
}
