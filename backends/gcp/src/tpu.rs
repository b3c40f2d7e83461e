//! Cloud TPU v2: slices on one host, each a machine. What is read of one is read as an instance, so that their lives are one.

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

/// Most cores of a slice on one host.
const MOST_CORES: u32 = 8;

/// Its slices are on several hosts, the smallest one too.
const NEVER_ON_ONE_HOST: &str = "v4";

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

/// Whether a type of TPUs is on one host: others would be several machines.
pub(crate) fn is_on_one_host(accelerator: &str) -> bool {
    version_of(accelerator)
        .is_some_and(|(version, cores)| cores <= MOST_CORES && version != NEVER_ON_ONE_HOST)
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
    labels: &BTreeMap<String, String>,
    networks: &Networks,
    is_public: bool,
    service_account: Option<&str>,
) -> Value {
    let accelerator = want.offer.instance.name.as_str();
    let mut network = json!({"enableExternalIps": is_public, "network": networks.first.network});
    if let (Some(subnet), Some(fields)) = (&networks.first.subnet, network.as_object_mut()) {
        fields.insert("subnetwork".to_owned(), subnet.as_str().into());
    }
    let mut body = json!({
        "acceleratorType": accelerator,
        "runtimeVersion": runtime(accelerator),
        "networkConfig": network,
        "metadata": {"ssh-keys": ssh_keys(&want.authorized_keys), "startup-script": STARTUP},
        "labels": labels,
        "tags": [tag(Purpose::Jobs)],
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
    /// As an instance would be told of.
    pub(crate) fn into_instance(self) -> Instance {
        // One of several hosts would have more endpoints.
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
        assert_eq!(runtime("v6e-8"), "v2-alpha-tpuv6e");
        assert_eq!(runtime("v5litepod-4"), "v2-alpha-tpuv5-lite");
        assert_eq!(runtime("v5p-8"), "tpu-ubuntu2204-base");
    }
}
