//! The host agent's HTTP API: bodies and routes (dstack 0.22.5's `dstack-shim`, plus two routes and one field).
//!
//! Every field of a request or response may be missing or `null`, which means its zero value: servers and agents
//! written in Python and Go really send `null` for booleans, integers and maps.

pub mod routes;

use std::fmt;

use dstack_system::Secret;
use serde::{Deserialize, Deserializer, Serialize};

/// The service name in [`Healthcheck`]; anything else at that address is not a host agent.
pub const SERVICE: &str = "dstack-shim";
/// TCP port of the API on the host's loopback interface.
pub const DEFAULT_HTTP_PORT: u16 = 10998;
/// TCP port of the job agent's API inside a task.
pub const RUNNER_HTTP_PORT: u16 = 10999;
/// TCP port of SSH inside a task.
pub const RUNNER_SSH_PORT: u16 = 10022;

/// What the host agent says, with status 401, to a call without its token.
pub const UNAUTHORIZED: &str = "this dstack-shim answers only calls that are signed with its token. If yours were before, another server or another fleet has \
     set this host up since: take the host out of one of the two";

/// Paths of the routes ([`routes::ROUTES`]). Those under a task take its id: see [`paths::task`].
pub mod paths {
    /// GET → [`super::Healthcheck`].
    pub const HEALTHCHECK: &str = "/api/healthcheck";
    /// POST [`super::ShutdownRequest`] → empty.
    pub const SHUTDOWN: &str = "/api/shutdown";
    /// GET → [`super::InstanceHealth`].
    pub const INSTANCE_HEALTH: &str = "/api/instance/health";
    /// GET → [`super::InstanceInfo`].
    pub const INSTANCE_INFO: &str = "/api/instance/info";
    /// GET → [`super::Components`].
    pub const COMPONENTS: &str = "/api/components";
    /// POST [`super::ComponentInstall`] → empty.
    pub const COMPONENTS_INSTALL: &str = "/api/components/install";
    /// GET → [`super::TaskList`]; POST [`super::TaskConfig`] → [`super::TaskInfo`].
    pub const TASKS: &str = "/api/tasks";
    /// GET → [`super::HostReport`]. Not part of dstack 0.22.5's API.
    pub const HOST: &str = "/api/host";
    /// GET → lines of [`super::StreamEvent`]. Not part of dstack 0.22.5's API.
    pub const STREAM: &str = "/api/stream";

    /// GET → [`super::TaskInfo`].
    pub fn task(id: &str) -> String {
        format!("{TASKS}/{id}")
    }

    /// POST [`super::TaskTerminate`] → [`super::TaskInfo`].
    pub fn terminate(id: &str) -> String {
        format!("{TASKS}/{id}/terminate")
    }

    /// POST without a body → empty.
    pub fn remove(id: &str) -> String {
        format!("{TASKS}/{id}/remove")
    }

    /// GET → Prometheus text.
    pub fn metrics(id: &str) -> String {
        format!("/metrics/tasks/{id}")
    }
}

/// Termination reasons the host agent gives by itself. dstack 0.22.5's server accepts only values of its closed list.
pub mod reason {
    /// Resources, volumes or keys could not be prepared; or the container vanished.
    pub const EXECUTOR_ERROR: &str = "executor_error";
    /// The image could not be pulled or the container not created.
    pub const CREATING_CONTAINER_ERROR: &str = "creating_container_error";
    /// The container did not start, or ended with a non-zero exit code.
    pub const CONTAINER_EXITED_WITH_ERROR: &str = "container_exited_with_error";
    /// The container ended with exit code 0.
    pub const DONE_BY_RUNNER: &str = "done_by_runner";
}

/// `null` means the zero value.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Answer of `GET /api/healthcheck`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Healthcheck {
    /// [`SERVICE`] for a host agent.
    #[serde(deserialize_with = "nullable")]
    pub service: String,
    /// PEP 440 version; may be unparseable for development builds.
    #[serde(deserialize_with = "nullable")]
    pub version: String,
}

/// Body of `POST /api/shutdown`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShutdownRequest {
    /// Close open requests at once instead of waiting for them.
    #[serde(deserialize_with = "nullable")]
    pub force: bool,
}

