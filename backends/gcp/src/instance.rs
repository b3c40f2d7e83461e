//! The request for a machine.

use std::collections::BTreeMap;

use dstack_backend::cloud_config;
use dstack_compute::{ComputeError, MachineRequest};
use dstack_model::instances::Gpu;
use serde_json::{Value, json};

use crate::auth::SCOPE;
use crate::machines::Purpose;
use crate::network::{Networks, Nic, tag};
use crate::reservations::Reservation;
use crate::startup::{GATEWAY_IMAGE, image_of, user_data};

/// The user of the images.
pub(crate) const USER: &str = "ubuntu";

/// Types that take no persistent disks: those of dstack 0.22.5, and such that only gateways can have ("Machine families resource and
/// comparison guide").
const HYPERDISK_ONLY: &[&str] = &[
    "m4-",
    "c4-",
    "n4-",
    "h3-",
    "v6e",
    "a4-",
    "g4-",
    "c4a-",
    "c4d-",
    "n4a-",
    "n4d-",
    "h4d-",
    "x4-",
    "a4x-",
    "a3-ultragpu-",
];

/// Types that come with their GPUs.
const WITH_GPUS: &[&str] = &["a2-", "a3-", "g2-"];

/// GPUs that come with the type of a machine, and are not asked for apart.
const BUNDLED: &[&str] = &["H100", "A100", "L4"];

/// Google's names of GPUs, by those of the catalogue and their memory in GiB.
const ACCELERATORS: &[(&str, i64, &str)] = &[
    ("B200", 180, "nvidia-b200"),
    ("A100", 80, "nvidia-a100-80gb"),
    ("A100", 40, "nvidia-tesla-a100"),
    ("L4", 24, "nvidia-l4"),
    ("T4", 16, "nvidia-tesla-t4"),
    ("V100", 16, "nvidia-tesla-v100"),
    ("P100", 16, "nvidia-tesla-p100"),
    ("RTXPRO6000", 96, "nvidia-rtx-pro-6000"),
];

/// Whether a type of machines takes persistent disks.
pub(crate) fn takes_persistent_disks(machine_type: &str) -> bool {
    !HYPERDISK_ONLY.iter().any(|start| machine_type.starts_with(start))
}

/// Whether a type of machines comes with its GPUs.
pub(crate) fn comes_with_gpus(machine_type: &str) -> bool {
    let others = ["a4-", "g4-"];
    let mut all = WITH_GPUS.iter().chain(&others);
    all.any(|start| machine_type.starts_with(start))
}

/// Google's name of a GPU.
pub(crate) fn accelerator(gpu: &Gpu) -> Option<&'static str> {
    let is_it = |(name, gib, _): &&(&str, i64, &str)| *name == gpu.name && gib * 1024 == gpu.memory_mib;
    ACCELERATORS
        .iter()
        .find(is_it)
        .map(|(.., accelerator)| *accelerator)
}

/// Whether a machine with such GPUs can be asked for.
pub(crate) fn is_known(gpu: &Gpu) -> bool {
    BUNDLED.contains(&gpu.name.as_str()) || accelerator(gpu).is_some()
}

/// What a machine is made of beyond what was asked for.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) purpose: Purpose<'a>,
    pub(crate) project: &'a str,
    pub(crate) zone: &'a str,
    pub(crate) name: &'a str,
    pub(crate) labels: &'a BTreeMap<String, String>,
    pub(crate) networks: &'a Networks,
    pub(crate) is_public: bool,
    pub(crate) service_account: Option<&'a str>,
    /// The policy of placement that is asked for.
    pub(crate) placement: Option<String>,
    /// Of what capacity it is to be made.
    pub(crate) reservation: Option<&'a Reservation>,
}

