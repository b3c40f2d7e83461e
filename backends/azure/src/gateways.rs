//! Machines of gateways: as those for jobs, of another image and security group, always with an address.

use async_trait::async_trait;
use dstack_backend::{gateway_machine, gateway_sign, gateway_step, known_gateway_machine};
use dstack_compute::{
    Call, ComputeError, GatewayMachine, GatewayRequest, Known, Lifecycle, Machine, Removal, Sign, Step,
};
use dstack_model::backends::BackendType;
use dstack_model::gateways::GatewayReplicaProvisioningData;

use crate::Azure;
use crate::machines::Purpose;
use crate::names;

/// What a gateway runs on, where nothing else is asked for.
const SIZE: &str = "Standard_B1ms";

/// What the image needs.
const DISK_GIB: i64 = 30;

#[async_trait]
impl Lifecycle<GatewayMachine> for Azure {
    async fn ensure(
        &self,
        want: &GatewayRequest,
        call: &Call<'_>,
    ) -> Result<Step<GatewayReplicaProvisioningData>, ComputeError> {
        if !want.is_public {
            return Err(ComputeError::Unsupported("a gateway without a public address"));
        }
        // As users write it; it becomes part of addresses.
        if !names::is_name(&want.region) {
            return Err(ComputeError::Refused(format!(
                "{:?} is no region of Azure",
                want.region
            )));
        }
        let machine = gateway_machine(want, BackendType::Azure, SIZE, DISK_GIB);
        let step = self.ensure_machine(&machine, Purpose::Gateway, call).await?;
        Ok(gateway_step(step))
    }

    async fn look(
        &self,
        known: &[Known<GatewayMachine>],
    ) -> Result<Vec<Option<Sign<GatewayReplicaProvisioningData>>>, ComputeError> {
        let known: Vec<Known<Machine>> = known
            .iter()
            .map(|one| known_gateway_machine(one, BackendType::Azure))
            .collect();
        let signs = Lifecycle::<Machine>::look(self, &known).await?;
        Ok(signs.into_iter().map(|sign| sign.map(gateway_sign)).collect())
    }

    async fn remove(&self, known: &Known<GatewayMachine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        Lifecycle::<Machine>::remove(self, &known_gateway_machine(known, BackendType::Azure), call).await
    }
}
