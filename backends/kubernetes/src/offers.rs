use std::collections::BTreeMap;
use std::sync::Arc;

use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{Disk, Gpu, InstanceAvailability, InstanceRuntime, InstanceType, Resources};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use dstack_units::accelerators::compute_capability;
use dstack_units::{AcceleratorVendor as Vendor, CpuArchitecture, Memory, Range};
use futures_util::future::join_all;

use crate::client::Cluster;
use crate::gpus;
use crate::objects::{Node, Pod};
use crate::quantity::{mib, parse, whole};
use crate::{Known, Kubernetes};

/// What the nodes of a cluster have, and what of it is free.
#[derive(Debug)]
pub(crate) struct Capacity {
    pub(crate) nodes: Vec<Node>,
    /// Sums of what pods ask for, by node and resource.
    taken: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Known {
    pub(crate) async fn capacity(&self) -> Result<Arc<Capacity>, ComputeError> {
        self.capacity.get(|| fetch(&self.cluster)).await
    }
}

async fn fetch(cluster: &Cluster) -> Result<Capacity, ComputeError> {
    let nodes = cluster.nodes().await?;
    let pods: Vec<Pod> = cluster.all_pods().await?;
    let mut taken: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for pod in pods {
        let Some(node) = pod.spec.node_name else {
            continue;
        };
        let of_node = taken.entry(node).or_default();
        for (resource, amount) in pod.spec.containers.iter().flat_map(|one| &one.resources.requests) {
            *of_node.entry(resource.clone()).or_default() += parse(amount).unwrap_or_default();
        }
    }
    Ok(Capacity { nodes, taken })
}

impl Kubernetes {
    /// An offer for each node that has what is asked for. A cluster that does not answer has none, unless none does.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let of_clusters = join_all(self.clusters.iter().map(Known::capacity)).await;
        let mut offers = Vec::new();
        let mut problem = None;
        for (known, capacity) in self.clusters.iter().zip(of_clusters) {
            let region = &known.cluster.access.region;
            match capacity {
                Ok(capacity) => offers.extend(offers_of(region, &capacity, requirements)),
                Err(error) => {
                    tracing::warn!(context = region, %error, "a cluster does not say what its nodes have");
                    problem = Some(error);
                }
            }
        }
        match problem {
            Some(error) if offers.is_empty() => Err(error),
            _ => Ok(offers),
        }
    }
}

fn offers_of(
    region: &str,
    capacity: &Capacity,
    requirements: &Requirements,
) -> Vec<InstanceOfferWithAvailability> {
    let region: Arc<str> = Arc::from(region);
    let offer = |node: &Node| {
        if !is_usable(node) {
            return None;
        }
        let nothing = BTreeMap::new();
        let taken = capacity.taken.get(&node.metadata.name).unwrap_or(&nothing);
        let share = |taken: &BTreeMap<String, f64>| {
            let cut = cut(resources(node, taken)?, requirements);
            fits(&cut, requirements).then_some(cut)
        };
        let (resources, availability) = match share(taken) {
            Some(resources) => (resources, InstanceAvailability::Available),
            None => (share(&nothing)?, InstanceAvailability::NotAvailable),
        };
        Some(InstanceOfferWithAvailability {
            backend: BackendType::Kubernetes,
            instance: Arc::new(InstanceType {
                name: node.metadata.name.clone(),
                resources,
            }),
            region: Arc::clone(&region),
            price: 0.0,
            backend_data: Arc::default(),
            availability,
            availability_zones: None,
            instance_runtime: InstanceRuntime::Runner,
            blocks: 1,
            total_blocks: 1,
            group_size: None,
        })
    };
    capacity.nodes.iter().filter_map(offer).collect()
}

/// Whether pods can get there: ready, not cordoned, and of its taints only those of GPUs keep pods away.
fn is_usable(node: &Node) -> bool {
    let is_ready = node
        .status
        .conditions
        .iter()
        .all(|one| one.kind != "Ready" || one.status == "True");
    let is_open =
        |taint: &crate::objects::Taint| taint.effect == "PreferNoSchedule" || is_gpu_taint(&taint.key);
    is_ready && !node.spec.unschedulable && node.spec.taints.iter().all(is_open)
}