/// The body of `instances.insert`.
///
/// # Errors
/// A GPU of which Google's name is not known.
pub(crate) fn instance(want: &MachineRequest, parts: &Parts<'_>) -> Result<Value, ComputeError> {
    let Parts { zone, name, .. } = parts;
    let offer = &want.offer.instance;
    let (machine_type, resources) = (offer.name.as_str(), &offer.resources);
    let disk_type = match takes_persistent_disks(machine_type) {
        true => "pd-balanced",
        false => "hyperdisk-balanced",
    };
    let (image, user_data) = match parts.purpose {
        Purpose::Jobs | Purpose::Pod { .. } => (
            image_of(machine_type, resources),
            user_data(machine_type, &want.authorized_keys),
        ),
        Purpose::Gateway { .. } => (GATEWAY_IMAGE.to_owned(), cloud_config(&want.authorized_keys, &[])),
    };
    let accelerators = accelerators(&resources.gpus, parts)?;
    let needs_stop =
        !accelerators.is_empty() || WITH_GPUS.iter().any(|start| machine_type.starts_with(start));
    let mut body = json!({
        "name": name,
        "machineType": format!("zones/{zone}/machineTypes/{machine_type}"),
        "networkInterfaces": interfaces(parts.networks, parts.is_public),
        "disks": [{
            "boot": true,
            "autoDelete": true,
            "initializeParams": {
                "sourceImage": image,
                "diskSizeGb": ((resources.disk.size_mib + 1023) / 1024).to_string(),
                "diskType": format!("zones/{zone}/diskTypes/{disk_type}"),
            },
        }],
        "metadata": {"items": [
            {"key": "user-data", "value": user_data},
            {"key": "ssh-keys", "value": ssh_keys(&want.authorized_keys)},
        ]},
        "labels": parts.labels,
        "tags": {"items": [tag(parts.purpose)]},
    });
    let mut set = |field: &str, value: Value| {
        if let Some(fields) = body.as_object_mut() {
            fields.insert(field.to_owned(), value);
        }
    };
    if !accelerators.is_empty() {
        set("guestAccelerators", accelerators.into());
    }
    // GPUs do not move with their machine.
    match (resources.spot, needs_stop) {
        (true, _) => set(
            "scheduling",
            json!({"provisioningModel": "SPOT", "instanceTerminationAction": "STOP", "onHostMaintenance": "TERMINATE",
                "automaticRestart": false}),
        ),
        (false, true) => set("scheduling", json!({"onHostMaintenance": "TERMINATE"})),
        (false, false) => {}
    }
    if let Some(email) = parts.service_account {
        set("serviceAccounts", json!([{"email": email, "scopes": [SCOPE]}]));
    }
    let policy = parts
        .reservation
        .and_then(Reservation::placement)
        .map(str::to_owned);
    // A reservation says itself how its machines are placed.
    if let Some(policy) = if parts.reservation.is_some() {
        policy
    } else {
        parts.placement.clone()
    } {
        set("resourcePolicies", json!([policy]));
    }
    if let Some(reservation) = parts.reservation {
        set(
            "reservationAffinity",
            json!({"consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name",
                "values": [reservation.path(parts.project)]}),
        );
        let disks = body.get_mut("disks").and_then(Value::as_array_mut);
        let ssds = reservation.local_ssds().iter().map(|ssd| {
            json!({"type": "SCRATCH", "autoDelete": true, "boot": false, "interface": ssd.interface,
                "initializeParams": {"diskType": format!("zones/{zone}/diskTypes/local-ssd"), "diskSizeGb": ssd.disk_size_gb}})
        });
        disks.into_iter().for_each(|disks| disks.extend(ssds.clone()));
    }
    Ok(body)
}

/// As metadata, one a line.
pub(crate) fn ssh_keys(keys: &[String]) -> String {
    let lines: Vec<String> = keys.iter().map(|key| format!("{USER}:{key}")).collect();
    lines.join("\n")
}

fn accelerators(gpus: &[Gpu], parts: &Parts<'_>) -> Result<Vec<Value>, ComputeError> {
    let Some(gpu) = gpus.first().filter(|gpu| !BUNDLED.contains(&gpu.name.as_str())) else {
        return Ok(Vec::new());
    };
    let name = accelerator(gpu).ok_or_else(|| {
        let gib = gpu.memory_mib / 1024;
        ComputeError::Refused(format!(
            "Google's name of the GPU {} with {gib} GB is not known",
            gpu.name
        ))
    })?;
    let Parts { project, zone, .. } = parts;
    Ok(vec![json!({
        "acceleratorCount": gpus.len(),
        "acceleratorType": format!("projects/{project}/zones/{zone}/acceleratorTypes/{name}"),
    })])
}

fn interfaces(networks: &Networks, is_public: bool) -> Vec<Value> {
    let interface = |nic: &Nic, kind: Option<&str>| {
        let mut made = json!({"network": nic.network});
        if let Some(fields) = made.as_object_mut() {
            fields.extend(
                nic.subnet
                    .iter()
                    .map(|subnet| ("subnetwork".to_owned(), subnet.as_str().into())),
            );
            fields.extend(kind.map(|kind| ("nicType".to_owned(), kind.into())));
        }
        made
    };
    let mut first = interface(&networks.first, (!networks.extra.is_empty()).then_some("GVNIC"));
    if let (true, Some(fields)) = (is_public, first.as_object_mut()) {
        let access = json!([{"type": "ONE_TO_ONE_NAT", "name": "External NAT", "networkTier": "PREMIUM"}]);
        fields.insert("accessConfigs".to_owned(), access);
    }
    let extra = networks.extra.iter().map(|nic| interface(nic, Some("GVNIC")));
    let rdma = networks.rdma.iter().map(|nic| interface(nic, Some("MRDMA")));
    [first].into_iter().chain(extra).chain(rdma).collect()
}
