//! Instances of a cloud that never has any.

use async_trait::async_trait;
use dstack_compute::{ComputeError, InstanceRequest, Instances};
use dstack_model::runs::JobProvisioningData;
use dstack_units::InstanceId;

#[derive(Debug)]
pub(crate) struct NoCapacity;

#[async_trait]
impl Instances for NoCapacity {
    async fn create(&self, _: &InstanceRequest) -> Result<JobProvisioningData, ComputeError> {
        Err(ComputeError::NoCapacity("Golden setup: no capacity".to_owned()))
    }

    async fn find(&self, _: &InstanceRequest) -> Result<Option<JobProvisioningData>, ComputeError> {
        Ok(None)
    }

    async fn terminate(&self, _: InstanceId, _: &JobProvisioningData) -> Result<(), ComputeError> {
        Ok(())
    }
}