/// Whether only pods that tolerate it get to the node.
pub(crate) fn is_guarded(node: &Node) -> bool {
    node.spec
        .taints
        .iter()
        .any(|taint| taint.effect != "PreferNoSchedule")
}

pub(crate) fn is_gpu_taint(key: &str) -> bool {
    [Vendor::Nvidia, Vendor::Amd]
        .into_iter()
        .any(|vendor| gpus::resource(vendor) == Some(key))
}

/// What a node has besides what is taken. GPUs of an unknown model are left out.
fn resources(node: &Node, taken: &BTreeMap<String, f64>) -> Option<Resources> {
    let free = |resource: &str| {
        let all = node.status.allocatable.get(resource).and_then(|text| parse(text));
        let taken = taken.get(resource).copied().unwrap_or_default();
        all.map(|all| (all - taken).max(0.0))
    };
    let has = |vendor: &Vendor| {
        let resource = gpus::resource(*vendor)?;
        let all = node.status.allocatable.get(resource).and_then(|text| parse(text));
        all.filter(|count| *count >= 1.0).map(|_| (*vendor, resource))
    };
    let mut found: Vec<Gpu> = Vec::new();
    if let Some((vendor, resource)) = [Vendor::Nvidia, Vendor::Amd].iter().find_map(has) {
        match gpus::model(node, vendor) {
            Some(gpu) => {
                let count = usize::try_from(whole(free(resource)?)).unwrap_or_default();
                found = vec![gpu; count];
            }
            None => tracing::warn!(
                node = node.metadata.name,
                "the GPUs of a node are of an unknown model"
            ),
        }
    }
    let architecture = match node.status.node_info.architecture.as_str() {
        "amd64" => Some(CpuArchitecture::X86),
        "arm64" => Some(CpuArchitecture::Arm),
        _ => None,
    };
    Some(Resources {
        cpus: whole(free("cpu")?),
        memory_mib: mib(free("memory")?),
        gpus: found,
        spot: false,
        disk: Disk {
            size_mib: mib(free("ephemeral-storage").unwrap_or_default()),
        },
        cpu_arch: architecture,
        description: String::new(),
    })
}

/// What a pod gets of a node on which it is.
pub(crate) fn share(node: &Node, requirements: &Requirements) -> Option<Resources> {
    let all = resources(node, &BTreeMap::new())?;
    Some(cut(all, requirements))
}

/// What a pod gets of it: no more than the lower bounds of what is asked for.
fn cut(mut resources: Resources, requirements: &Requirements) -> Resources {
    let wanted = &requirements.resources;
    resources.cpus = resources.cpus.min(wanted.cpu.count.min.unwrap_or_default());
    resources.memory_mib = resources.memory_mib.min(lower_mib(Some(wanted.memory)));
    let disk = lower_mib(wanted.disk.map(|disk| disk.size));
    resources.disk.size_mib = resources.disk.size_mib.min(disk);
    resources.gpus.truncate(gpu_count(requirements));
    resources
}

/// GPUs that a pod gets.
pub(crate) fn gpu_count(requirements: &Requirements) -> usize {
    let count = requirements.resources.gpu.as_ref().and_then(|gpu| gpu.count.min);
    usize::try_from(count.unwrap_or_default()).unwrap_or_default()
}

/// The lower bound of a size in whole MiB.
pub(crate) fn lower_mib(range: Option<Range<Memory>>) -> i64 {
    range
        .and_then(|range| range.min)
        .map_or(0, |size| whole(size.mib()))
}

