//! Which device node a volume is.

use std::time::Duration;

use dstack_agent_api::shim::Volume;

use super::{Disks, VolumeError};

const APPEAR_LIMIT: Duration = Duration::from_secs(30);
const APPEAR_STEP: Duration = Duration::from_millis(500);
const READY_LIMIT: Duration = Duration::from_secs(10);
const READY_STEP: Duration = Duration::from_millis(200);

/// The device (or its first partition) to mount.
pub(super) async fn resolve(disks: &dyn Disks, volume: &Volume) -> Result<String, VolumeError> {
    match volume.backend.as_str() {
        "aws" => aws(disks, volume).await,
        "gcp" => gcp(disks, volume),
        _ => Err(VolumeError::UnknownBackend),
    }
}

/// Waits until the device can be read: clouds create the node before the disk answers, and tell nobody when it does.
pub(super) async fn wait_ready(disks: &dyn Disks, volume: &Volume, device: &str) -> Result<(), VolumeError> {
    let deadline = tokio::time::Instant::now() + READY_LIMIT;
    while disks.block_size(device).unwrap_or(0) == 0 {
        if tokio::time::Instant::now() >= deadline {
            return Err(no_device(
                volume,
                format!("{device} is not a block device with a size"),
            ));
        }
        tokio::time::sleep(READY_STEP).await;
    }
    Ok(())
}

async fn aws(disks: &dyn Disks, volume: &Volume) -> Result<String, VolumeError> {
    let deadline = tokio::time::Instant::now() + APPEAR_LIMIT;
    loop {
        if let Some(device) = aws_once(disks, volume).await? {
            return first_partition(disks, device).await;
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(no_device(
                volume,
                format!("no disk with serial {}", serial(&volume.volume_id)),
            ));
        }
        tokio::time::sleep(APPEAR_STEP).await;
    }
}

/// Nitro instances name NVMe devices as they like, but tell the volume's id as the serial number; older ones use the
/// requested name, with `xvd` for `sd`.
async fn aws_once(disks: &dyn Disks, volume: &Volume) -> Result<Option<String>, VolumeError> {
    let listed = disks.tool("lsblk", &["-o", "NAME,SERIAL"]).await?;
    let wanted = serial(&volume.volume_id);
    if let Some(name) = by_serial(&listed.stdout, &wanted) {
        return Ok(Some(format!("/dev/{name}")));
    }
    let given = volume.device_name.clone().unwrap_or_default();
    let renamed = given.replace("/dev/sd", "/dev/xvd");
    Ok([given, renamed]
        .into_iter()
        .find(|path| !path.is_empty() && disks.exists(path)))
}

fn serial(volume_id: &str) -> String {
    volume_id.replacen("vol-", "vol", 1)
}

fn by_serial<'a>(listing: &'a str, serial: &str) -> Option<&'a str> {
    listing.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.next()? == serial).then(|| name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()))
    })
}

async fn first_partition(disks: &dyn Disks, device: String) -> Result<String, VolumeError> {
    let listed = disks.tool("lsblk", &["-ln", "-o", "NAME", &device]).await?;
    // The disk itself, then its partitions.
    Ok(
        match listed
            .stdout
            .lines()
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .nth(1)
        {
            Some(partition) => format!("/dev/{partition}"),
            None => device,
        },
    )
}

fn gcp(disks: &dyn Disks, volume: &Volume) -> Result<String, VolumeError> {
    let link = format!(
        "/dev/disk/by-id/google-{}",
        volume.device_name.as_deref().unwrap_or_default()
    );
    let partition = format!("{link}-part1");
    [partition, link.clone()]
        .into_iter()
        .find(|path| disks.exists(path))
        .ok_or_else(|| no_device(volume, format!("{link} does not exist")))
}

fn no_device(volume: &Volume, what: String) -> VolumeError {
    VolumeError::NoDevice {
        name: volume.name.clone(),
        what,
    }
}
