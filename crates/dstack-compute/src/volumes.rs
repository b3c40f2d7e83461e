//! Network volumes of a cloud.

use async_trait::async_trait;
use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData};
use dstack_units::VolumeId;

use crate::ComputeError;

/// A volume, as far as a cloud needs to know it.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeRequest {
    /// The key of the request: what is made for it carries it, and is found by it.
    pub id: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The project's name.
    pub project_name: String,
    /// The user's name.
    pub user: String,
    /// What is asked for.
    pub configuration: AnyVolumeConfiguration,
}

/// Creates and deletes network volumes.
#[async_trait]
pub trait Volumes: Send + Sync {
    /// Creates a volume that carries the id of the request.
    ///
    /// # Errors
    /// [`ComputeError::Unavailable`]: nobody knows whether it was made, [`Volumes::find`] tells. All others: it was not; the
    /// text of [`ComputeError::Configuration`] is shown to users as it is.
    async fn create(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError>;

    /// What an earlier [`Volumes::create`] of the request made, as far as the cloud lists it. `None` is believed only when the
    /// time that the call may take is over, and [`crate::LISTED_WITHIN`] after that.
    ///
    /// # Errors
    /// The cloud does not tell: asked again later.
    async fn find(&self, volume: &VolumeRequest) -> Result<Option<VolumeProvisioningData>, ComputeError>;

    /// Looks up a volume that exists already.
    ///
    /// # Errors
    /// There is none.
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError>;

    /// Deletes a volume; one that is gone counts as deleted.
    ///
    /// # Errors
    /// It is still there: asked again later.
    async fn delete(&self, volume: &VolumeRequest, data: &VolumeProvisioningData)
    -> Result<(), ComputeError>;
}
