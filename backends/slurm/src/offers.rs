//! Nodes of clusters as offers.

use std::sync::Arc;

use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{Disk, InstanceAvailability, InstanceRuntime, InstanceType, Resources};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::cluster::{Cluster, Discovered};
use crate::nodes::Node;
use crate::partitions::Partitions;
use crate::share::{least_gpus, share};
use crate::{MAX_CLUSTERS_AT_ONCE, Slurm};

impl Slurm {
    /// What all clusters have. One that does not answer hides nothing of the others.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let of_cluster = |cluster: &Arc<Cluster>| {
            let cluster = Arc::clone(cluster);
            async move {
                let discovered = cluster.discovered().await?;
                Ok(offers(
                    &cluster.name,
                    &cluster.partitions,
                    &discovered,
                    requirements,
                ))
            }
        };
        let asked = stream::iter(self.clusters.iter().map(of_cluster)).buffered(MAX_CLUSTERS_AT_ONCE);
        let answers: Vec<Result<Vec<_>, ComputeError>> = asked.collect().await;
        let mut found = Vec::new();
        let mut last_error = None;
        let mut is_any_there = false;
        for answer in answers {
            match answer {
                Ok(offers) => {
                    is_any_there = true;
                    found.extend(offers);
                }
                Err(error) => {
                    tracing::warn!(error = %error, "a Slurm cluster does not tell its nodes");
                    last_error = Some(error);
                }
            }
        }
        match last_error {
            Some(error) if !is_any_there => Err(error),
            _ => Ok(found),
        }
    }
}

/// One offer for each node that has what is asked for, with the share that a job would get.
fn offers(
    cluster: &str,
    partitions: &Partitions,
    discovered: &Discovered,
    requirements: &Requirements,
) -> Vec<InstanceOfferWithAvailability> {
    // What Slurm has none of.
    let asks_for_other = requirements.spot == Some(true)
        || requirements.reservation.is_some()
        || requirements.max_price.is_some_and(|price| price < 0.0);
    if asks_for_other {
        return Vec::new();
    }
    let allowed = allowed_partitions(partitions, &discovered.partitions, requirements);
    let region: Arc<str> = Arc::from(cluster);
    let wanted_arch = requirements.resources.cpu.arch;
    let offer = |node: &Node| {
        let zones: Vec<String> = node
            .partitions
            .iter()
            .filter(|zone| allowed.contains(zone))
            .cloned()
            .collect();
        let is_other = wanted_arch.is_some_and(|arch| node.arch.is_some_and(|has| has != arch));
        if zones.is_empty() || is_other {
            return None;
        }
        let instance = InstanceType {
            name: node.name.clone(),
            resources: share(&resources(node, partitions), requirements)?,
        };
        let offer = InstanceOffer {
            backend: BackendType::Slurm,
            instance: Arc::new(instance),
            region: Arc::clone(&region),
            price: 0.0,
            backend_data: Arc::default(),
        };
        // Whether a job would wait there, only the queue knows.
        let availability = match node.is_up {
            true => InstanceAvailability::Unknown,
            false => InstanceAvailability::NotAvailable,
        };
        let offer = offer.with_availability(availability, InstanceRuntime::Runner);
        Some(InstanceOfferWithAvailability {
            availability_zones: Some(zones),
            ..offer
        })
    };
    discovered.nodes.iter().filter_map(offer).collect()
}

/// Partitions that take a job with these requirements, of those that there are.
pub(crate) fn allowed_partitions(
    partitions: &Partitions,
    discovered: &[String],
    requirements: &Requirements,
) -> Vec<String> {
    match &requirements.resources.gpu {
        Some(spec) if least_gpus(requirements) > 0 => partitions.for_gpus(discovered, spec),
        _ => partitions.for_cpus(discovered),
    }
}

/// All that a node has.
fn resources(node: &Node, partitions: &Partitions) -> Resources {
    let gpus = match partitions.gpu_of(&node.partitions) {
        Some(gpu) => vec![gpu.clone(); node.gpus],
        None => Vec::new(),
    };
    Resources {
        cpus: node.cpus,
        memory_mib: node.memory_mib,
        gpus,
        spot: false,
        disk: Disk { size_mib: 0 },
        cpu_arch: node.arch,
        description: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use dstack_compute::config::BackendConfig;
    use dstack_model::decode::decode_strict;
    use serde_json::{Value, json};

    use super::*;
    use crate::nodes::read_nodes;

    fn found(requirements: &Value) -> Vec<(String, Vec<String>, usize, InstanceAvailability)> {
        let node = |name: &str, partitions: &str, rest: &str| {
            format!("NodeName={name} Arch=x86_64 CPUTot=16 RealMemory=65536 Partitions={partitions} {rest}\n")
        };
        let text = node("c1", "batch,debug", "State=IDLE")
            + &node("c2", "batch", "State=DOWN*")
            + &node("g1", "batch,a100", "Gres=gpu:4 State=MIXED")
            + &node("g2", "h100,a100", "Gres=gpu:4 State=IDLE");
        let discovered = Discovered {
            nodes: read_nodes(&text),
            partitions: ["batch", "debug", "a100", "h100"].map(str::to_owned).to_vec(),
        };
        let config = json!({"type": "slurm", "clusters": [{
            "name": "c", "hostname": "h", "user": "u", "private_key": {"content": "k"},
            "gpu_partitions": [{"gpu": "A100:80GB", "partitions": ["a100"]}, {"gpu": "H100", "partitions": ["h100"]}],
        }]});
        let Ok(BackendConfig::Slurm(config)) = BackendConfig::read(&config) else {
            panic!("it is of Slurm");
        };
        let partitions = Partitions::read(&config.clusters[0]).unwrap();
        let requirements = decode_strict(requirements).unwrap();
        offers("c", &partitions, &discovered, &requirements)
            .into_iter()
            .map(|offer| {
                assert_eq!((&*offer.region, offer.price), ("c", 0.0));
                let gpus = offer.instance.resources.gpus.len();
                (
                    offer.instance.name.clone(),
                    offer.availability_zones.unwrap(),
                    gpus,
                    offer.availability,
                )
            })
            .collect()
    }

    fn zones(zones: &[&str]) -> Vec<String> {
        zones.iter().map(|zone| (*zone).to_owned()).collect()
    }

    #[test]
    fn nodes_are_offered_in_the_partitions_that_take_the_job() {
        use InstanceAvailability::{NotAvailable, Unknown};
        assert_eq!(
            found(&json!({"resources": {"cpu": "1.."}})),
            [
                ("c1".to_owned(), zones(&["batch", "debug"]), 0, Unknown),
                ("c2".to_owned(), zones(&["batch"]), 0, NotAvailable),
                ("g1".to_owned(), zones(&["batch"]), 0, Unknown),
            ]
        );
        // A node of two models has none.
        assert_eq!(
            found(&json!({"resources": {"cpu": "1..", "gpu": "A100:2"}})),
            [("g1".to_owned(), zones(&["a100"]), 2, Unknown)]
        );
        for none in [
            json!({"resources": {"cpu": "17.."}}),
            json!({"resources": {"cpu": "1..", "gpu": "A100:5"}}),
            json!({"resources": {"cpu": "arm:1.."}}),
            json!({"resources": {"cpu": "1.."}, "spot": true}),
            json!({"resources": {"cpu": "1.."}, "reservation": "r"}),
        ] {
            assert_eq!(found(&none), [], "{none}");
        }
    }
}
