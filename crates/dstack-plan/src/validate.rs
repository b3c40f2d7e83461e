//! What the server checks and fills in of a run that was asked for (dstack 0.22.5: configuration language §13).

mod size;
mod variables;

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::envs::EnvValue;
use dstack_model::fleets::FleetSpec;
use dstack_model::interpolate::{self, GroupMember};
use dstack_model::profiles::RetrySetting;
use dstack_model::repos::{AnyRunRepoData, VirtualRunRepoData};
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::RunSpec;
use dstack_units::accelerators;
use dstack_units::{AcceleratorVendor, CpuArchitecture, GpuSpec};

use crate::{PlanError, ServerDefaults};

pub use variables::{has_references, missing_variables};

/// Id of the repo of runs without one.
pub const VIRTUAL_REPO: &str = "none";

/// Checks a run and fills in what the server decides: repo, priority, nodes, GPU vendor, the user's key.
///
/// Errors carry dstack 0.22.5's text, answered with status 400.
pub fn effective_run_spec(
    mut spec: RunSpec,
    user_key: Option<&str>,
    server: &ServerDefaults,
) -> Result<RunSpec, PlanError> {
    check_name(&spec)?;
    check_retry(&spec)?;
    check_group_references(&spec)?;
    check_mounts(&spec)?;
    fill_repo(&mut spec)?;
    check_limits(&spec, server)?;
    size::check(&spec)?;
    let base = spec.configuration.base_mut();
    base.priority.get_or_insert(0);
    if let AnyRunConfiguration::Task(task) = &mut spec.configuration
        && task.groups.is_none()
    {
        task.nodes.get_or_insert(1);
    }
    fill_gpu_vendors(&mut spec);
    check_image_fits(&spec)?;
    if spec.ssh_key_pub.is_none() {
        let key = user_key
            .ok_or_else(|| PlanError::new("ssh_key_pub must be set if the user has no ssh_public_key"))?;
        spec.ssh_key_pub = Some(key.to_owned());
    }
    Ok(spec)
}

/// What this version cannot run yet: refused with a reason instead of being ignored.
pub fn unsupported(spec: &RunSpec) -> Option<PlanError> {
    let base = spec.configuration.base();
    let refuse = |what: &str| {
        Some(PlanError::new(format!(
            "{what} is not supported by this server version yet. Remove it from the configuration."
        )))
    };
    if base.dstack {
        return refuse("`dstack: true`");
    }
    None
}

fn check_name(spec: &RunSpec) -> Result<(), PlanError> {
    match &spec.run_name {
        Some(name) if !dstack_units::name::is_resource_name(name) => Err(PlanError::new(
            "Resource name should match regex '^[a-z][a-z0-9-]{1,40}$'",
        )),
        _ => Ok(()),
    }
}

fn check_retry(spec: &RunSpec) -> Result<(), PlanError> {
    match spec.merged_profile().params.retry {
        Some(RetrySetting::Policy(policy)) if policy.duration.is_some_and(|duration| duration.0 < 0) => {
            Err(PlanError::new("retry.duration cannot be negative"))
        }
        _ => Ok(()),
    }
}

/// Addresses of nodes and replicas are known to commands only, and only of those that surely exist.
fn check_group_references(spec: &RunSpec) -> Result<(), PlanError> {
    let configuration = &spec.configuration;
    let in_env = |value: &EnvValue| match value {
        EnvValue::Text(text) => interpolate::contains_group_reference(text),
        EnvValue::FromClient => false,
    };
    if configuration.base().env.0.values().any(in_env) {
        return Err(PlanError::new(
            "groups IP references are only supported in commands, not in `env`",
        ));
    }
    let refused = |error: interpolate::InterpolateError| PlanError::new(error.to_string());
    let sized = |commands: &[&String], sizes: &[usize], member| {
        commands.iter().try_for_each(|command| {
            interpolate::check_group_references(command, member).map_err(refused)?;
            interpolate::check_group_bounds(command, sizes, member).map_err(refused)
        })
    };
    let size = |count: i64| usize::try_from(count).unwrap_or(0);
    match configuration {
        AnyRunConfiguration::Task(task) => {
            let groups = task.node_groups();
            let commands: Vec<&String> = groups.iter().flat_map(|group| &group.commands).collect();
            let sizes: Vec<usize> = groups.iter().map(|group| size(group.nodes)).collect();
            sized(&commands, &sizes, GroupMember::Nodes)
        }
        AnyRunConfiguration::Service(service) => {
            let groups = service.replica_groups();
            let own = groups.iter().flat_map(|group| &group.commands);
            let commands: Vec<&String> = service.commands.iter().chain(own).collect();
            let sizes: Vec<usize> = groups
                .iter()
                .map(|group| size(group.replicas.min.unwrap_or(0)))
                .collect();
            sized(&commands, &sizes, GroupMember::Replicas)
        }
        AnyRunConfiguration::DevEnvironment(_) => Ok(()),
    }
}

