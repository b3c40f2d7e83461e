//! Machines of a cloud that never has any.

use async_trait::async_trait;
use dstack_compute::{Call, ComputeError, Known, Lifecycle, Machine, MachineRequest, Removal, Step};
use dstack_model::runs::JobProvisioningData;

#[derive(Debug)]
pub(crate) struct NoCapacity;

#[async_trait]
impl Lifecycle<Machine> for NoCapacity {
    async fn ensure(
        &self,
        _: &MachineRequest,
        _: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        Err(ComputeError::NoCapacity("Golden setup: no capacity".to_owned()))
    }

    async fn remove(&self, _: &Known<Machine>, _: &Call<'_>) -> Result<Removal, ComputeError> {
        Ok(Removal::Gone)
    }
}
