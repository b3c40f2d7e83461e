//! Jobs: what one node is to do, and each try to do it.

use std::collections::BTreeMap;

use dstack_units::{JobId, Memory, Time};
use indexmap::IndexMap;
use serde::Serialize;

use super::JobStatus;
use crate::Decode;
use crate::backends::BackendType;
use crate::common::{NetworkMode, RegistryAuth};
use crate::configurations::service::{HttpHeaderSpec, HttpMethod, HttpTag};
use crate::configurations::{DEFAULT_GROUP_NAME, LEGACY_REPO_DIR, MountPoint, RepoExistsAction};
use crate::decode::scalars::id4;
use crate::files::FileArchiveMapping;
use crate::instances::{GpuDriverInfo, InstanceType, SshConnectionParams};
use crate::offers::InstanceOfferWithAvailability;
use crate::profiles::{RetryEvent, UtilizationPolicy, VastAiProfileOptions};
use crate::repos::AnyRunRepoData;
use crate::resources::ResourcesSpec;
use crate::unix::UnixUser;

/// A port that clients forward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AppSpec {
    /// In the container.
    pub port: u16,
    /// On the client's machine.
    pub map_to_port: Option<u16>,
    /// Name of the port.
    pub app_name: String,
    /// A path to open.
    pub url_path: Option<String>,
    /// Query parameters of the path.
    pub url_query_params: Option<IndexMap<String, String>>,
}

/// What an instance must have to take a job.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Requirements {
    /// CPUs, memory, GPUs and disk.
    pub resources: ResourcesSpec,
    /// Dollars an hour at most.
    pub max_price: Option<f64>,
    /// Spot, on-demand, or both when unset.
    pub spot: Option<bool>,
    /// The reservation to use.
    pub reservation: Option<String>,
    /// Whether it must be able to be one of several nodes.
    pub multinode: Option<bool>,
    /// Options of backends.
    pub backend_options: Option<Vec<VastAiProfileOptions>>,
}

/// When a job is tried again, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Retry {
    /// On these events.
    pub on_events: Vec<RetryEvent>,
    /// Longest time of retrying, in seconds.
    pub duration: i64,
}

/// The keys by which the nodes of a run reach each other.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct JobSshKey {
    /// The private key, in PEM.
    pub private: String,
    /// The public key: one line in the format of OpenSSH.
    pub public: String,
}

impl std::fmt::Debug for JobSshKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobSshKey")
            .field("private", &"…")
            .field("public", &self.public)
            .finish()
    }
}

/// A probe, everything filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ProbeSpec {
    /// The kind of probe: `http`.
    #[serde(rename = "type")]
    pub kind: HttpTag,
    /// Path of the request.
    pub url: String,
    /// Method of the request.
    #[decode(default = HttpMethod::Get)]
    pub method: HttpMethod,
    /// Headers of the request.
    #[decode(default)]
    pub headers: Vec<HttpHeaderSpec>,
    /// Body of the request.
    pub body: Option<String>,
    /// Longest time to wait for an answer, in seconds.
    pub timeout: i64,
    /// Time between two probes, in seconds.
    pub interval: i64,
    /// Successes in a row until the replica is ready.
    pub ready_after: i64,
    /// Whether it stops once the replica is ready.
    #[decode(default)]
    pub until_ready: bool,
}

