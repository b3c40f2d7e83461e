//! The life of a group: a cluster, whose pods come and go with it.

use std::collections::HashMap;

use async_trait::async_trait;
use dstack_backend::Made;
use dstack_compute::{
    Call, ComputeError, Group, GroupRequest, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step,
};
use dstack_model::compute_groups::ComputeGroupProvisioningData;

use crate::Runpod;
use crate::client::Pod;
use crate::errors::not_made;
use crate::pieces::{ENDS_INTERVAL, NAME_LENGTH, STARTS_INTERVAL, end_of, place_of, sign_of, stage_of, told};
use crate::requests::cluster_request;

const CLUSTER: &str = "cluster";

#[async_trait]
impl Lifecycle<Group> for Runpod {
    async fn ensure(
        &self,
        want: &GroupRequest,
        call: &Call<'_>,
    ) -> Result<Step<ComputeGroupProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        let body = cluster_request(want, &name)?;
        let create = async || {
            let made = self.client.create_cluster(&body).await;
            Ok(Made::now(made.map_err(|error| not_made(&error))?, call))
        };
        let find = || self.find_cluster(&name, call);
        let made: Made = call.make(CLUSTER, LISTED_WITHIN, create, find).await?;
        let pods = told(self.client.cluster_pods(&made.id).await)?;
        let pods = match &pods {
            Some(pods) if pods.len() == want.workloads.len() => pods,
            _ if made.is_new(call) => return Ok(waiting("the pods of the cluster are listed")),
            Some(pods) => {
                let (are, shall) = (pods.len(), want.workloads.len());
                let text = format!("the Runpod cluster has {are} pods instead of {shall}");
                return Err(ComputeError::Broken(text));
            }
            None => {
                let text = "Runpod does not have the cluster any more";
                return Err(ComputeError::Broken(text.to_owned()));
            }
        };
        if let Some(end) = pods.iter().find_map(end_of) {
            return Err(ComputeError::Broken(format!("{end}; it is a node of a cluster")));
        }
        let members: Option<Vec<_>> = in_order(pods)
            .into_iter()
            .map(|pod| place_of(pod, &want.offer))
            .collect();
        let Some(members) = members else {
            let slowest = pods.iter().find(|pod| place_of(pod, &want.offer).is_none());
            return Ok(waiting(slowest.map_or("the pods start", stage_of)));
        };
        Ok(Step::Ready(ComputeGroupProvisioningData {
            compute_group_id: made.id,
            compute_group_name: name,
            backend: want.offer.backend,
            base_backend: None,
            region: want.offer.region.to_string(),
            job_provisioning_datas: members,
            backend_data: None,
        }))
    }

    async fn look(
        &self,
        known: &[Known<Group>],
    ) -> Result<Vec<Option<Sign<ComputeGroupProvisioningData>>>, ComputeError> {
        let listed = told(self.client.all_pods().await)?;
        let listed: HashMap<String, Pod> = listed.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let members = &place.job_provisioning_datas;
            if members
                .iter()
                .all(|member| listed.contains_key(&member.instance_id))
            {
                signs.push(Some(sign_of_group(place, &listed)));
                continue;
            }
            // New pods may not be listed yet.
            let pods = told(self.client.cluster_pods(&place.compute_group_id).await);
            signs.push(match pods {
                Ok(Some(pods)) => {
                    let pods = pods.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
                    Some(sign_of_group(place, &pods))
                }
                Ok(None) => Some(Sign::Lost("Runpod does not have the cluster any more".to_owned())),
                // Of the others it is told how they are.
                Err(error) => {
                    tracing::debug!(cluster.id = place.compute_group_id, %error, "Runpod does not tell how a cluster is");
                    None
                }
            });
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Group>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let cluster = place.map(|place| Made::long_ago(place.compute_group_id.clone()));
        let find = || self.find_cluster(&name, call);
        let delete = async |cluster: Made| {
            Ok(cluster.removal(call, self.delete_cluster(&cluster.id).await?, ENDS_INTERVAL))
        };
        call.unmake(CLUSTER, cluster, LISTED_WITHIN, find, delete).await
    }
}

impl Runpod {
    async fn find_cluster(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let clusters = told(self.client.clusters().await)?;
        let found = clusters.into_iter().find(|cluster| cluster.name == name);
        Ok(found.map(|cluster| Made::now(cluster.id, call)))
    }

    pub(crate) async fn delete_cluster(&self, id: &str) -> Result<Removal, ComputeError> {
        if !told(self.client.delete_cluster(id).await)? {
            return Ok(Removal::Gone);
        }
        Ok(match told(self.client.cluster(id).await)? {
            Some(_) => Removal::Underway { again: ENDS_INTERVAL },
            None => Removal::Gone,
        })
    }
}

fn waiting(doing: &str) -> Step<ComputeGroupProvisioningData> {
    Step::Underway {
        seen: None,
        doing: doing.to_owned(),
        again: STARTS_INTERVAL,
    }
}

/// By the numbers of their nodes.
fn in_order(pods: &[Pod]) -> Vec<&Pod> {
    let mut pods: Vec<&Pod> = pods.iter().collect();
    let rank = |pod: &Pod| pod.cluster.as_ref().and_then(|cluster| cluster.rank);
    // Pods whose number is not known come last.
    pods.sort_by_key(|pod| (rank(pod).unwrap_or(i64::MAX), pod.id.clone()));
    pods
}

/// A group is lost with any of its pods: they cannot be replaced one by one.
fn sign_of_group(
    place: &ComputeGroupProvisioningData,
    pods: &HashMap<String, Pod>,
) -> Sign<ComputeGroupProvisioningData> {
    let mut moved = place.clone();
    let mut has_moved = false;
    for member in &mut moved.job_provisioning_datas {
        let Some(pod) = pods.get(&member.instance_id) else {
            return Sign::Lost("Runpod does not have a pod of the cluster any more".to_owned());
        };
        match sign_of(member, pod) {
            Sign::Lost(why) => return Sign::Lost(format!("{why}; it is a node of a cluster")),
            Sign::Moved(to) => {
                *member = to;
                has_moved = true;
            }
            Sign::Well | Sign::Ending { .. } => {}
        }
    }
    match has_moved {
        true => Sign::Moved(moved),
        false => Sign::Well,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pieces::tests::pod;

    #[test]
    fn pods_come_in_the_order_of_their_nodes() {
        let member =
            |id: &str, rank: serde_json::Value| pod(&json!({"id": id, "cluster": {"id": "c", "rank": rank}}));
        let pods = [
            member("d", json!(null)),
            member("b", json!(1)),
            member("c", json!(0)),
            member("a", json!(null)),
        ];
        let ids: Vec<&str> = in_order(&pods).iter().map(|pod| pod.id.as_str()).collect();
        assert_eq!(ids, ["c", "b", "a", "d"]);
    }
}
