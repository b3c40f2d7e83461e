//! Network volumes and host directories of a task.

mod device;
mod filesystem;
mod protected;
mod system;

use std::path::{Path, PathBuf};

use dstack_agent_api::shim::{InstanceMount, Volume};

pub use protected::check_protected;
pub use system::{Disks, HostDisks};

use crate::files;

/// Network volumes are mounted below.
pub const MOUNT_ROOT: &str = "/mnt/disks/dstack-volumes";

/// Why a volume cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Neither aws nor gcp.
    #[error("unknown backend")]
    UnknownBackend,
    /// Its name could leave the mount root.
    #[error("volume name {0:?} cannot be a directory name")]
    BadName(String),
    /// The device did not appear.
    #[error("no device for volume {name}: {what}")]
    NoDevice {
        /// Name of the volume.
        name: String,
        /// What was looked for.
        what: String,
    },
    /// The device has a foreign signature, or no filesystem where one must be.
    #[error("volume {name} cannot be mounted: {what}")]
    Filesystem {
        /// Name of the volume.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A tool failed.
    #[error("{tool} failed: {stderr}")]
    Tool {
        /// Name of the program.
        tool: &'static str,
        /// What it said.
        stderr: String,
    },
    /// A tool could not be run.
    #[error("a disk tool gave no answer")]
    Command(#[from] crate::command::CommandError),
    /// A mount point cannot be made.
    #[error("cannot prepare a mount point")]
    Io(#[from] std::io::Error),
}

/// The mount point of a volume on the host.
pub fn mount_point(root: &Path, name: &str) -> PathBuf {
    root.join(name)
}

/// Makes every volume available on the host, in order.
pub async fn prepare(disks: &dyn Disks, volumes: &[Volume]) -> Result<(), VolumeError> {
    for volume in volumes {
        if volume.name.is_empty() || volume.name.contains('/') || volume.name.starts_with('.') {
            return Err(VolumeError::BadName(volume.name.clone()));
        }
        let device = device::resolve(disks, volume).await?;
        device::wait_ready(disks, volume, &device).await?;
        let formatted = filesystem::ensure(disks, volume, &device).await?;
        mount(disks, volume, &device, formatted).await?;
    }
    Ok(())
}

async fn mount(disks: &dyn Disks, volume: &Volume, device: &str, formatted: bool) -> Result<(), VolumeError> {
    let dir = mount_point(disks.mount_root(), &volume.name);
    if disks.is_mount_point(&dir) {
        return Ok(());
    }
    files::create_dir(&dir, 0o755)?;
    disks.mount(device, &dir).await?;
    if formatted {
        fs_err::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    }
    Ok(())
}

/// Unmounts what is mounted; the container must have stopped.
pub async fn release(disks: &dyn Disks, volumes: &[Volume]) -> Result<(), VolumeError> {
    let mut result = Ok(());
    for volume in volumes {
        let dir = mount_point(disks.mount_root(), &volume.name);
        if disks.is_mount_point(&dir) {
            let unmounted = disks.unmount(&dir).await;
            result = result.and(unmounted);
        }
    }
    result
}

/// Creates missing host directories of instance mounts, writable for all; existing ones stay untouched.
pub fn prepare_instance_mounts(mounts: &[InstanceMount]) -> std::io::Result<()> {
    mounts
        .iter()
        .filter(|mount| !Path::new(&mount.instance_path).exists())
        .try_for_each(|mount| files::create_dir(Path::new(&mount.instance_path), 0o777))
}

#[cfg(test)]
mod tests;
