//! From a placed job to the task that its shim is given (dstack 0.22.5: pipelines §6.4).

use std::path::Path;

use dstack_agent_api::shim::{GpuDevice, InstanceMount, NetworkMode, TaskConfig, Volume, VolumeMount};
use dstack_compute::{JobNeeds, MountedPath};
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

/// The task for the shim, on a machine whose type has these needs.
///
/// # Errors
/// The job does not have a network volume for each of its mount points: why, in words for users.
pub fn task_config(
    job: &JobSnapshot,
    image: Image,
    access: Access,
    needs: JobNeeds,
) -> Result<TaskConfig, String> {
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
        instance_mounts: instance_mounts(spec.volumes.as_deref().unwrap_or_default(), needs.mounts),
        gpu_devices: needs.gpu_devices.iter().copied().map(gpu_device).collect(),
        host_ssh_user: host_user(job).unwrap_or_default(),
        host_ssh_keys: match host_user(job) {
            Some(_) => access.ssh_keys.host,
            None => Vec::new(),
        },
        container_ssh_keys: access.ssh_keys.container,
        runner_token: access.runner_token,
        protected_paths: protected_paths(job),
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

/// Those that the job asks for, then those that the machine's type needs. Of two at one path the container could not be made:
/// the job's is taken.
fn instance_mounts(asked: &[MountPoint], needed: &[MountedPath]) -> Vec<InstanceMount> {
    let is_taken = |path: &str| asked.iter().any(|mount| is_same_path(mount.path(), path));
    let needed = needed.iter().filter(|mount| !is_taken(mount.in_container));
    let needed = needed.map(|mount| InstanceMount {
        instance_path: mount.on_machine.to_owned(),
        path: mount.in_container.to_owned(),
        optional: false,
    });
    asked.iter().filter_map(instance_mount).chain(needed).collect()
}

fn is_same_path(one: &str, other: &str) -> bool {
    Path::new(one).components().eq(Path::new(other).components())
}

fn gpu_device(path: &str) -> GpuDevice {
    GpuDevice {
        path_on_host: path.to_owned(),
        path_in_container: path.to_owned(),
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

#[cfg(test)]
mod tests {
    use dstack_model::configurations::{InstanceMountPoint, VolumeMountPoint, VolumeNames};

    use super::*;

    fn asked(instance_path: &str, path: &str) -> MountPoint {
        MountPoint::Instance(InstanceMountPoint {
            instance_path: instance_path.to_owned(),
            path: path.to_owned(),
            optional: true,
        })
    }

    fn pairs(mounts: &[InstanceMount]) -> Vec<(&str, &str, bool)> {
        let mounts = mounts.iter();
        mounts
            .map(|mount| (mount.instance_path.as_str(), mount.path.as_str(), mount.optional))
            .collect()
    }

    const NEEDED: &[MountedPath] = &[
        MountedPath::at("/var/lib/x", "/usr/x"),
        MountedPath::same("/run/y"),
    ];

    #[test]
    fn needs_of_the_machine_come_after_what_is_asked_for() {
        assert_eq!(instance_mounts(&[], &[]), []);
        assert_eq!(
            pairs(&instance_mounts(&[asked("/data", "/data")], NEEDED)),
            [
                ("/data", "/data", true),
                ("/var/lib/x", "/usr/x", false),
                ("/run/y", "/run/y", false)
            ]
        );
    }

    #[test]
    fn what_is_asked_for_at_the_same_path_is_taken() {
        let own = asked("/mine", "//usr/x");
        assert_eq!(
            pairs(&instance_mounts(std::slice::from_ref(&own), NEEDED)),
            [("/mine", "//usr/x", true), ("/run/y", "/run/y", false)]
        );
        let volume = MountPoint::Volume(VolumeMountPoint {
            name: VolumeNames::One("data".to_owned()),
            path: "/run/y".to_owned(),
        });
        assert_eq!(
            pairs(&instance_mounts(&[volume], NEEDED)),
            [("/var/lib/x", "/usr/x", false)]
        );
        // Beside and below it is another place.
        let near = [asked("/a", "/usr/x2"), asked("/b", "/usr/x/below")];
        assert_eq!(instance_mounts(&near, NEEDED).len(), 4);
    }
}
