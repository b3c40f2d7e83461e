//! What carries our names, and how it is removed.

use std::collections::HashMap;

use dstack_compute::{ComputeError, Owned, OwnedKind, OwnedMark, Removal};
use dstack_units::Time;

use crate::Runpod;
use crate::client::{Cluster, NetworkVolume, Pod, PodStatus, RegistryRecord};
use crate::pieces::told;

/// A pod of a cluster: it goes with the cluster only.
const MEMBER: OwnedKind = OwnedKind::Piece("pod of a cluster");

const LOGIN: OwnedKind = OwnedKind::Piece("registry login");

impl Runpod {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let clusters = told(self.client.clusters().await)?;
        let pods = told(self.client.all_pods().await)?;
        let volumes = told(self.client.network_volumes().await)?;
        let records = told(self.client.registry_records().await)?;
        Ok(owned(clusters, pods, volumes, records))
    }

    pub(crate) async fn remove_by_kind(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match &owned.kind {
            OwnedKind::Container => self.delete_pod(&owned.id).await,
            OwnedKind::Group => self.delete_cluster(&owned.id).await,
            OwnedKind::Volume => self.delete_volume(&owned.id).await,
            kind if *kind == LOGIN => self.delete_login(&owned.id).await,
            kind if *kind == MEMBER => {
                let pod = told(self.client.pod(&owned.id).await)?;
                match pod.and_then(|pod| pod.cluster) {
                    Some(cluster) => self.delete_cluster(&cluster.id).await,
                    None => Ok(Removal::Gone),
                }
            }
            _ => Err(ComputeError::Unsupported("removing this")),
        }
    }
}

fn owned(
    clusters: Vec<Cluster>,
    pods: Vec<Pod>,
    volumes: Vec<NetworkVolume>,
    records: Vec<RegistryRecord>,
) -> Vec<Owned> {
    let marks: HashMap<String, OwnedMark> = clusters
        .iter()
        .filter_map(|cluster| Some((cluster.id.clone(), OwnedMark::of_name(&cluster.name)?)))
        .collect();
    let pods = pods
        .into_iter()
        .filter(|pod| pod.status != PodStatus::Terminated)
        .filter_map(|pod| {
            // The vendor makes up the names of members.
            let of_cluster = pod.cluster.as_ref().and_then(|cluster| marks.get(&cluster.id));
            let mark = OwnedMark::of_name(&pod.name).or(of_cluster.copied())?;
            Some(Owned {
                kind: if pod.cluster.is_some() {
                    MEMBER
                } else {
                    OwnedKind::Container
                },
                id: pod.id,
                name: pod.name,
                mark,
                region: pod.data_center_id.unwrap_or_default(),
                price: pod.cost,
                made_at: pod.created_at,
            })
        });
    let clusters = clusters.into_iter().filter_map(|cluster| {
        let region = cluster.data_center_id.unwrap_or_default();
        named(
            OwnedKind::Group,
            cluster.id,
            cluster.name,
            region,
            cluster.created_at,
        )
    });
    let volumes = volumes.into_iter().filter_map(|volume| {
        named(
            OwnedKind::Volume,
            volume.id,
            volume.name,
            volume.data_center,
            None,
        )
    });
    let records = records
        .into_iter()
        .filter_map(|record| named(LOGIN, record.id, record.name, String::new(), None));
    clusters.chain(pods).chain(volumes).chain(records).collect()
}

/// `None`: the name is not one of ours.
fn named(kind: OwnedKind, id: String, name: String, region: String, made_at: Option<Time>) -> Option<Owned> {
    Some(Owned {
        kind,
        id,
        mark: OwnedMark::of_name(&name)?,
        name,
        region,
        price: None,
        made_at,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pieces::tests::pod;

    #[test]
    fn members_of_our_clusters_are_ours_whatever_their_names() {
        let ours = "dstack-train-7728950e-0123456789ab";
        let clusters =
            serde_json::from_value(json!([{"id": "c1", "name": ours}, {"id": "c2", "name": "theirs"}]));
        let pods = vec![
            pod(&json!({"id": "m1", "name": "bright-falcon", "cluster": {"id": "c1", "rank": 0}})),
            pod(&json!({"id": "m2", "name": "bright-falcon", "cluster": {"id": "c2", "rank": 0}})),
            // Its cluster is not listed.
            pod(&json!({"id": "m3", "name": ours, "cluster": {"id": "c3", "rank": 0}})),
            pod(&json!({"id": "p1", "name": ours})),
            pod(&json!({"id": "p2", "name": ours, "status": "TERMINATED"})),
            pod(&json!({"id": "p3", "name": "theirs"})),
        ];
        let records =
            serde_json::from_value(json!([{"id": "r1", "name": ours}, {"id": "r2", "name": "my own"}]));
        let found = owned(clusters.unwrap(), pods, Vec::new(), records.unwrap());
        let found: Vec<(&str, &OwnedKind)> = found
            .iter()
            .map(|owned| (owned.id.as_str(), &owned.kind))
            .collect();
        let expected = [
            ("c1", &OwnedKind::Group),
            ("m1", &MEMBER),
            ("m3", &MEMBER),
            ("p1", &OwnedKind::Container),
            ("r1", &LOGIN),
        ];
        assert_eq!(found, expected);
    }
}
