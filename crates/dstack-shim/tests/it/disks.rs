//! A volume on a real block device: a file behind a loop device, where this machine lets us have one.

use std::path::Path;
use std::process::Command;

use dstack_agent_api::shim::Volume;
use dstack_shim::volumes::{HostDisks, mount_point, prepare, release};

const MIB: u64 = 1024 * 1024;

/// A file as a block device, until it is dropped.
struct LoopDevice(String);

impl LoopDevice {
    /// `Err`: why this machine has none for us.
    fn of(file: &Path) -> Result<Self, String> {
        let mut losetup = Command::new("losetup");
        let output = losetup.args(["--find", "--show"]).arg(file).output();
        let output = output.map_err(|error| format!("losetup: {error}"))?;
        match output.status.success() {
            true => Ok(Self(String::from_utf8_lossy(&output.stdout).trim().to_owned())),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").args(["--detach", &self.0]).status().ok();
    }
}

/// It is found by its device's name, formatted once, and keeps what is written on it.
#[tokio::test]
async fn a_blank_disk_is_formatted_once_and_mounted_again_with_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    fs_err::File::create(&file).unwrap().set_len(64 * MIB).unwrap();
    let device = match LoopDevice::of(&file) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: no loop device: {reason}"),
    };
    let disks = HostDisks::below(folder.path().join("mounts"));
    let volumes = [Volume {
        backend: "aws".to_owned(),
        name: "data".to_owned(),
        volume_id: "vol-none".to_owned(),
        init_fs: true,
        device_name: Some(device.0.clone()),
    }];
    if let Err(error) = prepare(&disks, &volumes).await {
        let text = format!("{error:?}");
        assert!(text.contains("permission denied"), "{text}");
        return eprintln!("skipped: this machine does not let us mount: {text}");
    }
    let kept = mount_point(&folder.path().join("mounts"), &volumes[0]).join("kept");
    fs_err::write(&kept, "kept").unwrap();
    release(&disks, &volumes).await.unwrap();
    assert!(!kept.exists(), "it is not mounted any more");
    // Another task, to which the volume is one that was there before: it is not formatted, and need not be.
    let again = volumes.map(|volume| Volume {
        init_fs: false,
        ..volume
    });
    prepare(&disks, &again).await.unwrap();
    assert_eq!(fs_err::read_to_string(&kept).unwrap(), "kept");
    release(&disks, &again).await.unwrap();
}
