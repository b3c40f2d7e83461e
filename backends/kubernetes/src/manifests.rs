//! What is made: objects of core/v1, as <https://kubernetes.io/docs/reference/kubernetes-api/> has them. No I/O.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_compute::{CONTAINER_SSH_PORT, ComputeError, ContainerRequest, RegistryLogin, Workload};
use dstack_model::instances::Gpu;
use dstack_model::runs::Requirements;
use dstack_units::AcceleratorVendor as Vendor;
use serde_json::{Map, Value, json};

use crate::gpus;
use crate::labels::{INSTANCE, Labels, SECRET_SUFFIX};
use crate::objects::Node;
use crate::offers::{gpu_count, lower_mib};
use crate::places::PlaceData;
use crate::quantity::whole;

/// What a request asks of nodes, in words that are the same for all that ask for the same.
///
/// # Errors
/// GPUs of a vendor that is not supported.
pub(crate) fn what_is_asked_for(want: &ContainerRequest) -> Result<String, ComputeError> {
    let gpu = gpu_of(want);
    let vendor = gpu.map(|gpu| gpu.vendor.unwrap_or(Vendor::Nvidia));
    let asked = resources(&want.requirements, vendor)?;
    let of_model = gpu.map(|gpu| format!(" of {} with {} MiB", gpu.name, gpu.memory_mib));
    Ok(format!("{asked}{}", of_model.unwrap_or_default()))
}

fn gpu_of(want: &ContainerRequest) -> Option<&Gpu> {
    let gpu = want.offer.instance.resources.gpus.first();
    gpu.filter(|_| gpu_count(&want.requirements) > 0)
}

/// Docker Hub is known to container engines by this address only.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The pod of a job.
///
/// # Errors
/// No node has the GPUs any more, or they are of a vendor that is not supported.
pub(crate) fn pod(
    want: &ContainerRequest,
    name: &str,
    labels: &Labels,
    nodes: &[Node],
) -> Result<Value, ComputeError> {
    let workload = &want.workload;
    let (volumes, mounts) = volumes(workload);
    let gpu = gpu_of(want);
    let vendor = gpu.map(|gpu| gpu.vendor.unwrap_or(Vendor::Nvidia));
    let mut container = json!({
        "name": format!("{name}-container"),
        "image": workload.image,
        "command": ["/bin/sh"],
        "args": ["-c", workload.script],
        "ports": [{"containerPort": CONTAINER_SSH_PORT}],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": workload.privileged,
            "capabilities": {"add": ["SYS_RESOURCE"]},
        },
        "resources": resources(&want.requirements, vendor)?,
        "volumeMounts": mounts,
    });
    // Without it, images of NVIDIA see all GPUs of a node.
    if let (None, Some(container)) = (gpu, container.as_object_mut()) {
        let hidden = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]);
        container.insert("env".to_owned(), hidden);
    }
    let mut spec = json!({
        "containers": [container],
        "volumes": volumes,
        "restartPolicy": "Never",
    });
    let more = spec.as_object_mut().into_iter();
    for spec in more {
        if workload.registry.is_some() {
            let secret = json!([{"name": format!("{name}{SECRET_SUFFIX}")}]);
            spec.insert("imagePullSecrets".to_owned(), secret);
        }
        if let (Some(gpu), Some(vendor)) = (gpu, vendor) {
            let same = |node: &&Node| {
                gpus::model(node, vendor)
                    .is_some_and(|of| of.name == gpu.name && of.memory_mib == gpu.memory_mib)
            };
            let same: Vec<&Node> = nodes.iter().filter(same).collect();
            spec.insert("affinity".to_owned(), affinity(&same, vendor)?);
            spec.insert("tolerations".to_owned(), gpu_tolerations(&[vendor]));
        }
    }
    Ok(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}))
}

/// Requests are the lower bounds of what is asked for, limits the upper ones. GPUs are whole.
fn resources(requirements: &Requirements, vendor: Option<Vendor>) -> Result<Value, ComputeError> {
    let wanted = &requirements.resources;
    let (mut requests, mut limits) = (Map::new(), Map::new());
    let disk = wanted.disk.map(|disk| disk.size);
    requests.insert(
        "cpu".to_owned(),
        json!(wanted.cpu.count.min.unwrap_or_default().to_string()),
    );
    if let Some(most) = wanted.cpu.count.max {
        limits.insert("cpu".to_owned(), json!(most.to_string()));
    }
    for (resource, range) in [("memory", Some(wanted.memory)), ("ephemeral-storage", disk)] {
        requests.insert(resource.to_owned(), json!(format!("{}Mi", lower_mib(range))));
        if let Some(most) = range.and_then(|range| range.max) {
            limits.insert(resource.to_owned(), json!(format!("{}Mi", whole(most.mib()))));
        }
    }
    if let Some(vendor) = vendor {
        let resource = gpus::resource(vendor).ok_or_else(|| {
            ComputeError::Refused(format!("GPUs of {vendor} are not supported on Kubernetes"))
        })?;
        let count = json!(gpu_count(requirements).to_string());
        requests.insert(resource.to_owned(), count.clone());
        limits.insert(resource.to_owned(), count);
    }
    Ok(json!({"requests": requests, "limits": limits}))
}

