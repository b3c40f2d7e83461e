//! The life of an InfiniBand partition, which is what Crusoe has for placement groups: machines in one reach each other by InfiniBand.
//! Machines without InfiniBand need none.

use async_trait::async_trait;
use dstack_backend::{Made, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Placement, PlacementRequest, Removal, Step,
    placement_name,
};
use dstack_model::backends::BackendType;
use dstack_model::placement::PlacementGroupProvisioningData;
use serde_json::{Value, json};

use crate::client::{Network, Partition};
use crate::machines::{ENDS_INTERVAL, not_made};
use crate::{Crusoe, removed, told};

const PARTITION: &str = "InfiniBand partition";

/// Whether machines of this type have InfiniBand (`h100-80gb-sxm-ib.8x`), or Ethernet that is used alike.
pub(crate) fn has_fabric(instance_type: &str) -> bool {
    let family = instance_type.split('.').next().unwrap_or_default();
    family.ends_with("-ib") || family.ends_with("-roce")
}

#[async_trait]
impl Lifecycle<Placement> for Crusoe {
    async fn ensure(
        &self,
        want: &PlacementRequest,
        call: &Call<'_>,
    ) -> Result<Step<PlacementGroupProvisioningData>, ComputeError> {
        if !has_fabric(&want.instance_type) {
            return Ok(Step::Ready(data(&Value::Null, &Value::Null)));
        }
        let name = placement_name(&want.marks);
        let create = async || {
            let networks = told(self.client.networks().await).map_err(not_asked)?;
            let network = network_for(&networks, want).ok_or_else(|| {
                ComputeError::NoCapacity(format!(
                    "Crusoe has no InfiniBand network for {} in {}",
                    want.instance_type, want.region
                ))
            })?;
            let made = self.client.make_partition(&name, &network.id).await;
            let partition = made.map_err(|error| not_made(&error))?;
            Ok(Made::now(partition.id, call))
        };
        let find = || self.find_made_partition(&name, call);
        let made = call.make(PARTITION, LISTED_WITHIN, create, find).await?;
        // Machines look for it by its name.
        Ok(match self.partition(&name).await? {
            Some(partition) if partition.id == made.id => {
                Step::Ready(data(&partition.id.into(), &partition.ib_network_id.into()))
            }
            _ if made.is_new(call) => Step::Underway {
                seen: None,
                doing: "the partition is listed".to_owned(),
                again: ENDS_INTERVAL,
            },
            _ => {
                return Err(ComputeError::Broken(
                    "Crusoe does not have the partition".to_owned(),
                ));
            }
        })
    }

    async fn remove(&self, known: &Known<Placement>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = placement_name(&known.marks);
        let delete = async |made: Made| {
            let told = self.delete_partition(&made.id).await?;
            Ok(made.removal(call, told, ENDS_INTERVAL))
        };
        let find = || self.find_made_partition(&name, call);
        let noted = known.place.as_ref().and_then(partition_of).map(Made::long_ago);
        call.unmake(PARTITION, noted, LISTED_WITHIN, find, delete).await
    }
}

impl Crusoe {
    pub(crate) async fn partition(&self, name: &str) -> Result<Option<Partition>, ComputeError> {
        let all = told(self.client.partitions().await)?;
        Ok(all.into_iter().find(|partition| partition.name == name))
    }

    async fn find_made_partition(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let found = self.partition(name).await?;
        Ok(found.map(|partition| Made::now(partition.id, call)))
    }

    pub(crate) async fn delete_partition(&self, id: &str) -> Result<Removal, ComputeError> {
        // The description has no answer for partitions that are not there: the list tells.
        let all = told(self.client.partitions().await)?;
        if !all.iter().any(|partition| partition.id == id) {
            return Ok(Removal::Gone);
        }
        removed(self.client.delete_partition(id).await)?;
        Ok(Removal::Underway { again: ENDS_INTERVAL })
    }
}

/// Of the networks that such machines are in, the one with the most that are free.
fn network_for<'a>(networks: &'a [Network], want: &PlacementRequest) -> Option<&'a Network> {
    let free = |network: &Network| {
        let of_type = network.capacities.iter();
        let of_type = of_type.filter(|capacity| capacity.slice_type == want.instance_type);
        of_type.map(|capacity| capacity.quantity).max()
    };
    let here = networks.iter().filter(|network| network.location == want.region);
    here.filter(|network| free(network).is_some())
        .max_by_key(|network| free(network))
}

/// In the form of dstack 0.22.5.
fn data(partition: &Value, network: &Value) -> PlacementGroupProvisioningData {
    let data = json!({"ib_partition_id": partition, "ib_network_id": network});
    PlacementGroupProvisioningData {
        backend: BackendType::Crusoe,
        backend_data: Some(data.to_string()),
    }
}

fn partition_of(place: &PlacementGroupProvisioningData) -> Option<String> {
    let data: Value = serde_json::from_str(place.backend_data.as_deref()?).ok()?;
    data.get("ib_partition_id")?.as_str().map(str::to_owned)
}
