//! From a run to the jobs it consists of (dstack 0.22.5: configuration language §14).

use dstack_model::common::RegistryAuth;
use dstack_model::configurations::{
    AnyModel, AnyRunConfiguration, LEGACY_REPO_DIR, MountPoint, NodeGroup, ReplicaGroup, VolumeMountPoint,
    VolumeNames,
};
use dstack_model::profiles::{
    DEFAULT_RETRY_DURATION, DEFAULT_STOP_DURATION, Profile, RetryEvent, RetrySetting, SpotPolicy,
};
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::{AppSpec, JobSpec, ProbeSpec, Requirements, Retry, RunSpec};
use dstack_model::unix::UnixUser;
use dstack_units::{CpuArchitecture, OffDuration, PortMapping};

use crate::interpolate::interpolate;
use crate::{DUMMY_IMAGE, ImageConfig, PlanError, ServerDefaults};

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
    /// What the registry says of the run's image; `None` = not asked (default image) or not reachable.
    pub image: Option<&'a ImageConfig>,
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
    let nodes: Vec<Node> = match &run.configuration {
        AnyRunConfiguration::Task(task) => expand(task.node_groups()),
        AnyRunConfiguration::Service(_) | AnyRunConfiguration::DevEnvironment(_) => vec![Node::default()],
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
struct Node {
    group: Option<NodeGroup>,
    group_index: usize,
    index_in_group: usize,
}

fn expand(groups: Vec<NodeGroup>) -> Vec<Node> {
    let mut nodes = Vec::new();
    for (group_index, group) in groups.into_iter().enumerate() {
        for index_in_group in 0..usize::try_from(group.nodes).unwrap_or(1) {
            nodes.push(Node {
                group: Some(group.clone()),
                group_index,
                index_in_group,
            });
        }
    }
    nodes
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
    fn build(&self, replica_num: u32, num: usize, node: &Node) -> Result<JobSpec, PlanError> {
        let base = self.run.configuration.base();
        let run_name = self.run.run_name.as_deref().unwrap_or("dry-run");
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
            env: base.env.to_map().map_err(PlanError::new)?,
            home_dir: Some(base.home_dir.clone()),
            image_name: self.image_name(),
            privileged: base.privileged
                || self.docker()
                || self.group.as_ref().is_some_and(|g| g.privileged == Some(true)),
            single_branch: Some(base.single_branch.unwrap_or(!self.is_dev())),
            max_duration: off_or(self.profile.params.max_duration, None),
            stop_duration: off_or(self.profile.params.stop_duration, Some(DEFAULT_STOP_DURATION.0)),
            utilization_policy: self.profile.params.utilization_policy.clone(),
            registry_auth: base.registry_auth.clone(),
            requirements: self.requirements(node),
            retry: retry(&self.profile),
            volumes: Some(volumes(&base.volumes, num)?),
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

    fn is_dev(&self) -> bool {
        matches!(self.run.configuration, AnyRunConfiguration::DevEnvironment(_))
    }

    fn docker(&self) -> bool {
        self.group
            .as_ref()
            .and_then(|group| group.docker)
            .or(self.run.configuration.base().docker)
            .unwrap_or(false)
    }

    /// The image that was asked for, if any.
    fn image(&self) -> Option<&str> {
        let of_group = self.group.as_ref().and_then(|group| group.image.as_deref());
        of_group.or(self.run.configuration.base().image.as_deref())
    }

    fn image_name(&self) -> String {
        let base = self.run.configuration.base();
        if self.docker() {
            return self.cx.server.dind_image.clone();
        }
        let nvcc = self
            .group
            .as_ref()
            .and_then(|group| group.nvcc)
            .or(base.nvcc)
            .unwrap_or(false);
        self.image()
            .map_or_else(|| self.cx.server.default_image(nvcc), str::to_owned)
    }

    fn apps(&self, node: &Node) -> Vec<AppSpec> {
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
        let of_image = || {
            self.cx
                .image
                .filter(|_| self.image().is_some())
                .and_then(|image| image.user.clone())
        };
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

    fn commands(&self, node: &Node) -> Result<Vec<String>, PlanError> {
        let base = self.run.configuration.base();
        let own = self.own_commands(node);
        let argv = if let Some(entrypoint) = &base.entrypoint {
            let mut argv = shell_words::split(entrypoint)
                .map_err(|_| PlanError::new(format!("`entrypoint` has an unclosed quote: {entrypoint}")))?;
            argv.extend(own);
            argv
        } else if own.is_empty() {
            self.image_commands()
        } else {
            let mut lines = self.preparations();
            lines.extend(own);
            vec![self.shell(), "-i".to_owned(), "-c".to_owned(), join(&lines)]
        };
        if argv.is_empty() {
            return Err(PlanError::new(
                "Could not determine what command to run. Please specify either `commands` or `entrypoint` in your run \
                 configuration",
            ));
        }
        Ok(argv)
    }

    fn own_commands(&self, node: &Node) -> Vec<String> {
        match &self.run.configuration {
            AnyRunConfiguration::Task(task) => node
                .group
                .as_ref()
                .map_or_else(|| task.commands.clone(), |group| group.commands.clone()),
            AnyRunConfiguration::Service(service) => match &self.group {
                Some(group) if !group.commands.is_empty() => group.commands.clone(),
                _ => service.commands.clone(),
            },
            AnyRunConfiguration::DevEnvironment(dev) => {
                crate::jobs::dev_environment(dev, self.run.run_name.as_deref().unwrap_or("dry-run"))
            }
        }
    }

    fn image_commands(&self) -> Vec<String> {
        if self.image_name() == DUMMY_IMAGE {
            return vec![":".to_owned()];
        }
        let Some(image) = self.cx.image else {
            return Vec::new();
        };
        image.entrypoint.iter().chain(&image.cmd).cloned().collect()
    }

    fn shell(&self) -> String {
        match &self.run.configuration.base().shell {
            Some(shell) if shell.starts_with('/') => shell.clone(),
            Some(shell) => format!("/bin/{shell}"),
            None if self.image().is_none() && self.cx.target == Target::Container => "/bin/bash".to_owned(),
            None => "/bin/sh".to_owned(),
        }
    }

    /// What the default images need before the user's commands: a Python environment of the user's own, or Docker.
    fn preparations(&self) -> Vec<String> {
        if self.cx.target == Target::Host {
            return Vec::new();
        }
        if self.docker() {
            return vec!["start-dockerd".to_owned()];
        }
        if self.image().is_some() {
            return Vec::new();
        }
        let of_group = self.group.as_ref().and_then(|group| group.python);
        let python = of_group
            .or(self.run.configuration.base().python)
            .map_or_else(|| self.cx.server.python.clone(), |version| version.to_string());
        let uv = "UV_PYTHON_INSTALL_DIR=/opt/uv/python";
        vec![
            "eval $(echo 'export DSTACK_VENV_DIR=/dstack/venv' | sudo tee -a /dstack/profile)".to_owned(),
            "sudo rm -rf $DSTACK_VENV_DIR".to_owned(),
            "sudo mkdir $DSTACK_VENV_DIR".to_owned(),
            "sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR".to_owned(),
            format!(
                "(if {uv} uv python find {python} > /dev/null 2>&1; then export {uv} UV_PYTHON_DOWNLOADS=never; fi; \
                 uv venv -q --prompt dstack -p {python} --seed $DSTACK_VENV_DIR)"
            ),
            "eval $(echo '. $DSTACK_VENV_DIR/bin/activate' | sudo tee -a /dstack/profile)".to_owned(),
        ]
    }

    fn requirements(&self, node: &Node) -> Requirements {
        let mut resources: ResourcesSpec = match (&self.group, &node.group) {
            (Some(group), _) => group.resources.clone(),
            (None, Some(group)) => group.resources.clone(),
            (None, None) => self.run.configuration.base().resources.clone(),
        };
        if resources.cpu.arch.is_none() {
            resources.cpu.arch = match (self.image(), self.cx.image) {
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
        let has_router = service
            .replica_groups()
            .iter()
            .any(|group| group.router.is_some());
        if has_router && self.group.as_ref().is_none_or(|group| group.router.is_none()) {
            return Vec::new();
        }
        vec![crate::probes::for_model(&model.name, &model.prefix)]
    }
}

/// Commands of a dev environment: what the IDE needs, the user's own, and then nothing, for ever.
fn dev_environment(
    dev: &dstack_model::configurations::DevEnvironmentConfiguration,
    run_name: &str,
) -> Vec<String> {
    let mut lines = vec![
        "(echo 'uv pip install ipykernel...' && uv pip install -q --no-cache-dir ipykernel 2> /dev/null) || \
         (echo 'pip install ipykernel...' && pip install -q --no-cache-dir ipykernel 2> /dev/null) || \
         echo 'no uv or pip found, ipykernel was not installed'"
            .to_owned(),
    ];
    lines.extend(dev.base.setup.iter().cloned());
    lines.push("echo".to_owned());
    lines.extend(dev.init.iter().cloned());
    lines.push(format!("echo 'To connect via SSH, use: `ssh {run_name}`'"));
    lines.push("echo".to_owned());
    lines.push("echo -n 'To exit, press Ctrl+C.'".to_owned());
    lines.push("tail -f /dev/null".to_owned());
    lines
}

/// One shell line of many; a command in the background needs braces of its own.
fn join(lines: &[String]) -> String {
    let wrapped = lines.iter().map(|line| {
        let line = line.trim();
        if line.ends_with('&') {
            format!("{{ {line} }}")
        } else {
            line.to_owned()
        }
    });
    wrapped.collect::<Vec<_>>().join(" && ")
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

fn volumes(mounts: &[MountPoint], job_num: usize) -> Result<Vec<MountPoint>, PlanError> {
    mounts
        .iter()
        .map(|mount| match mount {
            MountPoint::Instance(_) => Ok(mount.clone()),
            MountPoint::Volume(volume) => {
                let names = volume
                    .name
                    .as_slice()
                    .iter()
                    .map(|name| volume_name(name, job_num));
                Ok(MountPoint::Volume(VolumeMountPoint {
                    name: VolumeNames::AnyOf(names.collect::<Result<_, _>>()?),
                    path: volume.path.clone(),
                }))
            }
        })
        .collect()
}

fn volume_name(name: &str, job_num: usize) -> Result<String, PlanError> {
    let number = job_num.to_string();
    let lookup = |namespace: &str, key: &str| match (namespace, key) {
        ("dstack", "job_num" | "node_rank") => Some(number.clone()),
        _ => None,
    };
    interpolate(name, &lookup)
}

/// The credentials of a registry, with secrets put in.
pub fn registry_auth(
    auth: &RegistryAuth,
    secret: &dyn Fn(&str) -> Option<String>,
) -> Result<(String, String), PlanError> {
    Ok((
        with_secrets(&auth.username, secret)?,
        with_secrets(&auth.password, secret)?,
    ))
}

/// A text with `${{ secrets.NAME }}` replaced.
pub fn with_secrets(text: &str, secret: &dyn Fn(&str) -> Option<String>) -> Result<String, PlanError> {
    let lookup = |namespace: &str, key: &str| if namespace == "secrets" { secret(key) } else { None };
    interpolate(text, &lookup)
}