#[allow(clippy::cast_precision_loss)] // sizes of nodes
fn fits(resources: &Resources, requirements: &Requirements) -> bool {
    let wanted = &requirements.resources;
    let at_least = |range: Option<Range<Memory>>, mib: i64| mib >= lower_mib(range);
    let is_of_arch = match wanted.cpu.arch {
        None => true,
        Some(arch) => resources.cpu_arch == Some(arch),
    };
    let gpus_fit = wanted.gpu.as_ref().is_none_or(|spec| {
        let count = resources.gpus.len();
        if count < gpu_count(requirements) {
            return false;
        }
        let Some(gpu) = resources.gpus.first() else {
            return true;
        };
        let named = |names: &Vec<String>| names.iter().any(|name| name.eq_ignore_ascii_case(&gpu.name));
        let within = |range: Option<Range<Memory>>, mib: i64| {
            range.is_none_or(|range| range.contains(Memory::from_mib(mib as f64)))
        };
        let total = gpu
            .memory_mib
            .saturating_mul(i64::try_from(count).unwrap_or(i64::MAX));
        spec.vendor.is_none_or(|vendor| gpu.vendor == Some(vendor))
            && spec.name.as_ref().is_none_or(named)
            && within(spec.memory, gpu.memory_mib)
            && within(spec.total_memory, total)
            && spec.compute_capability.is_none_or(|least| {
                let has =
                    compute_capability(&gpu.name).map(|(major, minor)| (i64::from(major), i64::from(minor)));
                has.is_some_and(|has| has >= (least.0, least.1))
            })
    });
    resources.cpus >= wanted.cpu.count.min.unwrap_or_default()
        && at_least(Some(wanted.memory), resources.memory_mib)
        && at_least(wanted.disk.map(|disk| disk.size), resources.disk.size_mib)
        && requirements.spot != Some(true)
        && requirements.reservation.is_none()
        && is_of_arch
        && gpus_fit
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // literals
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::{Value, json};

    use super::*;

    fn node(more: Value) -> Node {
        let mut value = json!({
            "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "15900m", "memory": "64Gi", "ephemeral-storage": "200Gi", "nvidia.com/gpu": "8"},
                "nodeInfo": {"architecture": "amd64"}, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        for (key, field) in more.as_object().unwrap() {
            value[key] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn offers(node: Node, taken: &[(&str, f64)], resources: Value) -> Vec<InstanceOfferWithAvailability> {
        let taken = taken
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), *amount))
            .collect();
        let capacity = Capacity {
            nodes: vec![node],
            taken: [("n".to_owned(), taken)].into(),
        };
        let requirements = decode_strict(&json!({"resources": resources})).unwrap();
        offers_of("c", &capacity, &requirements)
    }

    #[test]
    fn a_pod_gets_what_is_asked_for_at_least() {
        let wanted = json!({"cpu": "2..4", "memory": "8GB..", "disk": "10GB..", "gpu": "H100:2"});
        let found = offers(node(json!({})), &[("nvidia.com/gpu", 5.0)], wanted.clone());
        let resources = &found[0].instance.resources;
        assert_eq!(
            (resources.cpus, resources.memory_mib, resources.gpus.len()),
            (2, 8192, 2)
        );
        assert_eq!(found[0].availability, InstanceAvailability::Available);
        let full = offers(node(json!({})), &[("nvidia.com/gpu", 7.0)], wanted);
        assert_eq!(full[0].availability, InstanceAvailability::NotAvailable);
        for refused in [
            json!({"gpu": "A100:1"}),
            json!({"gpu": "H100:9"}),
            json!({"cpu": "16.."}),
            json!({"cpu": "arm:2"}),
            json!({"memory": "65GB.."}),
        ] {
            assert_eq!(offers(node(json!({})), &[], refused.clone()), [], "{refused}");
        }
    }

    #[test]
    fn nodes_that_take_no_pods_are_not_offered() {
        let wanted = json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB.."});
        for spec in [
            json!({"unschedulable": true}),
            json!({"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}),
        ] {
            assert_eq!(offers(node(json!({"spec": spec})), &[], wanted.clone()), []);
        }
        let soft = json!({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]});
        assert_eq!(offers(node(json!({"spec": soft})), &[], wanted).len(), 1);
    }
}
