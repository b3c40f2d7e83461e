//! From a run to the jobs it consists of (dstack 0.22.5: configuration language §14).

mod commands;
mod ide;
mod image;
mod values;

use std::collections::BTreeMap;

use dstack_model::configurations::{
    AnyModel, AnyRunConfiguration, LEGACY_REPO_DIR, NodeGroup, ReplicaGroup, TaskConfiguration,
};
use dstack_model::limits;
use dstack_model::profiles::{
    DEFAULT_RETRY_DURATION, DEFAULT_STOP_DURATION, Profile, RetryEvent, RetrySetting, SpotPolicy,
};
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::{AppSpec, JobSpec, ProbeSpec, Requirements, Retry, RunSpec};
use dstack_model::unix::UnixUser;
use dstack_units::{CpuArchitecture, OffDuration, PortMapping};

use crate::services::routers::router_group;
use crate::{DUMMY_IMAGE, ImageConfig, PlanError, ServerDefaults};

pub use image::images;
pub use values::{registry_auth, volume_names, with_secrets};

/// Where a job's commands run: decides whether they get the preparations of the default image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// In a container of the job's image.
    Container,
    /// Directly on a host, without any image.
    Host,
}

/// What building jobs depends on besides the run.
#[derive(Debug, Clone, Copy)]
pub struct JobContext<'a> {
    /// Defaults of the server.
    pub server: &'a ServerDefaults,
    /// What the images of the run ([`images`]) say of themselves; a missing one was not asked.
    pub images: &'a BTreeMap<String, ImageConfig>,
    /// Where the commands run.
    pub target: Target,
}

/// The jobs of one replica of a run: one for each node.
pub fn job_specs(
    run: &RunSpec,
    replica_num: u32,
    group: Option<&str>,
    cx: &JobContext<'_>,
) -> Result<Vec<JobSpec>, PlanError> {
    let groups = run.configuration.task().map(TaskConfiguration::node_groups);
    let nodes = match &groups {
        Some(groups) => nodes(groups)?,
        None => vec![Node::default()],
    };
    let builder = Builder {
        run,
        profile: run.merged_profile(),
        group: replica_group(run, group),
        cx,
        nodes: nodes.len(),
    };
    nodes
        .iter()
        .enumerate()
        .map(|(num, node)| builder.build(replica_num, num, node))
        .collect()
}

#[derive(Debug, Default)]
struct Node<'a> {
    group: Option<&'a NodeGroup>,
    group_index: usize,
    index_in_group: usize,
}

/// The nodes of a task.
///
/// # Errors
/// There are more than a task can have. Requests are refused before they come here; stored runs may be older than that
/// limit.
fn nodes(groups: &[NodeGroup]) -> Result<Vec<Node<'_>>, PlanError> {
    let wanted = limits::sum(groups.iter().map(|group| group.nodes));
    limits::check_nodes(wanted).map_err(PlanError::new)?;
    let mut nodes = Vec::new();
    for (group_index, group) in groups.iter().enumerate() {
        for index_in_group in 0..usize::try_from(group.nodes).unwrap_or(1) {
            nodes.push(Node {
                group: Some(group),
                group_index,
                index_in_group,
            });
        }
    }
    Ok(nodes)
}

/// What a job runs where it gets no container but is a process of the host: its own commands in a shell that every host has,
/// without what the default images need before.
///
/// # Errors
/// It has no commands of its own: those of its image are not there.
pub fn host_commands(run: &RunSpec, job: &JobSpec) -> Result<Vec<String>, PlanError> {
    let groups = run.configuration.task().map(TaskConfiguration::node_groups);
    let nodes = match &groups {
        Some(groups) => nodes(groups)?,
        None => vec![Node::default()],
    };
    let num = usize::try_from(job.job_num).unwrap_or(usize::MAX);
    let node = nodes.get(num).ok_or_else(|| {
        PlanError::new(format!(
            "The run has no node {num} any more: {} of them",
            nodes.len()
        ))
    })?;
    let builder = Builder {
        run,
        profile: run.merged_profile(),
        group: replica_group(run, Some(&job.replica_group)),
        cx: &JobContext {
            server: &ServerDefaults::default(),
            images: &BTreeMap::new(),
            target: Target::Host,
        },
        nodes: nodes.len(),
    };
    builder.commands(node)
}

