//! Bodies of the calls that create something.

use dstack_compute::{CONTAINER_SSH_PORT, ComputeError, ContainerRequest, GroupRequest, Workload};
use dstack_model::offers::InstanceOfferWithAvailability;
use serde_json::{Map, Value, json};

use crate::is_secure_cloud;

/// Oldest CUDA that hosts of GPU pods may have: that of the catalogue's offers and of the default image.
const MIN_CUDA_VERSION: &str = "12.8";

const MIB_IN_GIB: i64 = 1024;

/// How a container is asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum PodRequest {
    /// In a data center of the vendor: body of `createPod`.
    Secure(Value),
    /// At a host of the community: input of `podFindAndDeployOnDemand`.
    Community(Value),
}

/// What a container is asked for with, its login to the image registry by id.
///
/// # Errors
/// Runpod cannot run it.
pub(crate) fn pod_request(
    want: &ContainerRequest,
    name: &str,
    registry: Option<&str>,
) -> Result<PodRequest, ComputeError> {
    refuse_unsupported(&want.workload)?;
    let mount = mount(&want.workload)?;
    if want.offer.instance.resources.spot {
        return Err(refused(
            "Runpod has no spot pods that can be used: use on-demand offers",
        ));
    }
    match is_secure_cloud(&want.offer.region) {
        true => secure_pod(want, name, registry, mount).map(PodRequest::Secure),
        false => community_pod(want, name, registry, mount).map(PodRequest::Community),
    }
}

fn secure_pod(
    want: &ContainerRequest,
    name: &str,
    registry: Option<&str>,
    mount: Option<Mount<'_>>,
) -> Result<Value, ComputeError> {
    let resources = &want.offer.instance.resources;
    let mut body = container_config(&want.offer, &want.workload, name, mount);
    body.insert("cloud".to_owned(), json!("SECURE"));
    if let Some(registry) = registry {
        body.insert("registry".to_owned(), json!(registry));
    }
    match gpu_count(&want.offer) {
        0 => {
            let flavor = cpu_flavor(&want.offer.instance.name)?;
            let cpu = json!({"id": flavor, "vcpuCount": resources.cpus});
            body.insert("cpu".to_owned(), cpu);
        }
        count => {
            let mut gpu = json!({
                "id": want.offer.instance.name,
                "minCudaVersion": MIN_CUDA_VERSION,
                "count": count,
            });
            // Lower bounds: rounded up they would leave out the very host of the offer, whose totals the catalogue has.
            let bounds = [
                ("minVcpuCountPerGpu", resources.cpus / count),
                ("minRamPerGpu", resources.memory_mib / MIB_IN_GIB / count),
            ];
            if let Some(gpu) = gpu.as_object_mut() {
                let bounds = bounds.into_iter().filter(|(_, bound)| *bound > 0);
                gpu.extend(bounds.map(|(field, bound)| (field.to_owned(), json!(bound))));
            }
            body.insert("gpu".to_owned(), gpu);
        }
    }
    Ok(Value::Object(body))
}

fn community_pod(
    want: &ContainerRequest,
    name: &str,
    registry: Option<&str>,
    mount: Option<Mount<'_>>,
) -> Result<Value, ComputeError> {
    let resources = &want.offer.instance.resources;
    let count = gpu_count(&want.offer);
    if count == 0 {
        return Err(refused("Runpod has CPU pods in its data centers only"));
    }
    // The one way to set the entrypoint here: JSON in a text.
    let command = json!({"cmd": [want.workload.script], "entrypoint": ["/bin/sh", "-c"]});
    let environment: Vec<Value> = ENVIRONMENT
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect();
    let mut input = json!({
        "name": name,
        "imageName": want.workload.image,
        "gpuTypeId": want.offer.instance.name,
        "cloudType": "COMMUNITY",
        "minCudaVersion": MIN_CUDA_VERSION,
        "startSsh": true,
        "supportPublicIp": true,
        "countryCode": want.offer.region,
        "gpuCount": count,
        "volumeInGb": 0,
        "containerDiskInGb": disk_gb(&want.offer),
        "minVcpuCount": resources.cpus,
        "minMemoryInGb": resources.memory_mib / MIB_IN_GIB,
        "dockerArgs": command.to_string(),
        "ports": ssh_port(),
        "env": environment,
    });
    if let Some(input) = input.as_object_mut() {
        let mount = mount.map(|mount| {
            [
                ("networkVolumeId", mount.volume_id),
                ("volumeMountPath", mount.path),
            ]
        });
        let registry = registry.map(|registry| ("containerRegistryAuthId", registry));
        let more = mount.into_iter().flatten().chain(registry);
        input.extend(more.map(|(field, value)| (field.to_owned(), json!(value))));
    }
    Ok(input)
}

