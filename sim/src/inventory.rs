//! What is in a world, in a few lines: for the messages of tests that fail.

use dstack_plan::lifecycle::WaitReason;
use dstack_store::rows::{FleetRow, InstanceRow, JobRow, RunRow, VolumeRow};

use crate::{World, invariants};

/// A line for each fleet, instance, run, job and machine, and for each thing that is not as it is at rest.
pub fn of(world: &World) -> String {
    let tables = world.store.tables();
    let mut lines: Vec<String> = Vec::new();
    lines.extend(tables.fleets.values().map(fleet));
    lines.extend(tables.instances.values().map(instance));
    lines.extend(tables.runs.values().map(run));
    lines.extend(tables.jobs.values().map(job));
    lines.extend(tables.volumes.values().map(volume));
    let groups = tables.placement_groups.values();
    lines.extend(groups.map(|row| {
        let (name, place) = (&row.name, &row.configuration.region);
        let waits = waits(row.waiting_for());
        format!("placement group of {name} in {place}: {:?}{waits}", row.status())
    }));
    let groups = tables.compute_groups.values();
    lines.extend(groups.map(|row| {
        let waits = waits(row.waiting_for());
        format!("compute group {}: {:?}{waits}", row.name, row.status())
    }));
    lines.extend(
        world
            .clouds
            .machines()
            .iter()
            .chain(&world.clouds.containers())
            .map(|machine| format!("{machine:?}")),
    );
    lines.extend(
        world
            .clouds
            .placement_groups()
            .iter()
            .map(|group| format!("{group:?}")),
    );
    lines.extend(
        world
            .clouds
            .groups_of_containers()
            .iter()
            .map(|group| format!("{group:?}")),
    );
    lines.push(format!("{} tasks on the hosts", world.hosts.tasks()));
    lines.extend(
        invariants::at_rest(world)
            .iter()
            .map(|wrong| format!("not at rest: {wrong}")),
    );
    lines.join("\n")
}

fn fleet(row: &FleetRow) -> String {
    let deleted = if row.deleted { ", deleted" } else { "" };
    let waits = waits(row.waiting_for());
    format!("fleet {}: {:?}{deleted}{waits}", row.name, row.status())
}

fn volume(row: &VolumeRow) -> String {
    let deleted = if row.deleted { ", deleted" } else { "" };
    let waits = waits(row.waiting_for());
    format!("volume {}: {:?}{deleted}{waits}", row.name, row.status())
}

fn instance(row: &InstanceRow) -> String {
    let deleted = if row.deleted { ", deleted" } else { "" };
    let why = why(row.termination_reason().as_ref());
    let waits = waits(row.waiting_for());
    let (name, blocks) = (&row.name, row.busy_blocks);
    format!(
        "instance {name}: {:?}, {blocks} busy blocks, {:?}{deleted}{why}{waits}",
        row.status(),
        row.health
    )
}

fn run(row: &RunRow) -> String {
    let why = why(row.termination_reason().as_ref());
    let waits = waits(row.waiting_for());
    format!("run {}: {:?}{why}{waits}", row.run_name, row.status())
}

fn job(row: &JobRow) -> String {
    let why = why(row.termination_reason().as_ref());
    let waits = waits(row.waiting_for());
    format!("job {}: {:?}{why}{waits}", row.job_name, row.status())
}

fn why(reason: Option<&impl std::fmt::Debug>) -> String {
    reason.map_or(String::new(), |reason| format!(", because of {reason:?}"))
}

fn waits(what: Option<&WaitReason>) -> String {
    what.map_or(String::new(), |what| format!(", waits for {what}"))
}
