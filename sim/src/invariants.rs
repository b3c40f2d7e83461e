//! What must hold at all times, and what must hold once everything has come to rest.

use std::collections::BTreeSet;

use dstack_model::instances::InstanceStatus;
use dstack_model::volumes::VolumeStatus;
use dstack_plan::lifecycle::attachment::AttachmentStatus;
use dstack_plan::lifecycle::compute_group::ComputeGroupState;
use dstack_plan::lifecycle::placement_group::PlacementGroupStatus;
use dstack_store::memory::Tables;
use dstack_store::rows::{AttachmentRow, GatewayReplicaRow, InstanceRow, JobRow};

use crate::{World, services};

/// Everything that is wrong, in words; empty = all is well.
pub fn always(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    world.store.read(|tables| {
        blocks_add_up(tables, &mut wrong);
        waits_have_reasons(tables, &mut wrong);
        fleets_have_their_size(tables, &mut wrong);
        keys_are_unique(tables, &mut wrong);
        groups_have_one_fleet(tables, &mut wrong);
    });
    nothing_goes_round(world, &mut wrong);
    if world.clouds.most_made() > 1 {
        wrong.push("two machines were made for one instance".to_owned());
    }
    if world.clouds.most_disks_made() > 1 {
        wrong.push("two disks were made for one volume".to_owned());
    }
    if world.clouds.most_gateway_machines_made() > 1 {
        wrong.push("two machines were made for one replica of a gateway".to_owned());
    }
    if world.clouds.most_load_balancers_made() > 1 {
        wrong.push("two load balancers were made for one gateway".to_owned());
    }
    if world.clouds.most_placement_groups_made() > 1 {
        wrong.push("two groups were made for one placement group".to_owned());
    }
    if world.clouds.most_groups_made() > 1 {
        wrong.push("two groups were made for one compute group".to_owned());
    }
    wrong.extend(world.clouds.attached_wrongly());
    disks_have_rows(world, &mut wrong);
    services::requests_are_finished(world, &mut wrong);
    wrong.extend(world.hosts.disorders());
    for (task, starts) in world.hosts.starts() {
        if starts > 1 {
            wrong.push(format!("the commands of task {task} were started {starts} times"));
        }
    }
    wrong
}

/// Whatever a machine has, as long as it lives, there is a row that says so: nobody else gets the disk.
fn disks_have_rows(world: &World, wrong: &mut Vec<String>) {
    for (disk, instance) in world.clouds.attached() {
        let is_its = |row: &AttachmentRow| row.instance_id == instance && row.volume.volume_id == disk;
        let is_known = world.store.read(|tables| tables.attachments.values().any(is_its));
        if !is_known {
            wrong.push(format!(
                "the disk {disk} is attached to {instance}, and no row says so"
            ));
        }
    }
}

/// More commits of one entity within a second are those of work that wakes itself.
const MAX_COMMITS_PER_SECOND: usize = 60;

/// Nothing is written again and again.
fn nothing_goes_round(world: &World, wrong: &mut Vec<String>) {
    if let Some((entity, commits)) = world.store.most_commits()
        && commits > MAX_COMMITS_PER_SECOND
    {
        wrong.push(format!("{entity} was written {commits} times within a second"));
    }
}