/// Body of `createCluster`: all of its pods are made alike.
///
/// # Errors
/// Runpod cannot run it.
pub(crate) fn cluster_request(want: &GroupRequest, name: &str) -> Result<Value, ComputeError> {
    let Some(first) = want.workloads.first() else {
        return Err(refused("a cluster needs jobs"));
    };
    refuse_unsupported(first)?;
    let mount = mount(first)?;
    if want.workloads.iter().any(|workload| workload.registry.is_some()) {
        return Err(refused(
            "pods of a Runpod cluster cannot pull private images: use a public image, or fewer nodes than two",
        ));
    }
    if want
        .workloads
        .iter()
        .any(|workload| workload.volumes != first.volumes)
    {
        return Err(refused(
            "all pods of a Runpod cluster have the same volume, and the nodes of this run name different ones",
        ));
    }
    if want.workloads.iter().any(|workload| workload != first) {
        return Err(refused(
            "all pods of a Runpod cluster are made alike, and the nodes of this run differ",
        ));
    }
    let pods = want.workloads.len();
    let counts = pod_counts(&want.offer);
    if !counts
        .iter()
        .any(|count| usize::try_from(*count).is_ok_and(|count| count == pods))
    {
        let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
        return Err(refused(format!(
            "Runpod has no clusters of {pods} such pods, only of {}",
            counts.join(", ")
        )));
    }
    let mut body = container_config(&want.offer, first, name, mount);
    body.insert("type".to_owned(), json!("TRAINING"));
    let compute = json!({
        "gpuTypeId": want.offer.instance.name,
        "gpuCountPerPod": gpu_count(&want.offer),
        "podCount": pods,
    });
    body.insert("compute".to_owned(), compute);
    Ok(Value::Object(body))
}

/// How many pods a cluster of an offer may have; empty: it is no offer of clusters.
fn pod_counts(offer: &InstanceOfferWithAvailability) -> Vec<u64> {
    let counts = offer.backend_data.get("pod_counts").and_then(Value::as_array);
    counts.into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// Runs containers as root, whatever user the image names (the vendor's `RUNPOD_POD_USER`).
const ENVIRONMENT: &[(&str, &str)] = &[("RUNPOD_POD_USER", "0")];

/// What bodies of pods and clusters have in common (`BaseContainerConfig`).
fn container_config(
    offer: &InstanceOfferWithAvailability,
    workload: &Workload,
    name: &str,
    mount: Option<Mount<'_>>,
) -> Map<String, Value> {
    let environment: Map<String, Value> = ENVIRONMENT
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    let mut body = Map::new();
    for (field, value) in [
        ("name", json!(name)),
        ("image", json!(workload.image)),
        ("entrypoint", json!(["/bin/sh"])),
        ("cmd", json!(["-c", workload.script])),
        ("disk", json!(disk_gb(offer))),
        ("dataCenterIds", json!([offer.region])),
        ("ports", json!([ssh_port()])),
        ("env", Value::Object(environment)),
    ] {
        body.insert(field.to_owned(), value);
    }
    if let Some(mount) = mount {
        let network = json!([{"volumeId": mount.volume_id, "path": mount.path}]);
        body.insert("mounts".to_owned(), json!({"network": network}));
    }
    body
}

/// A network volume in a container.
#[derive(Debug, Clone, Copy)]
struct Mount<'a> {
    volume_id: &'a str,
    path: &'a str,
}

fn mount(workload: &Workload) -> Result<Option<Mount<'_>>, ComputeError> {
    match workload.volumes.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(Mount {
            volume_id: &one.volume.volume_id,
            path: &one.path,
        })),
        several => Err(refused(format!(
            "a Runpod pod can have one network volume, and the job names {}",
            several.len()
        ))),
    }
}

fn refuse_unsupported(workload: &Workload) -> Result<(), ComputeError> {
    if workload.privileged {
        return Err(refused("Runpod does not run privileged containers"));
    }
    match workload.folders.iter().find(|folder| !folder.optional) {
        Some(folder) => Err(refused(format!(
            "Runpod does not mount folders of its hosts, and the job needs {}",
            folder.node_path
        ))),
        None => Ok(()),
    }
}

/// The flavor of `cpu3c-2-4`, a size of 2 CPUs and 4 GB.
fn cpu_flavor(size: &str) -> Result<&str, ComputeError> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = size.rsplitn(3, '-');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(memory), Some(cpus), Some(flavor)) if is_number(memory) && is_number(cpus) => Ok(flavor),
        _ => Err(refused(format!("{size} is no size of a CPU pod"))),
    }
}

