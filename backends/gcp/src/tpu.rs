//! Cloud TPU v2: slices, of which those on one host are machines. What is read of one is read as an instance, so that their lives are one.

use std::collections::{BTreeMap, HashMap};

use dstack_compute::{ComputeError, MachineRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::SCOPE;
use crate::client::{AccessConfig, AttachedDisk, Instance, Interface, Scheduling, last};
use crate::instance::ssh_keys;
use crate::machines::Purpose;
use crate::network::{Networks, tag};

/// Versions that are known.
const VERSIONS: &[&str] = &["v2", "v3", "v4", "v5p", "v5litepod", "v6e"];

/// The number in the name of the largest slice on one host: of TensorCores, or of chips where a chip has one.
const LARGEST_ON_ONE_HOST: u32 = 8;

/// Its slices on one host are not offered, as with dstack 0.22.5. There is one, `v4-8` ("TPU v4"), which no catalogue has.
const NOT_ON_ONE_HOST: &str = "v4";

/// Chips of each host of a slice that has several.
pub(crate) const CHIPS_OF_A_HOST: u32 = 4;

/// The agent gives jobs the device and all rights on their host, as PJRT needs them. It may have been brought by then.
const STARTUP: &str = r#"#! /bin/bash
folder=/etc/systemd/system/dstack-shim.service.d
[ -e "$folder/tpu.conf" ] && exit 0
mkdir -p "$folder"
printf '[Service]\nEnvironment=PJRT_DEVICE=TPU DSTACK_DOCKER_PRIVILEGED=1\n' > "$folder/tpu.conf"
systemctl daemon-reload
systemctl try-restart dstack-shim.service
"#;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    /// `projects/P/locations/ZONE/nodes/NAME`.
    pub(crate) name: String,
    #[serde(default)]
    accelerator_type: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    pub(crate) labels: HashMap<String, String>,
    #[serde(default)]
    network_endpoints: Vec<Endpoint>,
    #[serde(default)]
    pub(crate) data_disks: Vec<DataDisk>,
    #[serde(default)]
    scheduling_config: SchedulingConfig,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    ip_address: Option<String>,
    #[serde(default)]
    access_config: Option<ExternalIp>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExternalIp {
    #[serde(default)]
    external_ip: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DataDisk {
    #[serde(default)]
    pub(crate) source_disk: String,
    #[serde(default)]
    mode: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SchedulingConfig {
    preemptible: bool,
    spot: bool,
}

/// The version of a type of TPUs (`v5litepod-8`) and its cores.
fn version_of(accelerator: &str) -> Option<(&str, u32)> {
    let (version, cores) = accelerator.split_once('-')?;
    let is_number = !cores.is_empty() && cores.bytes().all(|byte| byte.is_ascii_digit());
    let cores = cores.parse().ok().filter(|_| is_number)?;
    VERSIONS.contains(&version).then_some((version, cores))
}

/// Whether a type is one of TPUs.
pub(crate) fn is_tpu(machine_type: &str) -> bool {
    version_of(machine_type).is_some()
}

/// Chips of a slice; `None`: it is of no version that is known.
pub(crate) fn chips_of(accelerator: &str) -> Option<u32> {
    version_of(accelerator).map(|(version, number)| match version {
        "v5litepod" | "v6e" => number,
        _ => number / 2,
    })
}

/// Hosts of a slice, which Google calls its workers or VMs; `None`: it is of no version that is known. Each has four chips where there are
/// several ("TPU v2" to "TPU v6e").
pub(crate) fn hosts_of(accelerator: &str) -> Option<u32> {
    let (_, number) = version_of(accelerator)?;
    match number <= LARGEST_ON_ONE_HOST {
        true => Some(1),
        false => chips_of(accelerator).map(|chips| chips.div_ceil(CHIPS_OF_A_HOST)),
    }
}

/// Whether a type is one of TPUs on several hosts, a pod.
pub(crate) fn is_pod(accelerator: &str) -> bool {
    hosts_of(accelerator).is_some_and(|hosts| hosts > 1)
}

/// Whether a type of TPUs is offered as a machine.
pub(crate) fn is_on_one_host(accelerator: &str) -> bool {
    version_of(accelerator).is_some_and(|(version, _)| version != NOT_ON_ONE_HOST) && !is_pod(accelerator)
}

/// The software of a TPU ("TPU software versions").
fn runtime(accelerator: &str) -> &'static str {
    match version_of(accelerator) {
        Some(("v6e", _)) => "v2-alpha-tpuv6e",
        Some(("v5litepod", _)) => "v2-alpha-tpuv5-lite",
        _ => "tpu-ubuntu2204-base",
    }
}

/// The body of `nodes.create`.
pub(crate) fn node(
    want: &MachineRequest,
    purpose: Purpose<'_>,
    labels: &BTreeMap<String, String>,
    networks: &Networks,
    is_public: bool,
    service_account: Option<&str>,
) -> Value {
    let startup = match purpose {
        Purpose::Pod { startup } => startup,
        Purpose::Jobs | Purpose::Gateway { .. } => STARTUP,
    };
    let accelerator = want.offer.instance.name.as_str();
    let mut network = json!({"enableExternalIps": is_public, "network": networks.first.network});
    if let (Some(subnet), Some(fields)) = (&networks.first.subnet, network.as_object_mut()) {
        fields.insert("subnetwork".to_owned(), subnet.as_str().into());
    }
    let mut body = json!({
        "acceleratorType": accelerator,
        "runtimeVersion": runtime(accelerator),
        "networkConfig": network,
        "metadata": {"ssh-keys": ssh_keys(&want.authorized_keys), "startup-script": startup},
        "labels": labels,
        "tags": [tag(purpose)],
    });
    if let Some(fields) = body.as_object_mut() {
        if want.offer.instance.resources.spot {
            fields.insert("schedulingConfig".to_owned(), json!({"preemptible": true}));
        }
        if let Some(email) = service_account {
            let account = json!({"email": email, "scope": [SCOPE]});
            fields.insert("serviceAccount".to_owned(), account);
        }
    }
    body
}

/// The body of a change: these disks, with or without one.
pub(crate) fn disks(node: &Node, with: Option<&str>, without: Option<&str>) -> Value {
    let kept = node
        .data_disks
        .iter()
        .filter(|disk| Some(disk.source_disk.as_str()) != without);
    let kept = kept.map(|disk| json!({"sourceDisk": disk.source_disk, "mode": disk.mode}));
    let added = with.map(|disk| json!({"sourceDisk": disk, "mode": "READ_WRITE"}));
    json!({"dataDisks": kept.chain(added).collect::<Vec<_>>()})
}

impl Node {
    /// Whether it is one of several hosts.
    pub(crate) fn is_pod(&self) -> bool {
        is_pod(&self.accelerator_type)
    }

    /// As an instance would be told of.
    pub(crate) fn into_instance(self) -> Instance {
        // One for each host, in the order of their numbers.
        let interfaces = self.network_endpoints.into_iter().map(|endpoint| Interface {
            network_ip: endpoint.ip_address.filter(|ip| !ip.is_empty()),
            access_configs: endpoint
                .access_config
                .map(|config| AccessConfig {
                    nat_ip: config.external_ip.filter(|ip| !ip.is_empty()),
                })
                .into_iter()
                .collect(),
        });
        let disks = self
            .data_disks
            .into_iter()
            .zip(1..)
            .map(|(disk, number)| AttachedDisk {
                source: disk.source_disk,
                device_name: format!("persistent-disk-{number}"),
            });
        let is_spot = self.scheduling_config.preemptible || self.scheduling_config.spot;
        Instance {
            name: last(&self.name).to_owned(),
            status: status(&self.state).to_owned(),
            labels: self.labels,
            network_interfaces: interfaces.collect(),
            scheduling: Scheduling {
                provisioning_model: is_spot.then(|| "SPOT".to_owned()),
            },
            disks: disks.collect(),
        }
    }
}

/// The status of an instance that is so.
fn status(state: &str) -> &str {
    match state {
        "READY" => "RUNNING",
        "RESTARTING" | "REIMAGING" | "REPAIRING" | "HIDING" | "HIDDEN" | "UNHIDING" => "REPAIRING",
        "DELETING" | "STOPPING" => "STOPPING",
        "STOPPED" | "PREEMPTED" | "TERMINATED" => "TERMINATED",
        // `CREATING`, `STARTING`, `UNKNOWN`, and what comes after this version.
        _ => "PROVISIONING",
    }
}

/// The zone and the name of a node.
///
/// # Errors
/// It is named otherwise.
pub(crate) fn place_of(name: &str) -> Result<(&str, &str), ComputeError> {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        ["projects", _, "locations", zone, "nodes", name] => Ok((zone, name)),
        _ => Err(ComputeError::Unclear(format!("Google names a TPU {name:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tpus_are_known_by_their_types() {
        for (name, is_one, is_small) in [
            ("v5litepod-8", true, true),
            ("v5litepod-16", true, false),
            ("v2-8", true, true),
            ("v4-8", true, false),
            ("v6e-1", true, true),
            ("a2-highgpu-1g", false, false),
            ("v7x-8", false, false),
            ("v2", false, false),
            ("v2-", false, false),
            ("v2-+8", false, false),
        ] {
            assert_eq!((is_tpu(name), is_on_one_host(name)), (is_one, is_small), "{name}");
        }
        for (name, hosts) in [
            ("v2-8", Some(1)),
            ("v2-32", Some(4)),
            ("v3-2048", Some(256)),
            ("v4-8", Some(1)),
            ("v4-16", Some(2)),
            ("v5p-8", Some(1)),
            ("v5p-32", Some(4)),
            ("v5litepod-8", Some(1)),
            ("v5litepod-16", Some(4)),
            ("v6e-8", Some(1)),
            ("v6e-16", Some(4)),
            ("v6e-256", Some(64)),
            ("v7x-16", None),
            ("a2-highgpu-1g", None),
        ] {
            assert_eq!(hosts_of(name), hosts, "{name}");
        }
        assert_eq!(runtime("v6e-8"), "v2-alpha-tpuv6e");
        assert_eq!(runtime("v5litepod-4"), "v2-alpha-tpuv5-lite");
        assert_eq!(runtime("v5p-8"), "tpu-ubuntu2204-base");
    }
}