/// As [`always`], and nothing is left behind.
pub fn at_rest(world: &World) -> Vec<String> {
    let mut wrong = always(world);
    if world.hosts.tasks() > 0 {
        wrong.push(format!("{} tasks are left on the host", world.hosts.tasks()));
    }
    let tables = world.store.tables();
    for machine in world.clouds.machines() {
        let known = tables.instances.get(&machine.instance);
        if known.is_none_or(|row| row.status() == InstanceStatus::Terminated) {
            wrong.push(format!("a machine ({}) is left in the cloud", machine.offer));
        }
    }
    for container in world.clouds.containers() {
        let known = tables.instances.get(&container.instance);
        if known.is_none_or(|row| row.status() == InstanceStatus::Terminated) {
            wrong.push(format!("a container ({}) is left in the cloud", container.offer));
        }
    }
    for machine in world.clouds.gateway_machines() {
        let known = tables.gateway_replicas.get(&machine.replica);
        if known.is_none_or(GatewayReplicaRow::is_over) {
            wrong.push(format!(
                "the machine {} of a gateway is left in the cloud",
                machine.address
            ));
        }
    }
    for balancer in world.clouds.load_balancers() {
        if !tables.gateways.contains_key(&balancer.gateway) {
            wrong.push(format!(
                "the load balancer of gateway {} is left in the cloud",
                balancer.gateway
            ));
        }
    }
    for volume in world.clouds.disks() {
        if tables.volumes.get(&volume).is_none_or(|row| row.deleted) {
            wrong.push(format!("the disk of volume {volume} is left in the cloud"));
        }
    }
    for group in world.clouds.placement_groups() {
        let known = tables.placement_groups.get(&group.id);
        if known.is_none_or(|row| row.status().is_over()) {
            wrong.push(format!("placement group {} is left in the cloud", group.name));
        }
    }
    for group in world.clouds.groups_of_containers() {
        let known = tables.compute_groups.get(&group.id);
        if known.is_none_or(|row| row.status() == ComputeGroupState::Terminated) {
            wrong.push(format!(
                "a group of {} containers is left in the cloud",
                group.size
            ));
        }
    }
    let left = |row: &&InstanceRow| row.status() != InstanceStatus::Terminated;
    for instance in tables.instances.values().filter(left) {
        if instance.busy_blocks != 0 || instance.status() != InstanceStatus::Idle {
            wrong.push(format!(
                "{} is {:?} with {} busy blocks",
                instance.name,
                instance.status(),
                instance.busy_blocks
            ));
        }
    }
    wrong
}

/// As [`at_rest`], and there is nothing that costs money.
pub fn nothing_left(world: &World) -> Vec<String> {
    let mut wrong = at_rest(world);
    for machine in world.clouds.machines() {
        wrong.push(format!("there is still a machine: {machine:?}"));
    }
    for container in world.clouds.containers() {
        wrong.push(format!("there is still a container: {container:?}"));
    }
    for machine in world.clouds.gateway_machines() {
        wrong.push(format!(
            "there is still the machine {} of a gateway",
            machine.address
        ));
    }
    for balancer in world.clouds.load_balancers() {
        wrong.push(format!("there is still a load balancer: {balancer:?}"));
    }
    for group in world.clouds.placement_groups() {
        wrong.push(format!("there is still the placement group {}", group.name));
    }
    for group in world.clouds.groups_of_containers() {
        wrong.push(format!("there is still a group of containers: {group:?}"));
    }
    for (disk, instance) in world.clouds.attached() {
        wrong.push(format!("the disk {disk} is still attached to {instance}"));
    }
    for row in world.store.tables().attachments.values() {
        wrong.push(format!(
            "there is still an attachment of {}: {:?}",
            row.name,
            row.status()
        ));
    }
    for volume in world.clouds.disks() {
        wrong.push(format!("there is still the disk of volume {volume}"));
    }
    wrong
}

/// Two jobs never share a block, and no block is lost.
fn blocks_add_up(tables: &Tables, wrong: &mut Vec<String>) {
    for instance in tables.instances.values() {
        let taken: i64 = tables
            .jobs
            .values()
            .filter(|job| job.instance_id == Some(instance.id))
            .map(dstack_engine::reconcile::job::blocks_of)
            .sum();
        if taken != instance.busy_blocks || taken > instance.total_blocks.unwrap_or(1) {
            wrong.push(format!(
                "{}: jobs hold {taken} blocks, the row says {}",
                instance.name, instance.busy_blocks
            ));
        }
    }
}

/// What databases refuse to store twice, and the store in memory does not.
fn keys_are_unique(tables: &Tables, wrong: &mut Vec<String>) {
    let runs = tables.runs.values().filter(|row| !row.deleted);
    twice(
        "run",
        runs.map(|row| (row.project_id, row.run_name.as_str())),
        wrong,
    );
    let fleets = tables.fleets.values().filter(|row| !row.deleted);
    twice(
        "fleet",
        fleets.map(|row| (row.project_id, row.name.as_str())),
        wrong,
    );
    let volumes = tables.volumes.values().filter(|row| !row.deleted);
    twice(
        "volume",
        volumes.map(|row| (row.project_id, row.name.as_str())),
        wrong,
    );
    let submission = |row: &JobRow| (row.run_id, row.replica_num, row.job_num, row.submission_num);
    twice("job", tables.jobs.values().map(submission), wrong);
}

