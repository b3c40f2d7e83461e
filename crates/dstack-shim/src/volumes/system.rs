//! The host's block devices and mounts, behind a trait.

use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use super::VolumeError;
use crate::command::{CommandError, Commands, Output, SystemCommands};

/// What volumes need of the system.
#[async_trait]
pub trait Disks: Send + Sync {
    /// Runs a disk tool.
    async fn tool(&self, program: &'static str, args: &[&str]) -> Result<Output, CommandError>;
    /// Whether a path exists.
    fn exists(&self, path: &str) -> bool;
    /// Size of a block device in bytes; `None` when it is not one (yet).
    fn block_size(&self, path: &str) -> Option<u64>;
    /// Whether something is mounted there.
    fn is_mount_point(&self, dir: &Path) -> bool;
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
        // mkfs of a large device takes minutes.
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

    fn is_mount_point(&self, dir: &Path) -> bool {
        let mounts = fs_err::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounted(&mounts, dir)
    }

    fn mount_root(&self) -> &Path {
        &self.root
    }
}

/// Whether mountinfo's fifth field names the directory (spaces and the like are written in octal there).
fn mounted(mountinfo: &str, dir: &Path) -> bool {
    let wanted = dir
        .to_string_lossy()
        .replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011");
    mountinfo
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(wanted.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found() {
        let info = "24 29 0:22 / /proc rw - proc proc rw\n31 29 8:1 / /mnt/disks/dstack-volumes/a\\040b rw - ext4 /dev/sda rw\n";
        assert!(mounted(info, Path::new("/proc")));
        assert!(mounted(info, Path::new("/mnt/disks/dstack-volumes/a b")));
        assert!(!mounted(info, Path::new("/mnt")));
        assert!(HostDisks::default().is_mount_point(Path::new("/proc")));
        assert_eq!(HostDisks::default().block_size("/dev/null"), None);
    }
}
