//! Machines (or containers) of a cloud.

use std::time::Duration;

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
    /// The project that the instance is for.
    pub project: ProjectId,
    /// The reservation that it is to be made of: nothing else may be taken.
    pub reservation: Option<String>,
    /// Which offer is to be taken.
    pub offer: InstanceOfferWithAvailability,
}

/// How long clouds may take to list what they have made, unless a backend knows better.
pub const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// Creates and ends instances.
#[async_trait]
pub trait Instances: Send + Sync {
    /// Creates an instance; asked again with the same id and offer, the cloud still has one.
    ///
    /// # Errors
    /// [`ComputeError::Unavailable`]: nobody knows whether it was made, [`Instances::find`] tells. All others: it was not.
    async fn create(&self, request: &InstanceRequest) -> Result<JobProvisioningData, ComputeError>;

    /// What an earlier [`Instances::create`] of the request made, as far as the cloud lists it. `None` is believed only when the
    /// time that the call may take is over, and [`Instances::listed_within`] after that.
    ///
    /// # Errors
    /// The cloud does not tell: asked again later.
    async fn find(&self, request: &InstanceRequest) -> Result<Option<JobProvisioningData>, ComputeError>;

    /// How long after an instance was made [`Instances::find`] may not find it yet.
    fn listed_within(&self) -> Duration {
        LISTED_WITHIN
    }

    /// Ends an instance; `Ok` when the cloud says that it is gone, or that there is none.
    ///
    /// # Errors
    /// It may still be there: asked again later.
    async fn terminate(&self, id: InstanceId, place: &JobProvisioningData) -> Result<(), ComputeError>;
}