/// Docker's rule for a mount target: absolute, not the root, no trailing slash.
fn check_mounts(spec: &RunSpec) -> Result<(), PlanError> {
    for mount in &spec.configuration.base().volumes {
        let path = mount.path();
        let plain = path.starts_with('/') && path.len() > 1 && !path.ends_with('/') && !path.contains("//");
        if !plain || path.contains(':') {
            return Err(PlanError::new(format!("Invalid volume mount path: {path}")));
        }
    }
    Ok(())
}

fn fill_repo(spec: &mut RunSpec) -> Result<(), PlanError> {
    match (&spec.repo_id, &spec.repo_data) {
        (None, Some(_)) => Err(PlanError::new("repo_data must not be set if repo_id is not set")),
        (Some(_), None) => Err(PlanError::new("repo_id must not be set if repo_data is not set")),
        (Some(_), Some(_)) => Ok(()),
        (None, None) => {
            spec.repo_id = Some(VIRTUAL_REPO.to_owned());
            spec.repo_data = Some(AnyRunRepoData::Virtual(VirtualRunRepoData::default()));
            Ok(())
        }
    }
}

fn check_limits(spec: &RunSpec, server: &ServerDefaults) -> Result<(), PlanError> {
    let profile = spec.merged_profile();
    if let Some(policy) = &profile.params.utilization_policy
        && policy.time_window.0 > server.metrics_running_ttl
    {
        return Err(PlanError::new(format!(
            "Maximum utilization_policy.time_window is {}s",
            server.metrics_running_ttl
        )));
    }
    let Some(service) = spec.configuration.service() else {
        return Ok(());
    };
    let to_zero = service
        .replica_groups()
        .iter()
        .all(|group| group.replicas.min == Some(0));
    if profile.params.schedule.is_some() && to_zero {
        return Err(PlanError::new(
            "Scheduled services with autoscaling to zero are not supported",
        ));
    }
    let probes = service.probes.as_deref().unwrap_or_default();
    if probes.len() > server.max_probes {
        return Err(PlanError::new(format!(
            "Cannot configure more than {} probes",
            server.max_probes
        )));
    }
    if probes.iter().any(|probe| {
        probe
            .timeout
            .is_some_and(|timeout| timeout.0 > server.max_probe_timeout)
    }) {
        return Err(PlanError::new(format!(
            "Probe timeout cannot be longer than {}s",
            server.max_probe_timeout
        )));
    }
    Ok(())
}

/// The parts of a run that have resources and an image of their own.
struct Part<'a> {
    resources: &'a mut ResourcesSpec,
    image: Option<String>,
    docker: bool,
}

fn parts(configuration: &mut AnyRunConfiguration) -> Vec<Part<'_>> {
    let image = configuration.base().image.clone();
    let docker = configuration.base().docker.unwrap_or(false);
    let whole = |resources| Part {
        resources,
        image: image.clone(),
        docker,
    };
    match configuration {
        AnyRunConfiguration::Task(task) => {
            let mut found = vec![whole(&mut task.base.resources)];
            found.extend(
                task.groups
                    .iter_mut()
                    .flatten()
                    .map(|group| whole(&mut group.resources)),
            );
            found
        }
        AnyRunConfiguration::Service(service) => {
            let mut found = vec![whole(&mut service.base.resources)];
            found.extend(service.groups.iter_mut().flatten().map(|group| Part {
                image: group.image.clone().or_else(|| image.clone()),
                docker: group.docker.unwrap_or(docker),
                resources: &mut group.resources,
            }));
            found
        }
        AnyRunConfiguration::DevEnvironment(dev) => vec![whole(&mut dev.base.resources)],
    }
}

