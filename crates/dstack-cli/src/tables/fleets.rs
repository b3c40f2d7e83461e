//! The table of fleets and their instances.

use dstack_model::backends::BackendType;
use dstack_model::fleets::{Fleet, FleetNodesSpec, FleetStatus, InstanceGroupPlacement};
use dstack_model::health::HealthStatus;
use dstack_model::instances::{Instance, InstanceStatus};
use dstack_model::resources::ResourcesSpec;

use super::Dates;
use super::runs::wait;
use crate::format::{self, resources};
use crate::ui::{Column, Role, Style, Table, Text};

/// The table of fleets, newest first. Fleet rows say what was asked for and are grey; instance rows what there is.
pub fn table(fleets: &[Fleet], project: &str, verbose: bool, dates: Dates) -> Table {
    let mut table = Table::new(columns(verbose));
    let mut fleets: Vec<&Fleet> = fleets.iter().collect();
    fleets.sort_by_key(|fleet| std::cmp::Reverse(fleet.created_at));
    for fleet in fleets {
        table.row_named(&fleet_cells(fleet, project, verbose, dates), Style::PLAIN);
        for instance in &fleet.instances {
            table.row_named(&instance_cells(instance, verbose, dates), Style::PLAIN);
        }
    }
    table
}

/// What instances wait for that are not ready, or do not answer, and hosts that are set up again while they are in use.
pub fn waits(fleets: &[Fleet]) -> Vec<Text> {
    let of_instance = |instance: &Instance| {
        let is_settled = matches!(instance.status, InstanceStatus::Idle | InstanceStatus::Busy);
        let reason = instance.waiting_for.as_deref()?;
        let shown = instance.unreachable || !is_settled || is_host(instance);
        shown.then(|| wait(&instance.name, reason, instance.waits_until))
    };
    let instances = fleets.iter().flat_map(|fleet| &fleet.instances);
    instances.filter_map(of_instance).collect()
}

fn columns(verbose: bool) -> Vec<Column> {
    let grey = |title: &str| Column::new(title).style(Style::SECONDARY);
    let mut columns = vec![Column::new("NAME").no_wrap(), grey("NODES")];
    if verbose {
        columns.extend([Column::new("RESOURCES").minor(), Column::new("DRIVER").minor()]);
    } else {
        columns.push(Column::new("GPU"));
    }
    columns.extend([
        grey("SPOT").minor(),
        Column::new("BACKEND").minor(),
        Column::new("PRICE"),
        Column::new("STATUS").no_wrap(),
        grey("CREATED").minor().no_wrap(),
    ]);
    if verbose {
        columns.push(Column::new("ERROR"));
    }
    columns
}

fn fleet_cells(fleet: &Fleet, project: &str, verbose: bool, dates: Dates) -> Vec<(&'static str, Text)> {
    let configuration = &fleet.spec.configuration;
    let dim = |text: String| Text::new().secondary(text);
    let mut cells = vec![
        (
            "NAME",
            dim(format::reference(&fleet.name, &fleet.project_name, project)),
        ),
        ("STATUS", fleet_status(fleet.status)),
        ("CREATED", dates.show(fleet.created_at).into()),
    ];
    let mut nodes = match &configuration.ssh_config {
        Some(ssh) => ssh.hosts.len().to_string(),
        None => configuration.nodes.map(show_nodes).unwrap_or_default(),
    };
    if verbose && configuration.placement == Some(InstanceGroupPlacement::Cluster) {
        nodes.push_str(" (cluster)");
    }
    cells.push(("NODES", nodes.into()));
    if configuration.ssh_config.is_some() {
        cells.push(("BACKEND", dim("ssh".to_owned())));
        return cells;
    }
    let merged = fleet.spec.merged_profile().params;
    let backends = configuration.backends.as_deref().unwrap_or_default();
    let backends: Vec<&str> = backends
        .iter()
        .map(|backend| format::backend_name(backend.as_str()))
        .collect();
    let spec = configuration.resources.as_ref();
    cells.extend([
        (
            "RESOURCES",
            dim(spec.map(resources::requirements).unwrap_or_default()),
        ),
        ("GPU", dim(spec.map(fleet_gpu).unwrap_or_default())),
        (
            "BACKEND",
            dim(if backends.is_empty() {
                "*".to_owned()
            } else {
                backends.join(", ")
            }),
        ),
        (
            "SPOT",
            merged
                .spot_policy
                .map(|policy| policy.to_string())
                .unwrap_or_default()
                .into(),
        ),
        (
            "PRICE",
            dim(merged
                .max_price
                .map(|price| format!("$0..{}", format::amount(price)))
                .unwrap_or_default()),
        ),
    ]);
    cells
}

/// `0..2`, `3`, `1..`.
pub fn show_nodes(nodes: FleetNodesSpec) -> String {
    match nodes.max {
        Some(max) if max == nodes.min => max.to_string(),
        Some(max) => format!("{}..{max}", nodes.min),
        None => format!("{}..", nodes.min),
    }
}

/// `H100:80GB:1..8`; empty when no GPU is asked for.
fn fleet_gpu(spec: &ResourcesSpec) -> String {
    let Some(gpu) = &spec.gpu else {
        return String::new();
    };
    if gpu.count.min == Some(0) && gpu.count.max.is_none_or(|max| max == 0) {
        return String::new();
    }
    let name = gpu
        .name
        .as_ref()
        .filter(|names| !names.is_empty())
        .map_or_else(|| "gpu".to_owned(), |names| names.join(","));
    let parts = [
        Some(name),
        gpu.memory.as_ref().map(resources::range),
        Some(resources::range(&gpu.count)),
    ];
    parts
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(":")
}