fn gpu_count(offer: &InstanceOfferWithAvailability) -> i64 {
    i64::try_from(offer.instance.resources.gpus.len()).unwrap_or(i64::MAX)
}

/// At least what is asked for.
fn disk_gb(offer: &InstanceOfferWithAvailability) -> i64 {
    let mib = offer.instance.resources.disk.size_mib;
    (mib + MIB_IN_GIB - 1).div_euclid(MIB_IN_GIB).max(1)
}

fn ssh_port() -> String {
    format!("{CONTAINER_SSH_PORT}/tcp")
}

fn refused(text: impl Into<String>) -> ComputeError {
    ComputeError::Refused(text.into())
}

#[cfg(test)]
mod tests {
    use dstack_compute::{Marks, MountedFolder, MountedVolume, Owner, RegistryLogin};
    use dstack_model::decode::decode_strict;

    use super::*;

    fn offer(name: &str, region: &str, gpus: usize, data: &Value) -> InstanceOfferWithAvailability {
        let gpu = json!({"name": "H100", "memory_mib": 81920, "vendor": "nvidia"});
        decode_strict(&json!({
            "backend": "runpod", "region": region, "price": 0.69, "availability": "available", "backend_data": data,
            "instance": {"name": name, "resources": {"cpus": 13, "memory_mib": 84_000, "gpus": vec![gpu; gpus],
                "spot": false, "disk": {"size_mib": 102_400}, "cpu_arch": "x86"}},
        }))
        .unwrap()
    }

    fn workload() -> Workload {
        Workload {
            image: "dstackai/base:py3.12-0.10-cuda-12.8".to_owned(),
            registry: None,
            script: "echo \"a b\" && sleep 1".to_owned(),
            authorized_keys: Vec::new(),
            privileged: false,
            shm_mib: None,
            volumes: Vec::new(),
            folders: Vec::new(),
        }
    }

    fn marks() -> Marks {
        Marks {
            installation: "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
            key: "01956fd2-6b2c-7ad1-8f3e-0123456789ab".parse().unwrap(),
            name: "train-0-0".to_owned(),
            project: "0f8fad5b-d9cb-469f-a165-708677289500".parse().unwrap(),
        }
    }

    fn container(offer: InstanceOfferWithAvailability, workload: Workload) -> ContainerRequest {
        ContainerRequest {
            marks: marks(),
            owner: Owner::default(),
            offer,
            requirements: decode_strict(&json!({"resources": {}})).unwrap(),
            workload,
        }
    }

    fn group(offer: InstanceOfferWithAvailability, workloads: Vec<Workload>) -> GroupRequest {
        GroupRequest {
            marks: marks(),
            owner: Owner::default(),
            offer,
            requirements: decode_strict(&json!({"resources": {}})).unwrap(),
            workloads,
        }
    }

    fn volume(id: &str) -> MountedVolume {
        let provisioned = json!({"backend": "runpod", "volume_id": id, "size_gb": 100});
        MountedVolume {
            name: "data".to_owned(),
            volume: decode_strict(&provisioned).unwrap(),
            path: "/data".to_owned(),
        }
    }

    #[test]
    fn a_pod_with_gpus_is_asked_for_where_it_is_offered() {
        let want = container(
            offer("NVIDIA H100 80GB HBM3", "US-TX-3", 2, &json!({})),
            Workload {
                volumes: vec![volume("agv6w2qcg7")],
                ..workload()
            },
        );
        let expected = json!({
            "name": "dstack-x", "cloud": "SECURE", "image": "dstackai/base:py3.12-0.10-cuda-12.8",
            "entrypoint": ["/bin/sh"], "cmd": ["-c", "echo \"a b\" && sleep 1"], "disk": 100,
            "gpu": {"id": "NVIDIA H100 80GB HBM3", "minCudaVersion": "12.8", "count": 2,
                "minVcpuCountPerGpu": 6, "minRamPerGpu": 41},
            "dataCenterIds": ["US-TX-3"], "ports": ["10022/tcp"], "env": {"RUNPOD_POD_USER": "0"},
            "registry": "clxreg0001", "mounts": {"network": [{"volumeId": "agv6w2qcg7", "path": "/data"}]},
        });
        let request = pod_request(&want, "dstack-x", Some("clxreg0001")).unwrap();
        assert_eq!(request, PodRequest::Secure(expected));
    }