/// Answer of `GET /api/instance/health`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceHealth {
    /// `None` when DCGM is not available on the host or failed.
    pub dcgm: Option<DcgmHealth>,
}

/// NVIDIA DCGM's view of all GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DcgmHealth {
    /// 0 pass, 10 warning, 20 failure.
    #[serde(deserialize_with = "nullable")]
    pub overall_health: i64,
    /// What is wrong, worst first.
    #[serde(deserialize_with = "nullable")]
    pub incidents: Vec<DcgmIncident>,
}

/// One DCGM health incident.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DcgmIncident {
    /// The watched system (DCGM's numbering).
    #[serde(deserialize_with = "nullable")]
    pub system: i64,
    /// 0 pass, 10 warning, 20 failure.
    #[serde(deserialize_with = "nullable")]
    pub health: i64,
    /// What happened, for people.
    #[serde(deserialize_with = "nullable")]
    pub error_message: String,
    /// DCGM's error code.
    #[serde(deserialize_with = "nullable")]
    pub error_code: i64,
    /// 1 means GPU.
    #[serde(deserialize_with = "nullable")]
    pub entity_group_id: i64,
    /// Index within the group.
    #[serde(deserialize_with = "nullable")]
    pub entity_id: i64,
}

/// Answer of `GET /api/instance/info`; `{}` on a host without GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceInfo {
    /// `nvidia`, `amd`, `intel`, `tenstorrent`, or empty.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub gpu_vendor: String,
    /// Driver version as the vendor's tool prints it, or empty.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub gpu_driver_version: String,
}

/// State of one installed binary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComponentStatus {
    /// The file is missing.
    #[default]
    NotInstalled,
    /// The file answers `--version`.
    Installed,
    /// A download runs; the version is empty meanwhile.
    Installing,
    /// The file cannot be run or its version line not be read.
    Error,
}

/// A binary of the agents on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Component {
    /// `dstack-runner` or `dstack-shim`.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Version of the file on disk (the running process may be older), or empty.
    #[serde(deserialize_with = "nullable")]
    pub version: String,
    /// State of the file.
    #[serde(deserialize_with = "nullable")]
    pub status: ComponentStatus,
}

/// Answer of `GET /api/components`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Components {
    /// The runner, then the shim.
    #[serde(deserialize_with = "nullable")]
    pub components: Vec<Component>,
}

/// Body of `POST /api/components/install`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComponentInstall {
    /// `dstack-runner` or `dstack-shim`.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Where to download the binary from.
    #[serde(deserialize_with = "nullable")]
    pub url: String,
}

/// Where a task is in its life; it only ever moves down this list, or to the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// The agent has it on disk, and has done nothing for it yet.
    #[default]
    Pending,
    /// GPUs, keys, volumes and directories are being set up.
    Preparing,
    /// The image is being pulled.
    Pulling,
    /// The container is being created and started.
    Creating,
    /// The container runs; its ports are known.
    Running,
    /// Over; stays until removed.
    Terminated,
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Preparing => "preparing",
            Self::Pulling => "pulling",
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Terminated => "terminated",
        })
    }
}

/// One row of [`TaskList`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskListItem {
    /// The job's id.
    #[serde(deserialize_with = "nullable")]
    pub id: String,
    /// How far the task is.
    #[serde(deserialize_with = "nullable")]
    pub status: TaskStatus,
}

/// Answer of `GET /api/tasks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskList {
    /// All tasks known, in no order.
    #[serde(deserialize_with = "nullable")]
    pub tasks: Vec<TaskListItem>,
    /// Agents below 0.19.26 list ids only.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
}

/// A task's port and where it can be reached on the host's loopback interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortMapping {
    /// TCP port on the host.
    #[serde(deserialize_with = "nullable")]
    pub host: u16,
    /// TCP port as the task's configuration calls it.
    #[serde(deserialize_with = "nullable")]
    pub container: u16,
}

