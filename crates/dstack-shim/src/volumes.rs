//! Network volumes and host directories of a task.

mod device;
mod filesystem;
mod protected;
mod system;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dstack_agent_api::shim::{InstanceMount, Volume};
use futures_util::future::join_all;

pub use protected::check_protected;
pub use system::{DeviceNumber, Disks, HostDisks};

use dstack_system::file;

/// Network volumes are mounted below.
pub const MOUNT_ROOT: &str = "/mnt/disks/dstack-volumes";

/// Why a volume cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Neither aws nor gcp.
    #[error("unknown backend")]
    UnknownBackend,
    /// Its id could leave the mount root.
    #[error("volume id {0:?} cannot be a directory name")]
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
    /// The disk does not answer: what a task wrote last may not be on it.
    #[error("what was written to the volume did not reach its disk within {} s", .0.as_secs())]
    NotFlushed(Duration),
    /// A tool could not be run.
    #[error("a disk tool gave no answer")]
    Command(#[from] crate::command::CommandError),
    /// A mount point cannot be made.
    #[error("cannot prepare a mount point")]
    Io(#[from] std::io::Error),
}

/// How often it is tried to unmount a volume that something holds, and the pause between two tries. The kernel tells nobody when
/// a mount point is free.
const UNMOUNT_TRIES: u32 = 4;
const UNMOUNT_STEP: Duration = Duration::from_secs(1);
/// How long the end of a task waits for what it wrote to reach a disk that could not be unmounted.
const FLUSH_LIMIT: Duration = Duration::from_secs(300);

/// The mount point of a volume on the host.
pub fn mount_point(root: &Path, volume: &Volume) -> PathBuf {
    root.join(directory(volume))
}

/// Name of the directory in which a volume is mounted: its id in the cloud, since two projects may have volumes of one name. Its
/// name where there is no id: of a container that was found without its record, only the names of its mount points are known.
fn directory(volume: &Volume) -> &str {
    match volume.volume_id.as_str() {
        "" => &volume.name,
        id => id,
    }
}

/// Whether it names a directory below another, and none that is hidden or further up.
fn is_directory_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && !name.starts_with('.')
}

/// Makes every volume available on the host, in order.
pub async fn prepare(disks: &dyn Disks, volumes: &[Volume]) -> Result<(), VolumeError> {
    for volume in volumes {
        let name = directory(volume);
        if !is_directory_name(name) {
            return Err(VolumeError::BadName(name.to_owned()));
        }
        let device = device::resolve(disks, volume).await?;
        device::wait_ready(disks, volume, &device).await?;
        let formatted = filesystem::ensure(disks, volume, &device).await?;
        mount(disks, volume, &device, formatted).await?;
    }
    Ok(())
}

async fn mount(disks: &dyn Disks, volume: &Volume, device: &str, formatted: bool) -> Result<(), VolumeError> {
    let dir = mount_point(disks.mount_root(), volume);
    match disks.mounted_at(&dir) {
        Some(mounted) if disks.device_number(device) == Some(mounted) => return Ok(()),
        // A device that was taken away while it was mounted: nothing can be read from it any more.
        Some(_) => disks.unmount(&dir).await?,
        None => {}
    }
    file::create_dir(&dir, 0o755)?;
    disks.mount(device, &dir).await?;
    if formatted {
        fs_err::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    }
    Ok(())
}

/// Unmounts what is mounted, all volumes at the same time; the container must have stopped.
///
/// # Errors
/// Of the first volume with one: something of the host holds it, which stays mounted. What the task has written is on the disk all the same, unless the
/// disk did not take it within [`FLUSH_LIMIT`]: then that is the error.
pub async fn release(disks: &dyn Disks, volumes: &[Volume]) -> Result<(), VolumeError> {
    // Agents before this version mounted volumes by their names.
    let names = volumes
        .iter()
        .flat_map(|volume| [directory(volume), volume.name.as_str()]);
    let names: BTreeSet<&str> = names.filter(|name| is_directory_name(name)).collect();
    let dirs = names.into_iter().map(|name| disks.mount_root().join(name));
    let mounted = dirs.filter(|dir| disks.mounted_at(dir).is_some());
    let unmounted = join_all(mounted.map(async |dir| unmount(disks, &dir).await)).await;
    unmounted.into_iter().collect()
}

async fn unmount(disks: &dyn Disks, dir: &Path) -> Result<(), VolumeError> {
    let mut tries = 1;
    let error = loop {
        match disks.unmount(dir).await {
            Ok(()) => return Ok(()),
            Err(VolumeError::Tool { .. }) if tries < UNMOUNT_TRIES => {}
            Err(error) => break error,
        }
        tries += 1;
        tokio::time::sleep(UNMOUNT_STEP).await;
    };
    // The cloud takes it from the machine by force in the end.
    let flushed = tokio::time::timeout(FLUSH_LIMIT, disks.flush(dir)).await;
    flushed.unwrap_or(Err(VolumeError::NotFlushed(FLUSH_LIMIT)))?;
    Err(error)
}

/// Creates missing host directories of instance mounts, writable for all; existing ones stay untouched.
pub fn prepare_instance_mounts(mounts: &[InstanceMount]) -> std::io::Result<()> {
    mounts
        .iter()
        .filter(|mount| !Path::new(&mount.instance_path).exists())
        .try_for_each(|mount| file::create_dir(Path::new(&mount.instance_path), 0o777))
}

#[cfg(test)]
mod tests;