fn replica_group(run: &RunSpec, name: Option<&str>) -> Option<ReplicaGroup> {
    let groups = run.configuration.service()?.replica_groups();
    let wanted = name.unwrap_or("0");
    groups
        .iter()
        .find(|group| group.name.as_deref() == Some(wanted))
        .or(groups.first())
        .cloned()
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

struct Builder<'a> {
    run: &'a RunSpec,
    profile: Profile,
    group: Option<ReplicaGroup>,
    cx: &'a JobContext<'a>,
    nodes: usize,
}

impl Builder<'_> {
    fn build(&self, replica_num: u32, num: usize, node: &Node<'_>) -> Result<JobSpec, PlanError> {
        let base = self.run.configuration.base();
        let run_name = self.run_name();
        Ok(JobSpec {
            replica_num,
            job_num: number(num),
            job_name: format!("{run_name}-{num}-{replica_num}"),
            jobs_per_replica: number(self.nodes),
            replica_group: self
                .group
                .as_ref()
                .and_then(|group| group.name.clone())
                .unwrap_or_else(|| "0".to_owned()),
            app_specs: Some(self.apps(node)),
            user: self.user()?,
            commands: self.commands(node)?,
            env: values::env(base)?,
            home_dir: Some(base.home_dir.clone()),
            image_name: self.image_name(),
            privileged: self.privileged(),
            single_branch: Some(base.single_branch.unwrap_or(!self.is_dev())),
            max_duration: off_or(self.profile.params.max_duration, None),
            stop_duration: off_or(self.profile.params.stop_duration, Some(DEFAULT_STOP_DURATION.0)),
            utilization_policy: self.profile.params.utilization_policy.clone(),
            registry_auth: base.registry_auth.clone(),
            requirements: self.requirements(node),
            retry: retry(&self.profile),
            volumes: Some(values::volumes(&base.volumes, num)?),
            ssh_key: None,
            working_dir: base.working_dir.as_deref().map(absolute_working_dir),
            repo_data: self.run.repo_data.clone(),
            repo_code_hash: self.run.repo_code_hash.clone(),
            repo_dir: base
                .repos
                .first()
                .map(|repo| repo.path.clone())
                .or_else(|| self.run.repo_dir.clone())
                .unwrap_or_else(|| LEGACY_REPO_DIR.to_owned()),
            repo_exists_action: base.repos.first().map(|repo| repo.if_exists),
            file_archives: self.run.file_archives.clone(),
            service_port: self
                .run
                .configuration
                .service()
                .map(|service| service.port.container_port),
            probes: self.probes(),
            node_group_index: number(node.group_index),
            node_group_name: node
                .group
                .as_ref()
                .and_then(|group| group.name.clone())
                .unwrap_or_else(|| node.group_index.to_string()),
            node_group_job_index: number(node.index_in_group),
        })
    }

    fn run_name(&self) -> &str {
        self.run.run_name.as_deref().unwrap_or("dry-run")
    }

    fn is_dev(&self) -> bool {
        matches!(self.run.configuration, AnyRunConfiguration::DevEnvironment(_))
    }

    fn privileged(&self) -> bool {
        let of_group = self.group.as_ref().and_then(|group| group.privileged);
        self.docker() || of_group.unwrap_or(self.run.configuration.base().privileged)
    }

    fn apps(&self, node: &Node<'_>) -> Vec<AppSpec> {
        let ports: &[PortMapping] = match (&self.run.configuration, &node.group) {
            (AnyRunConfiguration::Task(_), Some(group)) => &group.ports,
            (AnyRunConfiguration::Task(task), None) => &task.ports,
            (AnyRunConfiguration::DevEnvironment(dev), _) => &dev.ports,
            (AnyRunConfiguration::Service(_), _) => &[],
        };
        ports
            .iter()
            .filter(|port| !(10_000..=10_999).contains(&port.container_port)) // ours
            .enumerate()
            .map(|(index, port)| AppSpec {
                port: port.container_port,
                map_to_port: port.local_port,
                app_name: format!("app_{index}"),
                url_path: None,
                url_query_params: None,
            })
            .collect()
    }

    fn user(&self) -> Result<Option<UnixUser>, PlanError> {
        let own = || self.image().and(self.image_config());
        let of_image = || own().and_then(|image| image.user.clone());
        let user = self
            .run
            .configuration
            .base()
            .user
            .clone()
            .or_else(of_image)
            .filter(|user| !user.is_empty());
        user.map(|user| UnixUser::parse(&user).map_err(PlanError::new))
            .transpose()
    }

    fn requirements(&self, node: &Node<'_>) -> Requirements {
        let mut resources: ResourcesSpec = match (&self.group, &node.group) {
            (Some(group), _) => group.resources.clone(),
            (None, Some(group)) => group.resources.clone(),
            (None, None) => self.run.configuration.base().resources.clone(),
        };
        if resources.cpu.arch.is_none() {
            resources.cpu.arch = match (self.image(), self.image_config()) {
                (None, _) => Some(CpuArchitecture::X86),
                (Some(DUMMY_IMAGE), _) | (Some(_), None) => None,
                (Some(_), Some(image)) => match image.architectures.as_slice() {
                    [one] => Some(*one),
                    _ => None,
                },
            };
        }
        let params = &self.profile.params;
        let spot = self
            .group
            .as_ref()
            .and_then(|group| group.spot_policy)
            .or(params.spot_policy);
        Requirements {
            resources,
            max_price: params.max_price,
            spot: spot.unwrap_or(SpotPolicy::OnDemand).requirement(),
            reservation: self
                .group
                .as_ref()
                .and_then(|group| group.reservation.clone())
                .or_else(|| params.reservation.clone()),
            multinode: Some(self.nodes > 1),
            backend_options: params.backend_options.clone(),
        }
    }

    fn probes(&self) -> Vec<ProbeSpec> {
        let Some(service) = self.run.configuration.service() else {
            return Vec::new();
        };
        if let Some(probes) = &service.probes {
            return probes.iter().map(crate::probes::from_config).collect();
        }
        let Some(AnyModel::OpenAi(model)) = &service.model else {
            return Vec::new();
        };
        let has_router = router_group(service).is_some();
        if has_router && self.group.as_ref().is_none_or(|group| group.router.is_none()) {
            return Vec::new();
        }
        vec![crate::probes::for_model(&model.name, &model.prefix)]
    }
}

fn absolute_working_dir(dir: &str) -> String {
    if dir.starts_with('/') {
        dir.to_owned()
    } else {
        format!("{LEGACY_REPO_DIR}/{dir}")
    }
}

fn off_or(setting: Option<OffDuration>, default: Option<i64>) -> Option<i64> {
    match setting {
        None => default,
        Some(duration) => duration.seconds(),
    }
}

fn retry(profile: &Profile) -> Option<Retry> {
    let all = || {
        vec![
            RetryEvent::NoCapacity,
            RetryEvent::Interruption,
            RetryEvent::Error,
        ]
    };
    match profile.params.retry.as_ref()? {
        RetrySetting::Flag(false) => None,
        RetrySetting::Flag(true) => Some(Retry {
            on_events: all(),
            duration: DEFAULT_RETRY_DURATION.0,
        }),
        RetrySetting::Policy(policy) => Some(Retry {
            on_events: policy.on_events.clone().unwrap_or_else(all),
            duration: policy.duration.unwrap_or(DEFAULT_RETRY_DURATION).0,
        }),
    }
}

#[cfg(test)]
mod tests;
