//! Machines for gateways of the simulated cloud.

use std::collections::HashMap;

use async_trait::async_trait;
use dstack_compute::{
    Call, ComputeError, GatewayMachine, GatewayRequest, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step,
};
use dstack_model::gateways::GatewayReplicaProvisioningData;
use dstack_units::GatewayReplicaId;
use serde_json::Value;
use tokio::time::Instant;

use super::{Clouds, State};

/// A machine for a gateway that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAtCloud {
    /// Whose it is.
    pub replica: GatewayReplicaId,
    /// Its address.
    pub address: String,
    /// When it is listed.
    pub(super) listed_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Gateways {
    pub(super) machines: Vec<GatewayAtCloud>,
    /// Machines ever made, by replica.
    made: HashMap<GatewayReplicaId, usize>,
    /// The number of the next address.
    next: usize,
    is_full: bool,
}

impl Clouds {
    /// Machines for gateways that exist.
    pub fn gateway_machines(&self) -> Vec<GatewayAtCloud> {
        self.lock().gateways.machines.clone()
    }

    /// The most machines that were ever made for one replica.
    pub fn most_gateway_machines_made(&self) -> usize {
        self.lock().gateways.made.values().copied().max().unwrap_or(0)
    }

    /// No machine for a gateway is to be had, from now on or no longer.
    pub fn full_of_gateways(&self, is_full: bool) {
        self.change(|state| state.gateways.is_full = is_full);
    }

    /// All machines for gateways break, and are gone.
    pub fn lose_gateways(&self) {
        self.change(|state| state.gateways.machines.clear());
    }

    /// The machine at an address is at another one now.
    pub fn move_gateway(&self, from: &str, to: &str) {
        self.change(|state| {
            let mut machines = state.gateways.machines.iter_mut();
            if let Some(machine) = machines.find(|machine| machine.address == from) {
                to.clone_into(&mut machine.address);
            }
        });
    }

    /// Makes another machine at each call: nothing but its notes keeps the engine from having two.
    async fn make_gateway(&self, replica: GatewayReplicaId) -> Result<String, ComputeError> {
        self.order(move |state: &mut State| {
            if state.gateways.is_full {
                return Err(ComputeError::NoCapacity("no machine left".to_owned()));
            }
            let listed_at = Instant::now() + state.delays.unlisted;
            let gateways = &mut state.gateways;
            gateways.next += 1;
            let address = format!("10.9.0.{}", gateways.next);
            gateways.machines.push(GatewayAtCloud {
                replica,
                address: address.clone(),
                listed_at,
            });
            *gateways.made.entry(replica).or_default() += 1;
            Ok(address)
        })
        .await
    }

    async fn find_gateway(&self, replica: GatewayReplicaId) -> Result<Option<String>, ComputeError> {
        self.ask(move |state: &mut State| {
            let is_it =
                |machine: &&GatewayAtCloud| machine.replica == replica && machine.listed_at <= Instant::now();
            let found = state.gateways.machines.iter().find(is_it);
            Ok(found.map(|machine| machine.address.clone()))
        })
        .await
    }

    pub(super) async fn end_gateway(&self, replica: GatewayReplicaId) -> Result<Removal, ComputeError> {
        self.order(move |state: &mut State| {
            state.balancers.machine_ends(&replica.to_string());
            state
                .gateways
                .machines
                .retain(|machine| machine.replica != replica);
            Ok(Removal::Gone)
        })
        .await
    }
}

fn place(replica: GatewayReplicaId, region: &str, address: String) -> GatewayReplicaProvisioningData {
    GatewayReplicaProvisioningData {
        instance_id: replica.to_string(),
        ip_address: address,
        region: region.to_owned(),
        availability_zone: None,
        backend_data: None,
    }
}

#[async_trait]
impl Lifecycle<GatewayMachine> for Clouds {
    async fn ensure(
        &self,
        want: &GatewayRequest,
        call: &Call<'_>,
    ) -> Result<Step<GatewayReplicaProvisioningData>, ComputeError> {
        let replica = GatewayReplicaId::from(want.marks.key);
        let (make, find) = (|| self.make_gateway(replica), || self.find_gateway(replica));
        let address = call.make("gateway", LISTED_WITHIN, make, find).await?;
        Ok(Step::Ready(place(replica, &want.region, address)))
    }

    async fn look(
        &self,
        known: &[Known<GatewayMachine>],
    ) -> Result<Vec<Option<Sign<GatewayReplicaProvisioningData>>>, ComputeError> {
        let known = known.to_vec();
        self.ask(move |state: &mut State| {
            let sign = |known: &Known<GatewayMachine>| {
                let replica = GatewayReplicaId::from(known.marks.key);
                let mut machines = state.gateways.machines.iter();
                let Some(machine) = machines.find(|machine| machine.replica == replica) else {
                    return Some(Sign::Lost("the machine is gone".to_owned()));
                };
                let was = known.place.as_ref().map(|place| &place.ip_address);
                Some(match was == Some(&machine.address) {
                    true => Sign::Well,
                    false => Sign::Moved(place(replica, &known.site, machine.address.clone())),
                })
            };
            Ok(known.iter().map(sign).collect())
        })
        .await
    }

    async fn remove(&self, known: &Known<GatewayMachine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let replica = GatewayReplicaId::from(known.marks.key);
        let find = async || Ok(self.find_gateway(replica).await?.map(|_| Value::Null));
        let made = known.place.as_ref().map(|_| Value::Null);
        call.unmake("gateway", made, LISTED_WITHIN, find, |_| {
            self.end_gateway(replica)
        })
        .await
    }
}
