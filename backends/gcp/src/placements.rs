//! The life of a placement group: a policy of a region, which machines name. It has no costs, and no labels: its name says whose it is.

use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::Made;
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Placement, PlacementRequest, Removal, Step,
    placement_name,
};
use dstack_model::backends::BackendType;
use dstack_model::placement::PlacementGroupProvisioningData;
use serde_json::json;

use crate::Gcp;
use crate::client::{Policy, plain};
use crate::errors::known;
use crate::machines::ENDS_INTERVAL;

const POLICY: &str = "placement policy";

/// Types that cannot be placed close to each other ("Compact placement policies").
const WITHOUT: &[&str] = &["e2-"];

const MAKES_INTERVAL: Duration = Duration::from_secs(3);

#[async_trait]
impl Lifecycle<Placement> for Gcp {
    async fn ensure(
        &self,
        want: &PlacementRequest,
        call: &Call<'_>,
    ) -> Result<Step<PlacementGroupProvisioningData>, ComputeError> {
        let instance_type = &want.instance_type;
        if WITHOUT.iter().any(|start| instance_type.starts_with(start)) {
            return Err(ComputeError::Refused(format!(
                "Google places {instance_type} in no groups: take other instances for a cluster"
            )));
        }
        let (region, name) = (plain(&want.region)?, placement_name(&want.marks));
        let create = async || {
            let body = json!({
                "name": name,
                "groupPlacementPolicy": {"availabilityDomainCount": 1, "collocation": "COLLOCATED"},
            });
            let path = format!("regions/{region}/resourcePolicies");
            match self.client.insert(&path, None, &body).await {
                // The name is ours only.
                Err(error) if !error.is_conflict() => Err(error.compute_error()),
                _ => Ok(Made::now(name.clone(), call)),
            }
        };
        let find = async || {
            let found = self.policy(region, &name).await?;
            Ok(found.map(|found| Made::now(found.name, call)))
        };
        let made: Made = call.make(POLICY, LISTED_WITHIN, create, find).await?;
        let ready = PlacementGroupProvisioningData {
            backend: BackendType::Gcp,
            backend_data: None,
        };
        match self.policy(region, &name).await? {
            Some(policy) if policy.status == "READY" => Ok(Step::Ready(ready)),
            Some(policy) if policy.status == "INVALID" || policy.status == "DELETING" => Err(
                ComputeError::Broken(format!("the placement policy is {}", policy.status)),
            ),
            None if !made.is_new(call) => Err(ComputeError::Broken(format!(
                "Google does not have the placement policy {name} any more"
            ))),
            _ => Ok(Step::Underway {
                seen: None,
                doing: "the placement policy is made".to_owned(),
                again: MAKES_INTERVAL,
            }),
        }
    }

    async fn remove(&self, known: &Known<Placement>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = placement_name(&known.marks);
        let region = known.site.as_str();
        let made = known.place.as_ref().map(|_| Made::long_ago(name.clone()));
        let find = async || {
            let found = self.policy(region, &name).await?;
            Ok(found.map(|found| Made::now(found.name, call)))
        };
        let delete = async |made: Made| {
            let told = self.delete_policy(region, &made.id).await?;
            Ok(made.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake(POLICY, made, LISTED_WITHIN, find, delete).await
    }
}

impl Gcp {
    async fn policy(&self, region: &str, name: &str) -> Result<Option<Policy>, ComputeError> {
        let path = format!("regions/{}/resourcePolicies/{}", plain(region)?, plain(name)?);
        known(self.client.get(&path).await)
    }

    /// A policy is in use as long as Google has a machine of it.
    pub(crate) async fn delete_policy(&self, region: &str, name: &str) -> Result<Removal, ComputeError> {
        let path = format!("regions/{}/resourcePolicies/{}", plain(region)?, plain(name)?);
        match self.client.remove(&path).await {
            Err(ComputeError::InUse(_)) => Ok(Removal::Underway { again: ENDS_INTERVAL }),
            told => told,
        }
    }
}