/// What a fleet asks for, with what the server adds.
pub fn fill_fleet_defaults(spec: &mut FleetSpec) {
    if let Some(resources) = &mut spec.configuration.resources {
        resources.gpu.get_or_insert_with(GpuSpec::any_or_none);
    }
}

/// Who makes the GPUs, where that follows from the rest.
pub(crate) fn fill_gpu_vendors(spec: &mut RunSpec) {
    for part in parts(&mut spec.configuration) {
        let gpu = part.resources.gpu.get_or_insert_with(GpuSpec::any_or_none);
        if gpu.vendor.is_some() || gpu.count.max == Some(0) {
            continue;
        }
        gpu.vendor = match gpu.name.as_deref().filter(|names| !names.is_empty()) {
            None if part.image.is_none() && !part.docker => Some(AcceleratorVendor::Nvidia),
            None => None,
            Some(names) => common_vendor(names),
        };
    }
}

/// The one vendor of all names, if every name is known and they agree.
fn common_vendor(names: &[String]) -> Option<AcceleratorVendor> {
    let mut found: Vec<Option<AcceleratorVendor>> = Vec::new();
    for name in names {
        let vendors = vendors_of(name);
        if vendors.is_empty() {
            found.push(None);
        }
        found.extend(vendors.into_iter().map(Some));
    }
    found.dedup();
    match found.as_slice() {
        [one] => *one,
        [first, rest @ ..] if rest.iter().all(|other| other == first) => *first,
        _ => None,
    }
}

fn vendors_of(name: &str) -> Vec<AcceleratorVendor> {
    let mut found: Vec<AcceleratorVendor> = Vec::new();
    for known in accelerators::find(name) {
        if known.vendor != AcceleratorVendor::Google && !found.contains(&known.vendor) {
            found.push(known.vendor);
        }
    }
    // A TPU is named by generation and cores: `v5litepod-4`.
    if let Some((generation, cores)) = name.rsplit_once('-')
        && !cores.is_empty()
        && cores.bytes().all(|b| b.is_ascii_digit())
        && accelerators::find(generation).any(|known| known.vendor == AcceleratorVendor::Google)
    {
        found.push(AcceleratorVendor::Google);
    }
    found
}

/// The default image is made for NVIDIA and TPU, and for x86.
fn check_image_fits(spec: &RunSpec) -> Result<(), PlanError> {
    let mut configuration = spec.configuration.clone();
    let all = parts(&mut configuration);
    let grouped = all.len() > 1;
    let relevant: Vec<Part<'_>> = all.into_iter().skip(usize::from(grouped)).collect();
    let mut vendors: Vec<AcceleratorVendor> = Vec::new();
    let mut at_fault = Vec::new();
    for (index, part) in relevant.iter().enumerate() {
        let needed = vendors_needing_image(part);
        if !needed.is_empty() {
            at_fault.push(index.to_string());
        }
        vendors.extend(needed);
    }
    if !vendors.is_empty() {
        let mut names: Vec<String> = vendors
            .iter()
            .map(|vendor| format!("'{}'", vendor.as_str()))
            .collect();
        names.sort();
        names.dedup();
        let prefix = if grouped {
            format!("groups[{}]: ", at_fault.join(", "))
        } else {
            String::new()
        };
        return Err(PlanError::new(format!(
            "{prefix}`image` must be set when the requested accelerator is not supported by the default image: [{}]",
            names.join(", ")
        )));
    }
    let arm =
        |part: &&Part<'_>| part.resources.cpu.arch == Some(CpuArchitecture::Arm) && part.image.is_none();
    match relevant.iter().find(arm) {
        Some(part) if part.docker => Err(PlanError::new("`docker: true` is not supported on ARM CPU")),
        Some(_) => Err(PlanError::new("`image` must be set when ARM CPU requested")),
        None => Ok(()),
    }
}

fn vendors_needing_image(part: &Part<'_>) -> Vec<AcceleratorVendor> {
    let Some(gpu) = &part.resources.gpu else {
        return Vec::new();
    };
    if part.image.is_some() || part.docker || gpu.count.max == Some(0) {
        return Vec::new();
    }
    let mut vendors = match gpu.vendor {
        Some(vendor) => vec![vendor],
        None => gpu
            .name
            .iter()
            .flatten()
            .flat_map(|name| vendors_of(name))
            .collect(),
    };
    vendors.retain(|vendor| !matches!(vendor, AcceleratorVendor::Nvidia | AcceleratorVendor::Google));
    vendors
}
