//! A task's container, as the engine's API wants it. Pure but for a look at the host's devices.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, Mount, MountType, PortBinding, PortMap,
    ResourcesUlimits,
};
use dstack_agent_api::runner::OWN_NETWORK_VARIABLE;
use dstack_agent_api::shim::{NetworkMode, TaskConfig};
use dstack_units::quoting::shell_line;

use super::DockerSettings;
use crate::gpu::Vendor;
use crate::runtime::{Spec, key_arguments, token_variable};
use crate::volumes::{MOUNT_ROOT, mount_point};

/// Marks our containers.
pub const LABEL_IS_TASK: &str = "ai.dstack.shim.is-task";
/// Carries the task's id.
pub const LABEL_TASK_ID: &str = "ai.dstack.shim.task-id";
/// Where the runner is mounted.
pub const RUNNER_PATH: &str = "/usr/local/bin/dstack-runner";
/// The runner's directory in the container.
pub const RUNNER_DIR: &str = "/tmp/runner";

/// Which runner the host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerKind {
    /// Ours: serves SSH itself, so it is started directly and works in images without a shell.
    ServesSsh,
    /// The original: needs OpenSSH's sshd in the container, installed by a shell line when missing.
    NeedsSshd,
}

impl RunnerKind {
    /// Asks the binary.
    pub async fn of(path: &Path) -> Self {
        let asked = tokio::process::Command::new(path)
            .arg0("dstack-runner")
            .arg("--features")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let answer = tokio::time::timeout(std::time::Duration::from_secs(10), asked).await;
        match answer {
            Ok(Ok(output)) if output.status.success() && output.stdout.starts_with(b"ssh-server") => {
                Self::ServesSsh
            }
            _ => Self::NeedsSshd,
        }
    }
}

/// Device nodes that change every container.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostDevices {
    /// InfiniBand, RoCE, EFA.
    pub infiniband: bool,
    /// Tenstorrent's huge pages.
    pub hugepages_1g: bool,
}

impl HostDevices {
    /// Looks for the device nodes on this machine.
    pub fn detect() -> Self {
        Self {
            infiniband: Path::new("/dev/infiniband").exists(),
            hugepages_1g: Path::new("/dev/hugepages-1G").exists(),
        }
    }
}