/// How far the image pull is; sums over all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImagePullProgress {
    /// Bytes that were downloaded.
    #[serde(deserialize_with = "nullable")]
    pub downloaded_bytes: u64,
    /// Bytes that were unpacked.
    #[serde(deserialize_with = "nullable")]
    pub extracted_bytes: u64,
    /// Bytes in all, as far as known.
    #[serde(deserialize_with = "nullable")]
    pub total_bytes: u64,
    /// False while the size of some layer is unknown.
    #[serde(deserialize_with = "nullable")]
    pub is_total_bytes_final: bool,
}

/// A task as the agent sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskInfo {
    /// The job's id.
    #[serde(deserialize_with = "nullable")]
    pub id: String,
    /// How far the task is.
    #[serde(deserialize_with = "nullable")]
    pub status: TaskStatus,
    /// One of the server's termination reasons, or empty.
    #[serde(deserialize_with = "nullable")]
    pub termination_reason: String,
    /// For people; may be empty.
    #[serde(deserialize_with = "nullable")]
    pub termination_message: String,
    /// `None` until the task runs; then empty in host network mode (the ports are the host's own).
    pub ports: Option<Vec<PortMapping>>,
    /// `None` before the first layer is known.
    pub image_pull_progress: Option<ImagePullProgress>,
    /// Name of the container (or of the task's directory, for a runtime without containers).
    #[serde(deserialize_with = "nullable")]
    pub container_name: String,
    /// The engine's id, or empty.
    #[serde(deserialize_with = "nullable")]
    pub container_id: String,
    /// Ids of the GPUs the task holds; the key is spelled as in dstack 0.22.5.
    pub gpus_ids: Option<Vec<String>>,
}

impl TaskInfo {
    /// Host port behind `container` once the task runs: the mapped one, or `container` itself in host network mode.
    pub fn host_port(&self, container: u16) -> Option<u16> {
        let ports = self.ports.as_ref()?;
        if ports.is_empty() {
            return Some(container);
        }
        ports
            .iter()
            .find(|port| port.container == container)
            .map(|port| port.host)
    }
}

/// How a container is connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// The host's network; the default.
    #[default]
    Host,
    /// A network of its own, with agent and SSH ports bound to ephemeral loopback ports.
    Bridge,
}

impl<'de> Deserialize<'de> for NetworkMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("" | "host") => Ok(Self::Host),
            Some("bridge") => Ok(Self::Bridge),
            Some(other) => Err(serde::de::Error::unknown_variant(other, &["host", "bridge"])),
        }
    }
}

/// A network volume to attach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// `aws` or `gcp`.
    #[serde(deserialize_with = "nullable")]
    pub backend: String,
    /// The volume's name, by which mounts of the task name it.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// The cloud's id; the volume's mount point on the host is named after it.
    #[serde(deserialize_with = "nullable")]
    pub volume_id: String,
    /// Whether a blank device may be formatted (volumes that dstack created).
    #[serde(deserialize_with = "nullable")]
    pub init_fs: bool,
    /// The cloud's device name, when it says one.
    pub device_name: Option<String>,
}

/// Where a volume appears in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeMount {
    /// Name of a [`Volume`].
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Absolute path in the container.
    #[serde(deserialize_with = "nullable")]
    pub path: String,
}

/// A host directory in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceMount {
    /// Absolute path on the host; created when missing.
    #[serde(deserialize_with = "nullable")]
    pub instance_path: String,
    /// Absolute path in the container.
    #[serde(deserialize_with = "nullable")]
    pub path: String,
    /// Decided by the server; the agent mounts either way.
    #[serde(deserialize_with = "nullable")]
    pub optional: bool,
}

/// A device node to map instead of the vendor's GPU setup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDevice {
    /// Device node on the host.
    #[serde(deserialize_with = "nullable")]
    pub path_on_host: String,
    /// Device node in the container.
    #[serde(deserialize_with = "nullable")]
    pub path_in_container: String,
}