fn fleet_status(status: FleetStatus) -> Text {
    let style = match status {
        FleetStatus::Submitted | FleetStatus::Active | FleetStatus::Terminated => Style::SECONDARY,
        FleetStatus::Terminating => Style::bold(Role::Moving),
        FleetStatus::Failed => Style::bold(Role::Failed),
    };
    Text::styled(status.as_str(), style)
}

/// Whether it is a host of an SSH fleet: nothing of such a one waits for jobs alone.
fn is_host(instance: &Instance) -> bool {
    let backend = instance.backend.map(BackendType::as_str);
    backend == Some("remote")
}

fn instance_cells(instance: &Instance, verbose: bool, dates: Dates) -> Vec<(&'static str, Text)> {
    let is_ssh = is_host(instance);
    let zone = instance.availability_zone.as_deref().filter(|_| verbose);
    let waiting = matches!(
        instance.status,
        InstanceStatus::Pending | InstanceStatus::Provisioning
    );
    // What an SSH host has is known only once it was reached.
    let kind = instance.instance_type.as_ref().filter(|_| !(is_ssh && waiting));
    let mut cells = vec![
        ("NAME", format!("   instance={}", instance.instance_num).into()),
        (
            "RESOURCES",
            kind.map(|kind| resources::instance(&kind.resources))
                .unwrap_or_default()
                .into(),
        ),
        (
            "GPU",
            kind.map(|kind| resources::gpu(&kind.resources))
                .unwrap_or_default()
                .into(),
        ),
        (
            "BACKEND",
            instance_backend(
                instance.backend.map(BackendType::as_str),
                zone.or(instance.region.as_deref()),
            ),
        ),
        (
            "DRIVER",
            instance
                .gpu_driver
                .as_ref()
                .map(|driver| driver.version.clone())
                .unwrap_or_default()
                .into(),
        ),
        ("STATUS", instance_status(instance)),
        ("CREATED", dates.show(instance.created).into()),
    ];
    if !is_ssh {
        let spot = kind.map(|kind| if kind.resources.spot { "spot" } else { "on-demand" });
        cells.push(("SPOT", spot.unwrap_or_default().into()));
        cells.push((
            "PRICE",
            instance.price.map(format::price).unwrap_or_default().into(),
        ));
    }
    if instance.status == InstanceStatus::Terminated {
        cells.push((
            "ERROR",
            instance
                .termination_reason
                .clone()
                .map(|reason| reason.to_string())
                .unwrap_or_default()
                .into(),
        ));
    }
    cells
}

fn instance_backend(backend: Option<&str>, region: Option<&str>) -> Text {
    let text = Text::from(format::backend(backend, None));
    match region.filter(|region| !region.is_empty() && backend.is_some()) {
        Some(region) => text.push(" ").secondary("(").push(region).secondary(")"),
        None => text,
    }
}

fn instance_status(instance: &Instance) -> Text {
    let style = match instance.status {
        InstanceStatus::Idle => Style::bold(Role::Running),
        InstanceStatus::Terminated => Style::SECONDARY,
        _ => Style::bold(Role::Moving),
    };
    let available = instance.status.is_available();
    let blocks = instance.total_blocks.filter(|total| available && *total > 1);
    let text = match blocks {
        Some(total) => Text::new()
            .secondary(format!("{}/{total}", instance.busy_blocks))
            .push(" ")
            .push_styled("busy", style),
        None => Text::styled(instance.status.as_str(), style),
    };
    if !available {
        return text;
    }
    if instance.unreachable {
        return text
            .push(" ")
            .push_styled("(unreachable)", Style::bold(Role::Failed));
    }
    match instance.health_status {
        HealthStatus::Healthy => text,
        HealthStatus::Warning => text
            .push(" ")
            .push_styled("(warning)", Style::bold(Role::Interrupted)),
        other => text
            .push(" ")
            .push_styled(format!("({other})"), Style::bold(Role::Failed)),
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::json;

    use super::*;

    fn shown(backend: &str, status: &str, unreachable: bool) -> usize {
        let instance = json!({"id": "3d1c0c2e-6f0b-4f57-9d7c-3c6c0a1f7c11", "project_name": "main", "backend": backend,
            "name": "lab-0", "instance_num": 0, "status": status, "unreachable": unreachable,
            "created": "2026-01-01T00:00:00Z", "waiting_for": "the host of lab-0 to be set up again"});
        let spec = json!({"configuration": {"type": "fleet", "name": "lab"}, "profile": {}});
        let fleet = json!({"id": "3d1c0c2e-6f0b-4f57-9d7c-3c6c0a1f7c12", "name": "lab", "project_name": "main",
            "spec": spec, "created_at": "2026-01-01T00:00:00Z", "status": "active", "instances": [instance]});
        waits(&[decode_strict::<Fleet>(&fleet).unwrap()]).len()
    }

    #[test]
    fn what_hosts_in_use_wait_for_is_shown_and_what_idle_machines_of_clouds_wait_for_is_not() {
        assert_eq!(shown("remote", "idle", false), 1);
        assert_eq!(shown("remote", "busy", false), 1);
        assert_eq!(shown("aws", "idle", false), 0);
        assert_eq!(shown("aws", "idle", true), 1);
        assert_eq!(shown("aws", "pending", false), 1);
    }
}
