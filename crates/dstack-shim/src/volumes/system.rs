//! The host's block devices and mounts, behind a trait.

use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use dstack_system::task;

use super::VolumeError;
use crate::command::{CommandError, Commands, Output, SystemCommands};

/// Major and minor number of a block device: another one as long as the device is in use, whatever becomes of its name.
pub type DeviceNumber = (u32, u32);

/// What volumes need of the system.
#[async_trait]
pub trait Disks: Send + Sync {
    /// Runs a disk tool.
    async fn tool(&self, program: &'static str, args: &[&str]) -> Result<Output, CommandError>;
    /// Whether a path exists.
    fn exists(&self, path: &str) -> bool;
    /// Size of a block device in bytes; `None` when it is not one (yet).
    fn block_size(&self, path: &str) -> Option<u64>;
    /// The device that is mounted there.
    fn mounted_at(&self, dir: &Path) -> Option<DeviceNumber>;
    /// Which device a node is.
    fn device_number(&self, path: &str) -> Option<DeviceNumber>;
    /// Mounts a device.
    async fn mount(&self, device: &str, dir: &Path) -> Result<(), VolumeError> {
        let dir = dir.to_string_lossy();
        succeed("mount", &self.tool("mount", &[device, &dir]).await?)
    }
    /// Unmounts what is mounted at a directory.
    async fn unmount(&self, dir: &Path) -> Result<(), VolumeError> {
        let dir = dir.to_string_lossy();
        succeed("umount", &self.tool("umount", &["-qf", &dir]).await?)
    }
    /// Gets everything that was written below a mount point onto its disk.
    async fn flush(&self, dir: &Path) -> Result<(), VolumeError> {
        let dir = dir.to_owned();
        let flush = move || -> std::io::Result<()> { Ok(rustix::fs::syncfs(fs_err::File::open(dir)?)?) };
        let flushed = task::blocking("flush a volume", flush).await;
        Ok(flushed.map_err(std::io::Error::other)??)
    }
    /// Mount points are directories below.
    fn mount_root(&self) -> &Path;
}

pub(super) fn succeed(tool: &'static str, output: &Output) -> Result<(), VolumeError> {
    if output.success() {
        Ok(())
    } else {
        Err(VolumeError::Tool {
            tool,
            stderr: output.stderr.trim().to_owned(),
        })
    }
}

/// This machine's disks.
#[derive(Debug, Clone)]
pub struct HostDisks {
    root: PathBuf,
}

impl Default for HostDisks {
    fn default() -> Self {
        Self {
            root: super::MOUNT_ROOT.into(),
        }
    }
}

impl HostDisks {
    /// Those that are mounted below a directory of one's own.
    pub const fn below(root: PathBuf) -> Self {
        Self { root }
    }
}

#[async_trait]
impl Disks for HostDisks {
    async fn tool(&self, program: &'static str, args: &[&str]) -> Result<Output, CommandError> {
        // mkfs of a large device takes minutes, and so does unmounting one to which much was written.
        SystemCommands.run(program, args, Duration::from_secs(600)).await
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn block_size(&self, path: &str) -> Option<u64> {
        let mut file = fs_err::File::open(path).ok()?;
        if !file.metadata().ok()?.file_type().is_block_device() {
            return None;
        }
        // A block device ends where its size is.
        file.seek(SeekFrom::End(0)).ok()
    }

    fn mounted_at(&self, dir: &Path) -> Option<DeviceNumber> {
        let mounts = fs_err::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounted(&mounts, dir)
    }

    fn device_number(&self, path: &str) -> Option<DeviceNumber> {
        let number = fs_err::metadata(path).ok()?.rdev();
        Some((rustix::fs::major(number), rustix::fs::minor(number)))
    }

    fn mount_root(&self) -> &Path {
        &self.root
    }
}

/// The device of what was mounted last at the directory: the third field of mountinfo where the fifth names it (spaces and the like
/// are written in octal there).
fn mounted(mountinfo: &str, dir: &Path) -> Option<DeviceNumber> {
    let wanted = dir
        .to_string_lossy()
        .replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011");
    let mut lines = mountinfo.lines().rev();
    let line = lines.find(|line| line.split(' ').nth(4) == Some(wanted.as_str()))?;
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found() {
        let info = "24 29 0:22 / /proc rw - proc proc rw\n31 29 8:1 / /mnt/disks/dstack-volumes/a\\040b rw - ext4 /dev/sda rw\n";
        assert_eq!(mounted(info, Path::new("/proc")), Some((0, 22)));
        let volume = Path::new("/mnt/disks/dstack-volumes/a b");
        assert_eq!(mounted(info, volume), Some((8, 1)));
        let twice = format!("{info}32 29 8:17 / /mnt/disks/dstack-volumes/a\\040b rw - ext4 /dev/sdb rw\n");
        assert_eq!(mounted(&twice, volume), Some((8, 17)), "the one on top");
        assert_eq!(mounted(info, Path::new("/mnt")), None);
        assert!(HostDisks::default().mounted_at(Path::new("/proc")).is_some());
        assert_eq!(HostDisks::default().device_number("/dev/null"), Some((1, 3)));
        assert_eq!(HostDisks::default().block_size("/dev/null"), None);
    }
}
