//! Machines of gateways: instances as those for jobs, of another image and security group.

use async_trait::async_trait;
use dstack_backend::{gateway_machine, gateway_sign, gateway_step, known_gateway_machine};
use dstack_compute::{
    Call, ComputeError, GatewayMachine, GatewayRequest, Known, Lifecycle, Machine, Removal, Sign, Step,
};
use dstack_model::backends::BackendType;
use dstack_model::gateways::GatewayReplicaProvisioningData;

use crate::machines::Purpose;
use crate::{Aws, load_balancers};

/// What a gateway runs on, where nothing else is asked for.
const INSTANCE_TYPE: &str = "t3.micro";

const DISK_GIB: i64 = 10;

#[async_trait]
impl Lifecycle<GatewayMachine> for Aws {
    async fn ensure(
        &self,
        want: &GatewayRequest,
        call: &Call<'_>,
    ) -> Result<Step<GatewayReplicaProvisioningData>, ComputeError> {
        let mut machine = gateway_machine(want, BackendType::Aws, INSTANCE_TYPE, DISK_GIB);
        if let Some(balancer) = &want.load_balancer {
            machine.offer.availability_zones = load_balancers::zones(balancer)?;
        }
        let is_public = want.is_public;
        let step = self.ensure_instance(&machine, Purpose::Gateway { is_public }, call);
        Ok(gateway_step(step.await?))
    }

    async fn look(
        &self,
        known: &[Known<GatewayMachine>],
    ) -> Result<Vec<Option<Sign<GatewayReplicaProvisioningData>>>, ComputeError> {
        let known: Vec<Known<Machine>> = known
            .iter()
            .map(|one| known_gateway_machine(one, BackendType::Aws))
            .collect();
        let signs = self.look_at_instances(&known).await?;
        Ok(signs.into_iter().map(|sign| sign.map(gateway_sign)).collect())
    }

    async fn remove(&self, known: &Known<GatewayMachine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        Lifecycle::<Machine>::remove(self, &known_gateway_machine(known, BackendType::Aws), call).await
    }
}
