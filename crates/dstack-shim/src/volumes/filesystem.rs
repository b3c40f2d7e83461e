//! What is on a device, and making a filesystem on a blank one.

use std::time::Duration;

use dstack_agent_api::shim::Volume;

use super::system::succeed;
use super::{Disks, VolumeError};

/// A device said to be blank is asked so often again: a disk that does not answer yet looks blank too, and formatting
/// it would destroy data.
const CONFIRMATIONS: u32 = 3;
const CONFIRM_STEP: Duration = Duration::from_secs(1);

/// What blkid finds.
enum Content {
    Filesystem,
    Blank,
}

/// Makes sure that the device has a filesystem; true when it was just made.
pub(super) async fn ensure(disks: &dyn Disks, volume: &Volume, device: &str) -> Result<bool, VolumeError> {
    for round in 0..=CONFIRMATIONS {
        if round > 0 {
            tokio::time::sleep(CONFIRM_STEP).await;
        }
        if let Content::Filesystem = probe(disks, volume, device).await? {
            return Ok(false);
        }
    }
    if !volume.init_fs {
        return Err(bad(
            volume,
            format!("{device} has no filesystem, and the volume was not created by dstack"),
        ));
    }
    succeed("mkfs.ext4", &disks.tool("mkfs.ext4", &["-F", device]).await?)?;
    Ok(true)
}

async fn probe(disks: &dyn Disks, volume: &Volume, device: &str) -> Result<Content, VolumeError> {
    let output = disks
        .tool("blkid", &["-p", "-o", "value", "-s", "TYPE", device])
        .await?;
    match (output.code, output.stdout.trim()) {
        (Some(0), "") => Err(bad(
            volume,
            format!("{device} carries a signature that is no filesystem"),
        )),
        (Some(0), _) => Ok(Content::Filesystem),
        (Some(2), "") => Ok(Content::Blank),
        (code, _) => Err(bad(
            volume,
            format!("blkid ended with {code:?}: {}", output.stderr.trim()),
        )),
    }
}

fn bad(volume: &Volume, what: String) -> VolumeError {
    VolumeError::Filesystem {
        name: volume.name.clone(),
        what,
    }
}