/// Body of `POST /api/tasks`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskConfig {
    /// The job's id (UUID text).
    #[serde(deserialize_with = "nullable")]
    pub id: String,
    /// The job's name, `<run>-<job_num>-<replica_num>`.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// User name for the registry; empty: anonymous.
    #[serde(deserialize_with = "nullable")]
    pub registry_username: String,
    /// Password for the registry; empty: anonymous.
    #[serde(deserialize_with = "nullable")]
    pub registry_password: Secret,
    /// Reference of the image: `[registry/]name[:tag|@digest]`.
    #[serde(deserialize_with = "nullable")]
    pub image_name: String,
    /// User of the container's first process; empty: root.
    #[serde(deserialize_with = "nullable")]
    pub container_user: String,
    /// Whether the container is privileged.
    #[serde(deserialize_with = "nullable")]
    pub privileged: bool,
    /// -1: all free GPUs, even none; otherwise exactly so many.
    #[serde(deserialize_with = "nullable")]
    pub gpu: i64,
    /// CPUs; 0: unlimited.
    #[serde(deserialize_with = "nullable")]
    pub cpu: f64,
    /// Bytes; 0: unlimited.
    #[serde(deserialize_with = "nullable")]
    pub memory: i64,
    /// Bytes; 0: the engine's default.
    #[serde(deserialize_with = "nullable")]
    pub shm_size: i64,
    /// How the container is connected to the network.
    #[serde(deserialize_with = "nullable")]
    pub network_mode: NetworkMode,
    /// Network volumes to mount on the host.
    #[serde(deserialize_with = "nullable")]
    pub volumes: Vec<Volume>,
    /// Where they appear.
    #[serde(deserialize_with = "nullable")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Directories of the host that are mounted into the container.
    #[serde(deserialize_with = "nullable")]
    pub instance_mounts: Vec<InstanceMount>,
    /// Device nodes that replace the vendor's GPU setup.
    #[serde(deserialize_with = "nullable")]
    pub gpu_devices: Vec<GpuDevice>,
    /// Whose authorized_keys gets `host_ssh_keys`.
    #[serde(deserialize_with = "nullable")]
    pub host_ssh_user: String,
    /// Keys that may use the host as a jump host while the task lives.
    #[serde(deserialize_with = "nullable")]
    pub host_ssh_keys: Vec<String>,
    /// Keys that may log in to the container: the project's first.
    #[serde(deserialize_with = "nullable")]
    pub container_ssh_keys: Vec<String>,
    /// What every call to the task's runner must be signed with ([`crate::proof`]). Not part of dstack 0.22.5's API, whose
    /// agent ignores it. Empty: the runner answers everybody, because a server of dstack 0.22.5 has no token to send.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub runner_token: Secret,
    /// Paths of the host that the container must not get, nor anything below or above them; while there are some, it is not
    /// privileged either. Not part of dstack 0.22.5's API.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub protected_paths: Vec<String>,
}

fn is_empty(secret: &Secret) -> bool {
    secret.expose().is_empty()
}

/// Body of `POST /api/tasks/{id}/terminate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskTerminate {
    /// Kept only when no reason is recorded yet.
    #[serde(deserialize_with = "nullable")]
    pub termination_reason: String,
    /// Why it is ended, for people.
    #[serde(deserialize_with = "nullable")]
    pub termination_message: String,
    /// Seconds between TERM and KILL; 0 kills at once.
    #[serde(deserialize_with = "nullable")]
    pub timeout: u32,
}

/// What a machine has (`host_info.json`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostInfo {
    /// `none`, `nvidia`, `amd`, `intel` or `tenstorrent`.
    #[serde(deserialize_with = "nullable")]
    pub gpu_vendor: String,
    /// The first GPU's name as its vendor's tool prints it.
    #[serde(deserialize_with = "nullable")]
    pub gpu_name: String,
    /// The first GPU's memory, MiB.
    #[serde(deserialize_with = "nullable")]
    pub gpu_memory: u64,
    /// Number of GPUs.
    #[serde(deserialize_with = "nullable")]
    pub gpu_count: u32,
    /// Non-loopback interface addresses in CIDR form, in interface order.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    /// Free bytes where images (or task directories) are stored.
    #[serde(deserialize_with = "nullable")]
    pub disk_size: u64,
    /// CPUs usable by the agent.
    #[serde(deserialize_with = "nullable")]
    pub cpus: u32,
    /// Bytes of RAM.
    #[serde(deserialize_with = "nullable")]
    pub memory: u64,
}

