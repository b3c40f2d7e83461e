//! The life of a GPU cluster, which is what Nebius has for placement groups: machines in one reach each other by InfiniBand. Machines
//! without InfiniBand need none.

use std::collections::BTreeSet;

use async_trait::async_trait;
use dstack_backend::not_asked;
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Placement, PlacementRequest, Removal, Step,
    placement_name,
};
use dstack_model::backends::BackendType;
use dstack_model::placement::PlacementGroupProvisioningData;
use serde_json::{Value, json};

use crate::client::{Begun, Kind};
use crate::labels::labels;
use crate::machines::ENDS_INTERVAL;
use crate::messages::{Cluster, ClusterSpec};
use crate::offers::known_fabrics;
use crate::{Nebius, listed};

const CLUSTER: &str = "GPU cluster";

#[async_trait]
impl Lifecycle<Placement> for Nebius {
    async fn ensure(
        &self,
        want: &PlacementRequest,
        call: &Call<'_>,
    ) -> Result<Step<PlacementGroupProvisioningData>, ComputeError> {
        let is_made = call.made::<Begun>(CLUSTER)?.is_some();
        let fabrics = match is_made {
            true => BTreeSet::new(),
            false => self.fabrics(&want.instance_type, &want.region)?,
        };
        if fabrics.is_empty() && !is_made {
            return Ok(Step::Ready(data(&Value::Null)));
        }
        let name = placement_name(&want.marks);
        if !is_made {
            self.client.prepare().await.map_err(not_asked)?;
        }
        let project = self.note_project(&want.region, call).await?;
        let create = async || {
            let at = self.kind.env.random.below(fabrics.len() as u64);
            let fabric = fabrics.iter().nth(usize::try_from(at).unwrap_or(0));
            let spec = ClusterSpec {
                infiniband_fabric: fabric.cloned().unwrap_or_default(),
            };
            let labels = labels(&want.marks, &want.owner, self.config.tags.as_ref());
            self.client
                .create(Kind::Cluster, &project, &name, labels, &spec, call)
                .await
        };
        let find = || self.find_named(Kind::Cluster, &want.region, &name, &want.marks, call);
        let begun: Begun = call.make(CLUSTER, LISTED_WITHIN, create, find).await?;
        self.is_over(Kind::Cluster, &begun).await?;
        // By name, by which its machines look for it.
        let cluster: Option<Cluster> = self.client.named(Kind::Cluster, &project, &name).await?;
        match cluster.and_then(|cluster| cluster.spec) {
            Some(spec) => {
                let cluster = json!({"id": begun.made.id, "fabric": spec.infiniband_fabric});
                Ok(Step::Ready(data(&cluster)))
            }
            None if begun.made.is_new(call) => Ok(Step::Underway {
                seen: None,
                doing: "the GPU cluster is listed".to_owned(),
                again: ENDS_INTERVAL,
            }),
            None => Err(ComputeError::Broken(
                "Nebius does not have the GPU cluster".to_owned(),
            )),
        }
    }

    async fn remove(&self, known: &Known<Placement>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = placement_name(&known.marks);
        let delete = async |begun: Begun| {
            let told = self.delete(Kind::Cluster, &begun.made.id).await?;
            Ok(begun.made.removal(call, told, ENDS_INTERVAL))
        };
        let find = || self.find_named(Kind::Cluster, &known.site, &name, &known.marks, call);
        let noted = known.place.as_ref().and_then(cluster_of).map(Begun::long_ago);
        call.unmake(CLUSTER, noted, LISTED_WITHIN, find, delete).await
    }
}

impl Nebius {
    /// In which a group is whose first machine is of this type; none: it has no InfiniBand, and needs no cluster.
    ///
    /// # Errors
    /// It has InfiniBand, and in none of the fabrics of the configuration.
    pub(crate) fn fabrics(
        &self,
        instance_type: &str,
        region: &str,
    ) -> Result<BTreeSet<String>, ComputeError> {
        let fabrics = known_fabrics(&self.kind.env.catalog, Some((instance_type, region)));
        let configured = listed(self.config.fabrics.as_ref());
        if configured.is_empty() {
            return Ok(fabrics);
        }
        let (used, others): (BTreeSet<String>, BTreeSet<String>) = fabrics
            .into_iter()
            .partition(|fabric| configured.contains(fabric));
        match used.is_empty() && !others.is_empty() {
            true => Err(ComputeError::Refused(format!(
                "{instance_type} is in the InfiniBand fabrics {} of {region}, and `fabrics` has none of them",
                others.into_iter().collect::<Vec<_>>().join(", ")
            ))),
            false => Ok(used),
        }
    }
}

/// In the form of dstack 0.22.5.
fn data(cluster: &Value) -> PlacementGroupProvisioningData {
    PlacementGroupProvisioningData {
        backend: BackendType::Nebius,
        backend_data: Some(json!({"cluster": cluster}).to_string()),
    }
}

fn cluster_of(place: &PlacementGroupProvisioningData) -> Option<String> {
    let data: Value = serde_json::from_str(place.backend_data.as_deref()?).ok()?;
    data.get("cluster")?.get("id")?.as_str().map(str::to_owned)
}