/// What one node is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct JobSpec {
    /// The replica's number.
    #[decode(default)]
    pub replica_num: u32,
    /// The node's number in the replica.
    pub job_num: u32,
    /// Name of the job: `<run>-<job>-<replica>`.
    pub job_name: String,
    /// Nodes of the replica.
    #[decode(default = 1)]
    pub jobs_per_replica: u32,
    /// The replica's group.
    #[decode(default = DEFAULT_GROUP_NAME.to_owned())]
    pub replica_group: String,
    /// Ports that clients forward.
    pub app_specs: Option<Vec<AppSpec>>,
    /// The container's user.
    pub user: Option<UnixUser>,
    /// The command and its arguments.
    pub commands: Vec<String>,
    /// Environment variables of the commands.
    pub env: IndexMap<String, String>,
    /// Not used; dstack 0.22.5 has it.
    pub home_dir: Option<String>,
    /// Image that the container is made from.
    pub image_name: String,
    /// Whether the container is privileged.
    #[decode(default)]
    pub privileged: bool,
    /// Whether only one branch is cloned.
    pub single_branch: Option<bool>,
    /// Seconds that it may run.
    pub max_duration: Option<i64>,
    /// Seconds that it may take to stop.
    pub stop_duration: Option<i64>,
    /// When it is stopped for leaving GPUs idle.
    pub utilization_policy: Option<UtilizationPolicy>,
    /// Credentials for the image.
    pub registry_auth: Option<RegistryAuth>,
    /// What its instance must have.
    pub requirements: Requirements,
    /// When it is tried again.
    pub retry: Option<Retry>,
    /// What is mounted.
    pub volumes: Option<Vec<MountPoint>>,
    /// The keys of the run's nodes; unset in answers.
    pub ssh_key: Option<JobSshKey>,
    /// The working directory.
    pub working_dir: Option<String>,
    /// The repo to prepare; unset: the run's.
    pub repo_data: Option<AnyRunRepoData>,
    /// The hash of the repo's diff.
    pub repo_code_hash: Option<String>,
    /// Where the repo goes.
    #[decode(default = LEGACY_REPO_DIR.to_owned())]
    pub repo_dir: String,
    /// What happens if something is there already.
    pub repo_exists_action: Option<RepoExistsAction>,
    /// Files that it takes along.
    #[decode(default)]
    pub file_archives: Vec<FileArchiveMapping>,
    /// The port of the service.
    pub service_port: Option<u16>,
    /// Probes of the service.
    #[decode(default)]
    pub probes: Vec<ProbeSpec>,
    /// The place of its node group.
    #[decode(default)]
    pub node_group_index: u32,
    /// The name of its node group.
    #[decode(default = DEFAULT_GROUP_NAME.to_owned())]
    pub node_group_name: String,
    /// The node's number in its group.
    #[decode(default)]
    pub node_group_job_index: u32,
}

/// The instance of a job, as the backend made it.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct JobProvisioningData {
    /// Backend that created the instance.
    pub backend: BackendType,
    /// The backend behind the backend.
    pub base_backend: Option<BackendType>,
    /// The instance's type.
    pub instance_type: InstanceType,
    /// The backend's id of it.
    pub instance_id: String,
    /// Public address, or private one without public addresses; may come later.
    pub hostname: Option<String>,
    /// Address in the private network of the instance.
    pub internal_ip: Option<String>,
    /// Whether it has a public address.
    #[decode(default = true)]
    pub public_ip_enabled: bool,
    /// The network that `internal_ip` is chosen from.
    pub instance_network: Option<String>,
    /// Region of the backend that the instance is in.
    pub region: String,
    /// Availability zone, where the backend has such.
    pub availability_zone: Option<String>,
    /// Reservation that the instance was made of.
    pub reservation: Option<String>,
    /// Dollars an hour.
    pub price: f64,
    /// The user to log in with.
    pub username: String,
    /// The port to log in at; may come later.
    pub ssh_port: Option<i64>,
    /// Whether our host agent runs there.
    pub dockerized: bool,
    /// The host in between.
    pub ssh_proxy: Option<SshConnectionParams>,
    /// JSON of the backend.
    pub backend_data: Option<String>,
    /// Its accelerator driver, once known.
    pub gpu_driver: Option<GpuDriverInfo>,
}

impl JobProvisioningData {
    /// The backend behind the backend, if there is one.
    pub fn base_backend(&self) -> BackendType {
        self.base_backend.unwrap_or(self.backend)
    }
}

/// What is known of a job once it is on an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct JobRuntimeData {
    /// How its container is connected.
    pub network_mode: NetworkMode,
    /// Its share of GPUs; all when unset.
    pub gpu: Option<i64>,
    /// Its share of CPUs; all when unset.
    pub cpu: Option<f64>,
    /// Its share of memory; all when unset.
    pub memory: Option<Memory>,
    /// Container ports and the host's ports for them.
    pub ports: Option<BTreeMap<u16, u16>>,
    /// Volumes that it uses.
    pub volume_names: Option<Vec<String>>,
    /// Its share of the instance.
    pub offer: Option<InstanceOfferWithAvailability>,
    /// As the runner found it.
    pub working_dir: Option<String>,
    /// As the runner found it.
    pub username: Option<String>,
}