/// Answer of `GET /api/host`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReport {
    /// What the machine has.
    pub host_info: HostInfo,
    /// `docker` or `process`.
    pub runtime: String,
    /// The agent's version.
    pub version: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// What the runtime does not honour, for people; empty for docker.
    pub notices: Vec<String>,
    /// Which file the agent was started from (`dstack_system::file::id`); empty of an agent that does not tell.
    pub executable: String,
}

/// One line of `GET /api/stream`: every task, `Synced`, then each change as it happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    /// A task is new or changed (pull progress at most once a second).
    Task(TaskInfo),
    /// A task was removed.
    Removed {
        /// The task's id, which is the job's.
        id: String,
    },
    /// All tasks have been listed once.
    Synced,
    /// Every 5 seconds: the agent is alive.
    Tick,
    /// From a newer agent: ignore.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_missing_fields_are_zero_values() {
        let with_nulls: TaskConfig = serde_json::from_str(
            r#"{"id":"x","name":null,"privileged":null,"gpu":null,"volumes":null,"network_mode":null,"registry_password":null,
                "volumes":[{"device_name":null,"init_fs":null,"backend":"aws"}]}"#
                .replace("\"volumes\":null,", "")
                .as_str(),
        )
        .unwrap();
        assert_eq!(with_nulls.id, "x");
        assert_eq!(with_nulls.network_mode, NetworkMode::Host);
        assert_eq!(with_nulls.volumes[0].backend, "aws");
        assert_eq!(
            serde_json::from_str::<TaskConfig>("{}").unwrap(),
            TaskConfig::default()
        );
        assert!(serde_json::from_str::<TaskConfig>(r#"{"network_mode":"mesh"}"#).is_err());
        assert_eq!(
            serde_json::from_str::<TaskConfig>(r#"{"network_mode":""}"#)
                .unwrap()
                .network_mode,
            NetworkMode::Host
        );
    }

    #[test]
    fn task_info_on_the_wire() {
        let info = TaskInfo {
            id: "1".into(),
            status: TaskStatus::Running,
            ports: Some(vec![]),
            ..TaskInfo::default()
        };
        assert_eq!(
            serde_json::to_string(&info).unwrap(),
            r#"{"id":"1","status":"running","termination_reason":"","termination_message":"","ports":[],"image_pull_progress":null,"container_name":"","container_id":"","gpus_ids":null}"#
        );
        assert_eq!(info.host_port(10999), Some(10999));
        assert_eq!(TaskInfo::default().host_port(10999), None);
        let line = serde_json::to_string(&StreamEvent::Task(info.clone())).unwrap();
        assert!(line.starts_with(r#"{"type":"task","id":"1""#), "{line}");
        assert_eq!(
            serde_json::from_str::<StreamEvent>(&line).unwrap(),
            StreamEvent::Task(info)
        );
        assert_eq!(
            serde_json::from_str::<StreamEvent>(r#"{"type":"later","x":1}"#).unwrap(),
            StreamEvent::Unknown
        );
    }

    #[test]
    fn a_task_without_a_token_is_submitted_as_dstack_0_22_5_does() {
        let sent = |token: &str| {
            let runner_token = token.into();
            serde_json::to_value(TaskConfig {
                runner_token,
                ..TaskConfig::default()
            })
            .unwrap()
        };
        assert_eq!(sent("").get("runner_token"), None);
        assert_eq!(sent("t0ken")["runner_token"], "t0ken");
        let received: TaskConfig = serde_json::from_str(r#"{"runner_token":null}"#).unwrap();
        assert_eq!(received, TaskConfig::default());
    }

    #[test]
    fn secrets_are_never_printed() {
        let config = TaskConfig {
            registry_password: "hunter2".into(),
            runner_token: "t0ken".into(),
            ..TaskConfig::default()
        };
        let printed = format!("{config:?}");
        assert!(
            !printed.contains("hunter2") && !printed.contains("t0ken"),
            "{printed}"
        );
        assert_eq!(serde_json::to_string(&InstanceInfo::default()).unwrap(), "{}");
    }
}