/// Only nodes with the same GPUs.
fn affinity(nodes: &[&Node], vendor: Vendor) -> Result<Value, ComputeError> {
    let terms: Vec<Value> = match vendor {
        Vendor::Amd => {
            let mut devices: Vec<&str> = nodes.iter().flat_map(|node| gpus::amd_devices(node)).collect();
            devices.sort_unstable();
            devices.dedup();
            let term = |device: &str| json!({"matchExpressions": [{"key": format!("{}{device}", gpus::AMD_DEVICE), "operator": "Exists"}]});
            devices.into_iter().map(term).collect()
        }
        _ => {
            let products = nodes
                .iter()
                .filter_map(|node| node.metadata.labels.get(gpus::NVIDIA_PRODUCT));
            let mut products: Vec<&String> = products.collect();
            products.sort_unstable();
            products.dedup();
            match products.is_empty() {
                true => Vec::new(),
                false => vec![
                    json!({"matchExpressions": [{"key": gpus::NVIDIA_PRODUCT, "operator": "In", "values": products}]}),
                ],
            }
        }
    };
    match terms.is_empty() {
        true => Err(ComputeError::NoCapacity(
            "no node of the cluster has these GPUs any more".to_owned(),
        )),
        false => Ok(
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}),
        ),
    }
}

pub(crate) fn gpu_tolerations(vendors: &[Vendor]) -> Value {
    let keys = vendors.iter().filter_map(|vendor| gpus::resource(*vendor));
    let all = keys.flat_map(|key| {
        ["NoSchedule", "NoExecute"].map(|effect| json!({"key": key, "operator": "Exists", "effect": effect}))
    });
    Value::Array(all.collect())
}

/// Volumes of a pod, and where they are in its container.
fn volumes(workload: &Workload) -> (Vec<Value>, Vec<Value>) {
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    if let Some(mib) = workload.shm_mib {
        volumes
            .push(json!({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": format!("{mib}Mi")}}));
        mounts.push(json!({"name": "shm", "mountPath": "/dev/shm"}));
    }
    for (at, folder) in workload.folders.iter().enumerate() {
        let name = format!("folder-{at}");
        volumes
            .push(json!({"name": name, "hostPath": {"path": folder.node_path, "type": "DirectoryOrCreate"}}));
        mounts.push(json!({"name": name, "mountPath": folder.path}));
    }
    for (at, volume) in workload.volumes.iter().enumerate() {
        let name = format!("volume-{at}");
        let read_only = PlaceData::read(volume.volume.backend_data.as_deref()).read_only;
        volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": volume.volume.volume_id, "readOnly": read_only}}));
        mounts.push(match read_only {
            true => json!({"name": name, "mountPath": volume.path, "readOnly": true, "recursiveReadOnly": "IfPossible"}),
            false => json!({"name": name, "mountPath": volume.path}),
        });
    }
    (volumes, mounts)
}

/// A service by which a pod is reached inside the cluster.
pub(crate) fn service(name: &str, pod: &str, labels: &Labels) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"type": "ClusterIP", "selector": {INSTANCE: pod}, "ports": [{"port": CONTAINER_SSH_PORT}]},
    })
}

/// Who may pull the image of a pod.
pub(crate) fn registry_secret(name: &str, labels: &Labels, image: &str, login: &RegistryLogin) -> Value {
    let pair = STANDARD.encode(format!("{}:{}", login.username, login.password.expose()));
    let auth = json!({"username": login.username, "password": login.password.expose(), "auth": pair});
    let config = json!({"auths": {registry_of(image): auth}}).to_string();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": name, "labels": labels},
        "data": {".dockerconfigjson": STANDARD.encode(config)},
    })
}

/// The registry of an image by its name.
fn registry_of(image: &str) -> &str {
    let first = image.split_once('/').map(|(first, _)| first);
    let is_host = |text: &&str| text.contains(['.', ':']) || *text == "localhost";
    match first.filter(is_host) {
        Some("docker.io" | "index.docker.io" | "registry-1.docker.io") | None => DOCKER_HUB,
        Some(host) => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_for_the_registry_of_the_image() {
        for (image, registry) in [
            ("ubuntu", DOCKER_HUB),
            ("team/image:1", DOCKER_HUB),
            ("docker.io/team/image", DOCKER_HUB),
            ("ghcr.io/team/image", "ghcr.io"),
            ("localhost:5000/image", "localhost:5000"),
        ] {
            assert_eq!(registry_of(image), registry, "{image}");
        }
    }
}
