//! Instances, and what they are made of.

use dstack_units::{AcceleratorVendor, CpuArchitecture, FleetId, InstanceId, Time};
use serde::Serialize;
use serde_json::{Value, json};

use crate::backends::BackendType;
use crate::common::Tags;
use crate::envs::Env;
use crate::health::HealthStatus;
use crate::volumes::Volume;
use crate::{Decode, string_enum};

/// An accelerator of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Decode)]
#[decode(before = vendor_from_name)]
pub struct Gpu {
    /// Its name, e.g. `A100`.
    pub name: String,
    /// Its memory in MiB.
    pub memory_mib: i64,
    /// Always set once decoded: NVIDIA when not given, Google for names that start with `tpu-`.
    pub vendor: Option<AcceleratorVendor>,
}

fn vendor_from_name(value: &Value) -> Result<Option<Value>, String> {
    let Value::Object(map) = value else {
        return Ok(None);
    };
    let tpu = map
        .get("name")
        .and_then(Value::as_str)
        .and_then(|name| name.strip_prefix("tpu-"));
    let has_vendor = map.get("vendor").is_some_and(|vendor| !vendor.is_null());
    if has_vendor && tpu.is_none() {
        return Ok(None);
    }
    let mut map = map.clone();
    if let Some(name) = tpu {
        map.insert("name".to_owned(), json!(name));
    }
    if !has_vendor {
        let vendor = if tpu.is_some() {
            AcceleratorVendor::Google
        } else {
            AcceleratorVendor::Nvidia
        };
        map.insert("vendor".to_owned(), json!(vendor));
    }
    Ok(Some(Value::Object(map)))
}

/// The accelerator driver of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GpuDriverInfo {
    /// Unset where it could not be detected.
    pub vendor: Option<AcceleratorVendor>,
    /// The driver's version.
    pub version: String,
}

/// The disk of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Decode)]
pub struct Disk {
    /// Its size in MiB; 0 when unknown.
    pub size_mib: i64,
}

impl Default for Disk {
    fn default() -> Self {
        Self { size_mib: 102_400 }
    }
}

/// What an instance has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Decode)]
pub struct Resources {
    /// Number of CPUs.
    pub cpus: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Accelerators, one item each.
    pub gpus: Vec<Gpu>,
    /// Whether it is a spot instance.
    pub spot: bool,
    /// The disk; 100 GB when unset.
    #[decode(default)]
    pub disk: Disk,
    /// Unset when unknown.
    pub cpu_arch: Option<CpuArchitecture>,
    /// Deprecated, never set.
    #[decode(default)]
    pub description: String,
}

/// A type of instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Decode)]
pub struct InstanceType {
    /// The backend's name of it.
    pub name: String,
    /// What it has.
    pub resources: Resources,
}

/// Where a host is reached by SSH.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Decode)]
pub struct SshConnectionParams {
    /// Host name or IP address.
    pub hostname: String,
    /// User that logs in.
    pub username: String,
    /// TCP port of its SSH server.
    pub port: i64,
}

/// An SSH key.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SshKey {
    /// The public key: one line in the format of OpenSSH.
    pub public: String,
    /// PEM; unset in answers.
    pub private: Option<String>,
}

impl std::fmt::Debug for SshKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshKey")
            .field("public", &self.public)
            .field("private", &self.private.as_ref().map(|_| "…"))
            .finish()
    }
}

/// How a host of an SSH fleet is reached (stored).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RemoteConnectionInfo {
    /// Host name or IP address.
    pub host: String,
    /// TCP port of its SSH server.
    pub port: i64,
    /// User that logs in.
    pub ssh_user: String,
    /// Keys to log in with.
    pub ssh_keys: Vec<SshKey>,
    /// The host in between.
    pub ssh_proxy: Option<SshConnectionParams>,
    /// Keys to log in with at the host in between.
    pub ssh_proxy_keys: Option<Vec<SshKey>>,
    /// Environment of the agent and of the jobs.
    #[decode(default)]
    pub env: Env,
}

/// What an instance is made from (stored).
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct InstanceConfiguration {
    /// Name of the instance's project.
    pub project_name: String,
    /// The instance's name.
    pub instance_name: String,
    /// The name of the dstack user.
    pub user: String,
    /// Keys that may log in.
    pub ssh_keys: Vec<SshKey>,
    /// The instance's id.
    pub instance_id: Option<String>,
    /// The reservation to use.
    pub reservation: Option<String>,
    /// Volumes that will be attached.
    pub volumes: Option<Vec<Volume>>,
    /// Tags of the cloud resources.
    pub tags: Option<Tags>,
}

string_enum! {
    /// What runs on the instance for us.
    pub enum InstanceRuntime {
        /// The host agent (VMs and hosts).
        Shim = "shim",
        /// Only the agent in the container.
        Runner = "runner",
    }
}