/// How the nodes of a run reach each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ClusterInfo {
    /// Addresses in node order.
    pub job_ips: Vec<String>,
    /// Address of the first node.
    pub master_job_ip: String,
    /// GPUs of this node.
    pub gpus_per_job: i64,
    /// GPUs of each node.
    #[decode(default)]
    pub gpus_per_node: Vec<i64>,
}

/// State of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Decode)]
pub struct Probe {
    /// Successes in a row.
    pub success_streak: i64,
}

/// How far the pulling of an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Decode)]
pub struct ImagePullProgress {
    /// Bytes that were downloaded.
    pub downloaded_bytes: i64,
    /// Bytes that were unpacked.
    pub extracted_bytes: i64,
    /// Bytes in all; too low while not final.
    pub total_bytes: i64,
    /// Whether the total is right.
    pub is_total_bytes_final: bool,
}

/// One try to do a job.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct JobSubmission {
    /// Id of the submission; jobs of the database are submissions.
    #[decode(with = id4)]
    pub id: JobId,
    /// Its number, from 0.
    pub submission_num: u32,
    /// The deployment that it runs.
    #[decode(default)]
    pub deployment_num: u32,
    /// When it was submitted.
    pub submitted_at: Time,
    /// When the server last looked at it.
    pub last_processed_at: Time,
    /// When it was finished.
    pub finished_at: Option<Time>,
    /// Seconds without connections.
    pub inactivity_secs: Option<i64>,
    /// How far it is.
    pub status: JobStatus,
    /// Its state for people's eyes.
    #[decode(default)]
    pub status_message: String,
    /// A [`super::JobTerminationReason`], or one that this version does not know.
    pub termination_reason: Option<String>,
    /// Details of the reason.
    pub termination_reason_message: Option<String>,
    /// Its command's exit status.
    pub exit_status: Option<i64>,
    /// The instance that it runs on, once there is one.
    pub job_provisioning_data: Option<JobProvisioningData>,
    /// What is known of it there.
    pub job_runtime_data: Option<JobRuntimeData>,
    /// What went wrong.
    pub error: Option<String>,
    /// States of its probes.
    #[decode(default)]
    pub probes: Vec<Probe>,
    /// How far the pulling of its image is.
    pub image_pull_progress: Option<ImagePullProgress>,
    /// What it waits for, in words that follow "waits for". Not in dstack 0.22.5, whose clients ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// [`WAITING_FOR_COMMANDS`] where that is all it waits for. Not in dstack 0.22.5, whose clients ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_kind: Option<String>,
    /// When it stops waiting. Not in dstack 0.22.5, whose clients ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Time>,
}

/// [`JobSubmission::waiting_kind`] of a job whose commands run: nothing holds it up.
pub const WAITING_FOR_COMMANDS: &str = "commands";

/// How users connect to a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct JobConnectionInfo {
    /// Dev environment IDE name for UI, human-readable.
    pub ide_name: Option<String>,
    /// Dev environment IDE URL. Only works if the user is attached to the run via CLI or Python API.
    pub attached_ide_url: Option<String>,
    /// Dev environment IDE URL. Not set if sshproxy is not configured.
    pub proxied_ide_url: Option<String>,
    /// SSH command to connect to the job. Only works if the user is attached to the run.
    pub attached_ssh_command: Option<Vec<String>>,
    /// SSH command to connect to the job. Not set if sshproxy is not configured.
    pub proxied_ssh_command: Option<Vec<String>>,
    /// sshproxy hostname. Not set if sshproxy is not configured.
    pub sshproxy_hostname: Option<String>,
    /// sshproxy port. May be not set if it is equal to the default SSH port 22.
    pub sshproxy_port: Option<i64>,
    /// sshproxy identifier for this job.
    pub sshproxy_upstream_id: Option<String>,
}

/// A job with all its tries.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Job {
    /// What it is to do.
    pub job_spec: JobSpec,
    /// The tries, oldest first; the last one counts.
    pub job_submissions: Vec<JobSubmission>,
    /// How users connect to it, while it runs.
    pub job_connection_info: Option<JobConnectionInfo>,
}