/// A fleet has one placement group at a time, and its instances are in none of another fleet. What costs money waits for something.
fn groups_have_one_fleet(tables: &Tables, wrong: &mut Vec<String>) {
    let wanted = tables
        .placement_groups
        .values()
        .filter(|row| row.status().is_wanted());
    twice("placement group", wanted.map(|row| row.fleet_id), wrong);
    for instance in tables.instances.values() {
        let group = instance.placement_group_id;
        let group = group.and_then(|id| tables.placement_groups.get(&id));
        if group.is_some_and(|group| Some(group.fleet_id) != instance.fleet_id) {
            wrong.push(format!(
                "{} is in the placement group of another fleet",
                instance.name
            ));
        }
    }
    for row in tables.placement_groups.values() {
        let is_settled = row.status().is_over() || row.status() == PlacementGroupStatus::Active;
        if !is_settled && row.waiting_for().is_none() && row.next_wake_at().is_none() {
            wrong.push(format!("a placement group of {} waits for nothing", row.name));
        }
    }
    for row in tables.compute_groups.values() {
        let is_settled = matches!(
            row.status(),
            ComputeGroupState::Running | ComputeGroupState::Terminated
        );
        if !is_settled && row.waiting_for().is_none() && row.next_wake_at().is_none() {
            wrong.push(format!("the compute group of {} waits for nothing", row.name));
        }
    }
}

fn twice<K: Ord + std::fmt::Debug>(what: &str, keys: impl Iterator<Item = K>, wrong: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for key in keys {
        if seen.contains(&key) {
            wrong.push(format!("two {what}s have the key {key:?}"));
        }
        seen.insert(key);
    }
}

/// No job waits without a reason that a user can read.
fn waits_have_reasons(tables: &Tables, wrong: &mut Vec<String>) {
    for job in tables.jobs.values().filter(|job| !job.status().is_finished()) {
        let will_be_looked_at = job.next_wake_at().is_some();
        if job.waiting_for().is_none() && !will_be_looked_at {
            wrong.push(format!(
                "{} is {:?} and waits for nothing",
                job.job_name,
                job.status()
            ));
        }
    }
    for row in tables.attachments.values() {
        let is_settled = matches!(
            row.status(),
            AttachmentStatus::Attached | AttachmentStatus::Failed
        );
        if !is_settled && row.waiting_for().is_none() && row.next_wake_at().is_none() {
            wrong.push(format!("the attachment of {} waits for nothing", row.name));
        }
    }
    for row in tables.volumes.values() {
        let is_settled = row.deleted || (!row.to_be_deleted && row.status() != VolumeStatus::Submitted);
        if !is_settled && row.waiting_for().is_none() && row.next_wake_at().is_none() {
            wrong.push(format!("volume {} waits for nothing", row.name));
        }
    }
    let unsettled = |row: &&InstanceRow| {
        use InstanceStatus::{Pending, Provisioning, Terminating};
        matches!(row.status(), Pending | Provisioning | Terminating)
    };
    for row in tables.instances.values().filter(unsettled) {
        if row.waiting_for().is_none() && row.next_wake_at().is_none() {
            wrong.push(format!(
                "{} is {:?} and waits for nothing",
                row.name,
                row.status()
            ));
        }
    }
}

/// No fleet has more instances than it may have, nor two of the same number.
fn fleets_have_their_size(tables: &Tables, wrong: &mut Vec<String>) {
    for fleet in tables.fleets.values() {
        let of_fleet = |row: &&InstanceRow| row.fleet_id == Some(fleet.id) && row.status().is_active();
        let mut nums: Vec<i64> = tables
            .instances
            .values()
            .filter(of_fleet)
            .map(|row| row.instance_num)
            .collect();
        let count = nums.len();
        let max = fleet.spec.configuration.nodes.and_then(|nodes| nodes.max);
        if max.is_some_and(|max| i64::try_from(count).unwrap_or(i64::MAX) > max) {
            wrong.push(format!("{} has {count} instances", fleet.name));
        }
        nums.sort_unstable();
        nums.dedup();
        if nums.len() < count {
            wrong.push(format!("{} has two instances of one number", fleet.name));
        }
    }
}
