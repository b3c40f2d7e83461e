//! From a placed job to the task that its shim is given (dstack 0.22.5: pipelines §6.4).

use dstack_agent_api::shim::{InstanceMount, NetworkMode, TaskConfig, Volume, VolumeMount};
use dstack_model::common::NetworkMode as JobNetworkMode;
use dstack_model::configurations::MountPoint;
use dstack_store::JobSnapshot;
use dstack_store::rows::AttachmentRow;
use dstack_system::Secret;

use crate::job_volumes::{kept, not_attached};
use crate::{Image, SshKeys};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Who may reach a task, and how.
#[derive(Debug, Clone)]
pub struct Access {
    /// Public keys that may log in.
    pub ssh_keys: SshKeys,
    /// What calls to its runner must bring.
    pub runner_token: Secret,
}

/// The task for the shim.
///
/// # Errors
/// The job does not have a network volume for each of its mount points: why, in words for users.
pub fn task_config(job: &JobSnapshot, image: Image, access: Access) -> Result<TaskConfig, String> {
    let spec = &job.job.job_spec;
    let volumes = kept(spec, &job.attachments).map_err(|error| not_attached(&error))?;
    let share = job.job.job_runtime_data.as_ref();
    let (registry_username, registry_password) = image.credentials.unwrap_or_default();
    Ok(TaskConfig {
        id: job.job.id.to_string(),
        name: spec.job_name.clone(),
        registry_username,
        registry_password,
        image_name: image.name,
        container_user: "root".to_owned(),
        privileged: spec.privileged,
        gpu: share.and_then(|share| share.gpu).unwrap_or(-1),
        cpu: share.and_then(|share| share.cpu).unwrap_or(0.0),
        memory: share
            .and_then(|share| share.memory.as_ref())
            .map_or(0, |memory| bytes(memory.gb())),
        shm_size: spec
            .requirements
            .resources
            .shm_size
            .as_ref()
            .map_or(0, |size| bytes(size.gb())),
        network_mode: match share.map(|share| share.network_mode) {
            Some(JobNetworkMode::Host) => NetworkMode::Host,
            _ => NetworkMode::Bridge,
        },
        volume_mounts: volumes
            .iter()
            .map(|(row, path)| volume_mount(row, path))
            .collect(),
        volumes: volumes.into_iter().map(|(row, _)| volume(row)).collect(),
        instance_mounts: spec.volumes.iter().flatten().filter_map(instance_mount).collect(),
        host_ssh_user: host_user(job).unwrap_or_default(),
        host_ssh_keys: match host_user(job) {
            Some(_) => access.ssh_keys.host,
            None => Vec::new(),
        },
        container_ssh_keys: access.ssh_keys.container,
        runner_token: access.runner_token,
        protected_paths: protected_paths(job),
        ..TaskConfig::default()
    })
}

/// As whom clients log in to the host on their way to the job; `None`: they reach the job without it.
fn host_user(job: &JobSnapshot) -> Option<String> {
    let place = job.job.job_provisioning_data.as_deref()?;
    place.dockerized.then(|| place.username.clone())
}

/// What the owner of the machine does not let into containers.
fn protected_paths(job: &JobSnapshot) -> Vec<String> {
    let address = job.instance.as_ref().and_then(|row| row.agent.as_deref());
    address.map_or_else(Vec::new, |address| address.rules().protected_paths.clone())
}

/// What the cloud has attached for the job: the shim finds it, formats it once, and mounts it.
fn volume(row: &AttachmentRow) -> Volume {
    Volume {
        backend: row
            .volume
            .backend
            .map(|backend| backend.to_string())
            .unwrap_or_default(),
        name: row.name.clone(),
        volume_id: row.volume.volume_id.clone(),
        init_fs: !row.external,
        device_name: row.data.as_ref().and_then(|data| data.device_name.clone()),
    }
}

fn volume_mount(row: &AttachmentRow, path: &str) -> VolumeMount {
    VolumeMount {
        name: row.name.clone(),
        path: path.to_owned(),
    }
}

fn instance_mount(mount: &MountPoint) -> Option<InstanceMount> {
    match mount {
        MountPoint::Instance(mount) => Some(InstanceMount {
            instance_path: mount.instance_path.clone(),
            path: mount.path.clone(),
            optional: mount.optional,
        }),
        MountPoint::Volume(_) => None,
    }
}

#[allow(clippy::cast_possible_truncation)] // gigabytes of a machine fit by far
fn bytes(gigabytes: f64) -> i64 {
    (gigabytes * GIB) as i64
}