/// The container's whole configuration (dstack 0.22.5).
pub fn container(
    spec: &Spec<'_>,
    settings: &DockerSettings,
    runner: RunnerKind,
    devices: &HostDevices,
) -> ContainerCreateBody {
    let (entrypoint, cmd) = command(spec.config, settings, runner);
    // The original runner asks for neither, and would pass the variables on to the job.
    let is_ours = runner == RunnerKind::ServesSsh;
    let token = token_variable(spec.config).filter(|_| is_ours);
    let own_network = own_network_variable(spec.config).filter(|_| is_ours);
    let mut env: Vec<String> = settings
        .pass_env
        .iter()
        .chain(&token)
        .chain(&own_network)
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    env.extend(
        settings
            .pjrt_device
            .iter()
            .map(|device| format!("PJRT_DEVICE={device}")),
    );
    let ports = [settings.runner.http_port, settings.runner.ssh_port].map(|port| format!("{port}/tcp"));
    let mut host = host_config(spec, settings);
    host.port_bindings = Some(bindings(&ports));
    gpus(spec, settings.vendor, devices, &mut host, &mut env);
    infiniband(devices, &mut host);
    let user = Some(spec.config.container_user.as_str())
        .filter(|user| !user.is_empty())
        .unwrap_or("root");
    ContainerCreateBody {
        image: Some(super::image::Reference::parse(&spec.config.image_name).full()),
        user: Some(user.to_owned()),
        entrypoint: Some(entrypoint),
        cmd: Some(cmd),
        env: Some(env),
        labels: Some(HashMap::from([
            (LABEL_IS_TASK.to_owned(), "true".to_owned()),
            (LABEL_TASK_ID.to_owned(), spec.config.id.clone()),
        ])),
        exposed_ports: Some(ports.to_vec()),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

/// What tells the runner that it sees a network of the job's own.
fn own_network_variable(config: &TaskConfig) -> Option<(String, String)> {
    let is_own = config.network_mode == NetworkMode::Bridge;
    is_own.then(|| (OWN_NETWORK_VARIABLE.to_owned(), "1".to_owned()))
}

fn host_config(spec: &Spec<'_>, settings: &DockerSettings) -> HostConfig {
    let config = spec.config;
    let positive = |value: i64| (value > 0).then_some(value);
    #[allow(clippy::cast_possible_truncation)]
    let nano_cpus = (config.cpu * 1e9) as i64;
    HostConfig {
        privileged: Some(config.privileged || settings.privileged),
        network_mode: Some(
            match config.network_mode {
                NetworkMode::Host => "host",
                NetworkMode::Bridge => "bridge",
            }
            .to_owned(),
        ),
        mounts: Some(mounts(spec, settings)),
        shm_size: positive(config.shm_size),
        tmpfs: positive(config.shm_size)
            .map(|size| HashMap::from([("/dev/shm".to_owned(), format!("exec,size={size}"))])),
        nano_cpus: positive(nano_cpus),
        memory: positive(config.memory),
        ..HostConfig::default()
    }
}

fn mounts(spec: &Spec<'_>, settings: &DockerSettings) -> Vec<Mount> {
    let config = spec.config;
    let runner_dir = bind(
        spec.dir.join("runner").to_string_lossy().into_owned(),
        RUNNER_DIR.to_owned(),
    );
    // All tasks of the host, and the host agent itself, run this very file: root in a container must not change it.
    let runner = Mount {
        read_only: Some(true),
        ..bind(
            settings.runner.binary.to_string_lossy().into_owned(),
            RUNNER_PATH.to_owned(),
        )
    };
    let volumes = config
        .volume_mounts
        .iter()
        .map(|mount| (volume_on_host(config, &mount.name), mount.path.clone()));
    let instance = config
        .instance_mounts
        .iter()
        .map(|mount| (mount.instance_path.clone(), mount.path.clone()));
    let users = volumes
        .chain(instance)
        .map(|(source, target)| bind(source, target));
    [runner_dir, runner].into_iter().chain(users).collect()
}

/// Where a volume of the task is mounted.
fn volume_on_host(config: &TaskConfig, name: &str) -> String {
    let root = Path::new(MOUNT_ROOT);
    let volume = config.volumes.iter().find(|volume| volume.name == name);
    let place = volume.map_or_else(|| root.join(name), |volume| mount_point(root, volume));
    place.to_string_lossy().into_owned()
}

fn bind(source: String, target: String) -> Mount {
    Mount {
        source: Some(source),
        target: Some(target),
        typ: Some(MountType::BIND),
        ..Mount::default()
    }
}

/// Both ports on ephemeral loopback ports; set in host mode too, where the engine ignores them.
fn bindings(ports: &[String]) -> PortMap {
    let any = PortBinding {
        host_ip: Some("127.0.0.1".to_owned()),
        host_port: Some(String::new()),
    };
    ports
        .iter()
        .map(|port| (port.clone(), Some(vec![any.clone()])))
        .collect()
}

fn command(config: &TaskConfig, settings: &DockerSettings, runner: RunnerKind) -> (Vec<String>, Vec<String>) {
    let arguments = runner_arguments(config, settings);
    match runner {
        RunnerKind::ServesSsh => (vec![RUNNER_PATH.to_owned()], arguments),
        RunnerKind::NeedsSshd => {
            let line = shell_line(&arguments);
            let shell = vec!["/bin/sh".to_owned(), "-c".to_owned()];
            (shell, vec![format!("{INSTALL_SSHD} && {RUNNER_PATH} {line}")])
        }
    }
}

fn runner_arguments(config: &TaskConfig, settings: &DockerSettings) -> Vec<String> {
    let runner = &settings.runner;
    let (http, ssh) = (runner.http_port.to_string(), runner.ssh_port.to_string());
    let mut words: Vec<String> = [
        "--log-level",
        &runner.log_level,
        "start",
        "--temp-dir",
        RUNNER_DIR,
        "--http-port",
        &http,
        "--ssh-port",
        &ssh,
    ]
    .map(str::to_owned)
    .to_vec();
    if config.network_mode == NetworkMode::Host {
        words.extend(["--http-address", "localhost"].map(str::to_owned));
    }
    words.extend(key_arguments(&config.container_ssh_keys));
    if let Some(level) = &runner.ssh_log_level {
        words.extend(["--ssh-log-level".to_owned(), level.clone()]);
    }
    words
}

/// For the original runner: an sshd must be in the container; the last package manager found installs it.
const INSTALL_SSHD: &str = "{ unset LD_LIBRARY_PATH LD_PRELOAD; \
if ! command -v sshd >/dev/null 2>&1; then _how=; \
if command -v apt-get >/dev/null 2>&1; then _how='apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y openssh-server'; fi; \
if command -v yum >/dev/null 2>&1; then _how='yum install -y openssh-server'; fi; \
if command -v apk >/dev/null 2>&1; then _how='apk add -U openssh-server'; fi; \
if [ -z \"$_how\" ]; then echo \"$(. /etc/os-release; echo $NAME) not supported\"; exit 11; fi; \
eval \"$_how\"; fi; }";

fn device(host: &str, container: &str) -> DeviceMapping {
    DeviceMapping {
        path_on_host: Some(host.to_owned()),
        path_in_container: Some(container.to_owned()),
        cgroup_permissions: Some("rwm".to_owned()),
    }
}

fn gpus(
    spec: &Spec<'_>,
    vendor: Vendor,
    devices: &HostDevices,
    host: &mut HostConfig,
    env: &mut Vec<String>,
) {
    if spec.gpus.is_empty() {
        return;
    }
    if !spec.config.gpu_devices.is_empty() {
        let mapped = spec
            .config
            .gpu_devices
            .iter()
            .map(|gpu| device(&gpu.path_on_host, &gpu.path_in_container));
        host.devices.get_or_insert_default().extend(mapped);
        return;
    }
    let nodes = |paths: &[String]| paths.iter().map(|path| device(path, path)).collect::<Vec<_>>();
    match vendor {
        Vendor::None => {}
        Vendor::Nvidia => {
            let capabilities = [
                "gpu", "utility", "compute", "graphics", "video", "display", "compat32",
            ];
            host.device_requests = Some(vec![DeviceRequest {
                device_ids: Some(spec.gpus.to_vec()),
                capabilities: Some(vec![
                    capabilities
                        .into_iter()
                        .filter(|name| spec.display || *name != "display")
                        .map(str::to_owned)
                        .collect(),
                ]),
                ..DeviceRequest::default()
            }]);
        }
        Vendor::Amd => {
            let list = host.devices.get_or_insert_default();
            list.push(device("/dev/kfd", "/dev/kfd"));
            list.extend(nodes(spec.gpus));
            host.ipc_mode = Some("host".to_owned());
            host.cap_add = Some(vec!["SYS_PTRACE".to_owned()]);
            host.security_opt = Some(vec!["seccomp=unconfined".to_owned()]);
        }
        Vendor::Tenstorrent => {
            let paths: Vec<String> = spec
                .gpus
                .iter()
                .map(|index| format!("/dev/tenstorrent/{index}"))
                .collect();
            host.devices.get_or_insert_default().extend(nodes(&paths));
            if devices.hugepages_1g {
                let path = "/dev/hugepages-1G".to_owned();
                host.mounts.get_or_insert_default().push(bind(path.clone(), path));
            }
        }
        Vendor::Intel => {
            host.runtime = Some("habana".to_owned());
            host.ipc_mode = Some("host".to_owned());
            host.cap_add = Some(vec!["SYS_NICE".to_owned()]);
            env.push(format!("HABANA_VISIBLE_DEVICES={}", spec.gpus.join(",")));
        }
    }
}

fn infiniband(devices: &HostDevices, host: &mut HostConfig) {
    if devices.infiniband {
        host.devices
            .get_or_insert_default()
            .push(device("/dev/infiniband", "/dev/infiniband"));
        host.ulimits = Some(vec![ResourcesUlimits {
            name: Some("memlock".to_owned()),
            soft: Some(-1),
            hard: Some(-1),
        }]);
    }
}

#[cfg(test)]
mod tests;
