//! Network volumes of a cloud.

use async_trait::async_trait;
use dstack_model::runs::JobProvisioningData;
use dstack_model::volumes::{AnyVolumeConfiguration, VolumeAttachmentData, VolumeProvisioningData};

use crate::lifecycle::Resource;
use crate::{ComputeError, Lifecycle, Marks, Owner};

/// Network volumes: disks that outlive the machines to which they are attached.
#[derive(Debug, Clone, PartialEq)]
pub enum Volume {}

impl Resource for Volume {
    type Want = VolumeRequest;
    /// Region; empty where volumes have none.
    type Site = String;
    type Place = VolumeProvisioningData;
}

/// A volume that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeRequest {
    /// What it carries: whatever is made for the request is found by them.
    pub marks: Marks,
    /// For whom it is.
    pub owner: Owner,
    /// What is asked for.
    pub configuration: AnyVolumeConfiguration,
}

/// Makes, finds and removes network volumes.
#[async_trait]
pub trait Volumes: Lifecycle<Volume> {
    /// Looks up a volume that exists already.
    ///
    /// # Errors
    /// There is none; [`ComputeError::Unclear`]: asked again.
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError>;

    /// Attaches volumes to machines, where that is a call of its own. `None`: volumes are handed over when a machine or
    /// container is made, and free when it ends.
    fn attachments(&self) -> Option<&dyn Lifecycle<Attachment>> {
        None
    }
}

/// A volume that is attached to a machine. Removed: the cloud says that it is detached.
#[derive(Debug, Clone, PartialEq)]
pub enum Attachment {}

impl Resource for Attachment {
    type Want = AttachmentSite;
    type Site = AttachmentSite;
    type Place = VolumeAttachmentData;
}

/// Which volume is to be attached to which machine.
#[derive(Debug, Clone, PartialEq)]
pub struct AttachmentSite {
    /// The volume, as it was made.
    pub volume: VolumeProvisioningData,
    /// The machine.
    pub machine: JobProvisioningData,
    /// Detach it although the machine does not let go of it: what it has not written yet is lost.
    pub force: bool,
}