string_enum! {
    /// Whether an offered instance is available.
    pub enum InstanceAvailability {
        /// The backend does not say.
        Unknown = "unknown",
        /// The backend says that it can be created now.
        Available = "available",
        /// The backend says that it has no capacity for it now.
        NotAvailable = "not_available",
        /// Not within the quota.
        NoQuota = "no_quota",
        /// Not with this balance (dstack Sky).
        NoBalance = "no_balance",
        /// An existing instance without jobs.
        Idle = "idle",
        /// An existing instance with jobs.
        Busy = "busy",
    }
}

impl InstanceAvailability {
    /// Whether it is worth trying.
    pub const fn is_available(self) -> bool {
        matches!(self, Self::Unknown | Self::Available | Self::Idle)
    }
}

string_enum! {
    /// State of an instance.
    pub enum InstanceStatus {
        /// To be made.
        Pending = "pending",
        /// Being created by its backend; its agent does not answer yet.
        Provisioning = "provisioning",
        /// Ready for jobs, and without any.
        Idle = "idle",
        /// Runs at least one job.
        Busy = "busy",
        /// Being deleted by its backend.
        Terminating = "terminating",
        /// Does not exist any more.
        Terminated = "terminated",
    }
}

impl InstanceStatus {
    /// Whether jobs can run on it.
    pub const fn is_available(self) -> bool {
        matches!(self, Self::Idle | Self::Busy)
    }

    /// Whether it is not going or gone.
    pub const fn is_active(self) -> bool {
        !matches!(self, Self::Terminating | Self::Terminated)
    }
}

string_enum! {
    /// Why an instance is terminated.
    pub enum InstanceTerminationReason {
        /// A user asked for it.
        TerminatedByUser = "terminated_by_user",
        /// It was idle for too long.
        IdleTimeout = "idle_timeout",
        /// It did not come up in time.
        ProvisioningTimeout = "provisioning_timeout",
        /// Something else went wrong.
        Error = "error",
        /// Its job is finished, and it can have only one.
        JobFinished = "job_finished",
        /// It could not be reached for too long.
        Unreachable = "unreachable",
        /// No offer worked.
        NoOffers = "no_offers",
        /// The cluster's first instance did not come up.
        MasterFailed = "master_failed",
        /// The fleet has too many.
        MaxInstancesLimit = "max_instances_limit",
        /// It no longer is what the fleet asks for.
        FleetSpecMismatch = "fleet_spec_mismatch",
        /// The balance is used up (dstack Sky).
        NoBalance = "no_balance",
    }
}

/// An instance, as the API answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Instance {
    /// Id of the instance.
    pub id: InstanceId,
    /// Name of the project that owns its fleet.
    pub project_name: String,
    /// Its backend, once known.
    pub backend: Option<BackendType>,
    /// Its type, once known.
    pub instance_type: Option<InstanceType>,
    /// Name: `<fleet>-<instance_num>`.
    pub name: String,
    /// Id of the fleet that it belongs to.
    pub fleet_id: Option<FleetId>,
    /// Name of the fleet that it belongs to.
    pub fleet_name: Option<String>,
    /// Its number in the fleet.
    pub instance_num: u32,
    /// Deprecated, always unset.
    pub job_name: Option<String>,
    /// Address, a name or an IP; `null` until it has one.
    pub hostname: Option<String>,
    /// How far it is, and whether it runs jobs.
    pub status: InstanceStatus,
    /// Whether it does not answer.
    #[decode(default)]
    pub unreachable: bool,
    /// How its accelerators are.
    #[decode(default = HealthStatus::Healthy)]
    pub health_status: HealthStatus,
    /// An [`InstanceTerminationReason`], or one that this version does not know.
    pub termination_reason: Option<String>,
    /// Details of the reason.
    pub termination_reason_message: Option<String>,
    /// When it was made.
    pub created: Time,
    /// When it was gone.
    pub finished_at: Option<Time>,
    /// Region of its backend, once known; `remote` for hosts of SSH fleets.
    pub region: Option<String>,
    /// Availability zone, where its backend has such.
    pub availability_zone: Option<String>,
    /// Dollars an hour.
    pub price: Option<f64>,
    /// Blocks in all; unset while unknown.
    pub total_blocks: Option<u32>,
    /// Blocks in use.
    #[decode(default)]
    pub busy_blocks: u32,
    /// Its accelerator driver, once known.
    pub gpu_driver: Option<GpuDriverInfo>,
    /// What it waits for, in words that follow "waits for". Not in dstack 0.22.5, whose clients ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// When it stops waiting. Not in dstack 0.22.5, whose clients ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Time>,
}