    #[test]
    fn a_pod_without_gpus_names_its_flavor() {
        let want = container(offer("cpu3c-m-13-84", "US-TX-3", 0, &json!({})), workload());
        let PodRequest::Secure(body) = pod_request(&want, "dstack-x", None).unwrap() else {
            panic!("it is in a data center");
        };
        assert_eq!(body["cpu"], json!({"id": "cpu3c-m", "vcpuCount": 13}));
        assert!(body.get("gpu").is_none() && body.get("registry").is_none() && body.get("mounts").is_none());
        for size in ["cpu3c", "cpu3c-2", "cpu3c-2-x", "-"] {
            let want = container(offer(size, "US-TX-3", 0, &json!({})), workload());
            assert!(pod_request(&want, "dstack-x", None).is_err(), "{size}");
        }
    }

    #[test]
    fn a_pod_of_the_community_is_asked_for_by_its_country() {
        let want = container(offer("NVIDIA GeForce RTX 4090", "CA", 1, &json!({})), workload());
        let expected = json!({
            "name": "dstack-x", "imageName": "dstackai/base:py3.12-0.10-cuda-12.8",
            "gpuTypeId": "NVIDIA GeForce RTX 4090", "cloudType": "COMMUNITY", "minCudaVersion": "12.8",
            "startSsh": true, "supportPublicIp": true, "countryCode": "CA", "gpuCount": 1, "volumeInGb": 0,
            "containerDiskInGb": 100, "minVcpuCount": 13, "minMemoryInGb": 82,
            "dockerArgs": "{\"cmd\":[\"echo \\\"a b\\\" && sleep 1\"],\"entrypoint\":[\"/bin/sh\",\"-c\"]}",
            "ports": "10022/tcp", "env": [{"key": "RUNPOD_POD_USER", "value": "0"}],
            "containerRegistryAuthId": "clxreg0001",
        });
        let request = pod_request(&want, "dstack-x", Some("clxreg0001")).unwrap();
        assert_eq!(request, PodRequest::Community(expected));
        let cpus = container(offer("cpu3c-2-4", "CA", 0, &json!({})), workload());
        pod_request(&cpus, "dstack-x", None).unwrap_err();
    }

    #[test]
    fn what_runpod_cannot_run_is_refused_before_anything_is_made() {
        let folder = |optional| MountedFolder {
            node_path: "/mnt".to_owned(),
            path: "/mnt".to_owned(),
            optional,
        };
        let ask = |workload| {
            let want = container(offer("NVIDIA H100 80GB HBM3", "US-TX-3", 1, &json!({})), workload);
            pod_request(&want, "dstack-x", None).map(drop)
        };
        let with_folder = |optional| Workload {
            folders: vec![folder(optional)],
            ..workload()
        };
        ask(with_folder(true)).unwrap();
        let privileged = Workload {
            privileged: true,
            ..workload()
        };
        let two_volumes = Workload {
            volumes: vec![volume("a"), volume("b")],
            ..workload()
        };
        for refused in [with_folder(false), privileged, two_volumes] {
            let error = ask(refused).unwrap_err();
            assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
        }
    }

    #[test]
    fn a_cluster_is_asked_for_with_as_many_pods_as_nodes() {
        let clusters = || {
            offer(
                "NVIDIA H100 80GB HBM3",
                "US-TX-3",
                8,
                &json!({"pod_counts": [2, 3]}),
            )
        };
        let body = cluster_request(&group(clusters(), vec![workload(); 2]), "dstack-x").unwrap();
        let expected = json!({
            "name": "dstack-x", "type": "TRAINING",
            "compute": {"gpuTypeId": "NVIDIA H100 80GB HBM3", "gpuCountPerPod": 8, "podCount": 2},
            "image": "dstackai/base:py3.12-0.10-cuda-12.8", "entrypoint": ["/bin/sh"],
            "cmd": ["-c", "echo \"a b\" && sleep 1"], "disk": 100, "dataCenterIds": ["US-TX-3"],
            "ports": ["10022/tcp"], "env": {"RUNPOD_POD_USER": "0"},
        });
        assert_eq!(body, expected);
        let private = Workload {
            registry: Some(RegistryLogin {
                username: "u".to_owned(),
                password: "p".into(),
                is_servers: false,
            }),
            ..workload()
        };
        let mounted = |id: &str| Workload {
            volumes: vec![volume(id)],
            ..workload()
        };
        let other = Workload {
            script: "true".to_owned(),
            ..workload()
        };
        for workloads in [
            vec![workload(); 4],
            vec![workload()],
            Vec::new(),
            vec![private; 2],
            vec![mounted("a"), mounted("b")],
            vec![workload(), other],
        ] {
            let error = cluster_request(&group(clusters(), workloads), "dstack-x").unwrap_err();
            assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
        }
        let single = offer("NVIDIA H100 80GB HBM3", "US-TX-3", 8, &json!({}));
        cluster_request(&group(single, vec![workload(); 2]), "dstack-x").unwrap_err();
    }
}
