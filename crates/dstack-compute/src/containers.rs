//! Containers of a cloud, each for one job, without a host of ours below them.

use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use dstack_model::volumes::VolumeProvisioningData;
use dstack_system::Secret;

use crate::lifecycle::Resource;
use crate::{Marks, Owner};

/// Port of the SSH server in a container: at first that of the [`Workload::script`], and that of the runner afterwards.
pub const CONTAINER_SSH_PORT: u16 = 10_022;

/// Containers that a cloud runs, one for each job.
#[derive(Debug, Clone, PartialEq)]
pub enum Container {}

impl Resource for Container {
    type Want = ContainerRequest;
    /// Region.
    type Site = String;
    /// Without `dockerized`. Where it is reached stands in `hostname`, `ssh_port` and `ssh_proxy`.
    type Place = JobProvisioningData;
}

/// A container that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerRequest {
    /// What it carries: whatever is made for the request is found by them.
    pub marks: Marks,
    /// For whom it is.
    pub owner: Owner,
    /// Which offer is to be taken. Of its zones, each may be taken.
    pub offer: InstanceOfferWithAvailability,
    /// What the job asked for: its share of a node is cut to that.
    pub requirements: Requirements,
    /// What runs in it.
    pub workload: Workload,
}

/// What runs in a container. It is put together when the cloud is called, and stands in no row, as it has secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Image, as the cloud is to pull it.
    pub image: String,
    /// Who may pull it.
    pub registry: Option<RegistryLogin>,
    /// What the container runs as root by `/bin/sh -c`: brings up an SSH server on [`CONTAINER_SSH_PORT`], waits for the agent,
    /// and becomes the runner.
    pub script: String,
    /// Public keys that may log in, each a line `type base64`: that of the project first.
    pub authorized_keys: Vec<String>,
    /// All rights on its host.
    pub privileged: bool,
    /// Size of `/dev/shm` in MiB; `None`: that of the cloud.
    pub shm_mib: Option<u64>,
    /// Network volumes, in the order in which the job names them.
    pub volumes: Vec<MountedVolume>,
    /// Folders of the node.
    pub folders: Vec<MountedFolder>,
}

/// A login to an image registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    /// Name of the user.
    pub username: String,
    /// Password or token.
    pub password: Secret,
    /// It is the server's own, for its default registry: nothing that runs in the container may get it.
    pub is_servers: bool,
}

/// A network volume that a container is made with.
#[derive(Debug, Clone, PartialEq)]
pub struct MountedVolume {
    /// Name of the volume in its project.
    pub name: String,
    /// The volume, as it was made.
    pub volume: VolumeProvisioningData,
    /// Where it is in the container.
    pub path: String,
}

/// A folder of the node on which a container runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedFolder {
    /// Path on the node.
    pub node_path: String,
    /// Where it is in the container.
    pub path: String,
    /// The container runs also where there is none.
    pub optional: bool,
}

/// Several containers that a cloud makes and removes as one, one for each node of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Group {}

impl Resource for Group {
    type Want = GroupRequest;
    /// Region.
    type Site = String;
    type Place = ComputeGroupProvisioningData;
}

/// A group that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRequest {
    /// What the group carries.
    pub marks: Marks,
    /// For whom it is.
    pub owner: Owner,
    /// Which offer each member takes.
    pub offer: InstanceOfferWithAvailability,
    /// What each job asked for.
    pub requirements: Requirements,
    /// What runs in the members, in the order of their nodes.
    pub workloads: Vec<Workload>,
}
