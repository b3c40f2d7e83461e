//! Machines (or containers) of a cloud.

use async_trait::async_trait;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use dstack_units::{InstanceId, ProjectId};

use crate::ComputeError;

/// An instance that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceRequest {
    /// The key of the request: whatever is made for it carries it, and is found by it.
    pub id: InstanceId,
    /// The instance's name.
    pub name: String,
    /// The project.
    pub project: ProjectId,
    /// The reservation that it is to be made of: nothing else may be taken.
    pub reservation: Option<String>,
    /// Which offer is to be taken.
    pub offer: InstanceOfferWithAvailability,
}

/// Creates and ends instances.
#[async_trait]
pub trait Instances: Send + Sync {
    /// Creates an instance; asked again with the same id and offer, the cloud still has one.
    ///
    /// # Errors
    /// [`ComputeError::Unavailable`]: nobody knows whether it was made, [`Instances::find`] tells. All others: it was not.
    async fn create(&self, request: &InstanceRequest) -> Result<JobProvisioningData, ComputeError>;

    /// What an earlier [`Instances::create`] of the request made; `None`: nothing, and nothing will come of it any more.
    ///
    /// # Errors
    /// The cloud does not tell: asked again later.
    async fn find(&self, request: &InstanceRequest) -> Result<Option<JobProvisioningData>, ComputeError>;

    /// Ends an instance; `Ok` when the cloud says that it is gone, or that there is none.
    ///
    /// # Errors
    /// It may still be there: asked again later.
    async fn terminate(&self, id: InstanceId, place: &JobProvisioningData) -> Result<(), ComputeError>;
}
