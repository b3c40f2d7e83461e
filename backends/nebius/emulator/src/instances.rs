//! What the vendor checks of what is asked for, and how machines are.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Cloud, Kind, Refusal, Thing, bad, in_use, missing, region_of, subnets, text};

/// Platforms: name, regions, and whether it has GPUs.
const PLATFORMS: &[(&str, &[&str], bool)] = &[
    ("cpu-e2", &["eu-north1"], false),
    ("cpu-d3", &["eu-north1", "eu-west1"], false),
    ("gpu-h100-sxm", &["eu-north1"], true),
    ("gpu-h200-sxm", &["eu-north1", "eu-west1"], true),
    ("gpu-b200-sxm", &["us-central1"], true),
    ("gpu-b200-sxm-a", &["me-west1"], true),
    ("gpu-rtx6000", &["us-central1"], true),
    ("gpu-l40s-a", &["eu-north1"], true),
    ("gpu-l40s-d", &["eu-north1"], true),
];

/// Fabrics: name, platform, region.
const FABRICS: &[(&str, &str, &str)] = &[
    ("fabric-2", "gpu-h100-sxm", "eu-north1"),
    ("fabric-3", "gpu-h100-sxm", "eu-north1"),
    ("fabric-4", "gpu-h100-sxm", "eu-north1"),
    ("fabric-6", "gpu-h100-sxm", "eu-north1"),
    ("fabric-7", "gpu-h200-sxm", "eu-north1"),
    ("fabric-5", "gpu-h200-sxm", "eu-west1"),
    ("us-central1-b", "gpu-b200-sxm", "us-central1"),
];

const IMAGE_FAMILIES: &[&str] = &[
    "ubuntu24.04-driverless",
    "ubuntu24.04-cuda12",
    "ubuntu24.04-cuda13.0",
];

/// The image of the family needs so much.
const SMALLEST_DISK: i64 = 40_000_000_000;

/// # Errors
/// What is wrong with it.
pub(crate) fn check(state: &Cloud, kind: Kind, project: &str, spec: &Value) -> Result<(), Refusal> {
    let platform = |name: &str| {
        let known = PLATFORMS.iter().find(|(known, ..)| *known == name);
        let here = known.filter(|(_, regions, _)| regions.contains(&region_of(project)));
        here.ok_or_else(|| bad(format!("platform {name} is not in the region")))
    };
    match kind {
        Kind::Disk => disk(spec),
        Kind::Cluster => {
            let fabric = text(spec, "infiniband_fabric");
            let known = FABRICS
                .iter()
                .any(|(name, _, region)| *name == fabric && *region == region_of(project));
            known
                .then_some(())
                .ok_or_else(|| bad(format!("there is no fabric {fabric}")))
        }
        Kind::Policy => {
            platform(text(&spec["compute_instance_spec"]["v1"], "platform"))?;
            let price = text(&spec["pricing"]["max_price_v1"], "max_price");
            let (whole, part) = price.split_once('.').unwrap_or((price, ""));
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            match !whole.is_empty() && is_number(whole) && is_number(part) && part.len() <= 3 {
                true => Ok(()),
                false => Err(bad("max_price has three decimals at most")),
            }
        }
        Kind::Instance => {
            let (name, _, has_gpus) = platform(text(&spec["resources"], "platform"))?;
            instance(state, project, spec, name, *has_gpus)
        }
    }
}

fn disk(spec: &Value) -> Result<(), Refusal> {
    let units = [
        ("size_bytes", 1),
        ("size_kibibytes", 1 << 10),
        ("size_mebibytes", 1 << 20),
        ("size_gibibytes", 1 << 30),
    ];
    let size: i64 = units
        .iter()
        .map(|(name, unit)| spec[*name].as_i64().unwrap_or(0) * unit)
        .sum();
    let family = text(&spec["source_image_family"], "image_family");
    if !IMAGE_FAMILIES.contains(&family) {
        return Err(missing(family));
    }
    match size >= SMALLEST_DISK {
        true => Ok(()),
        false => Err(bad("the disk is smaller than the image")),
    }
}

fn instance(
    state: &Cloud,
    project: &str,
    spec: &Value,
    platform: &str,
    has_gpus: bool,
) -> Result<(), Refusal> {
    let preset = text(&spec["resources"], "preset");
    let count = preset.split('-').next().unwrap_or_default();
    let is_preset = match has_gpus {
        true => count.ends_with("gpu"),
        false => count.ends_with("vcpu"),
    };
    if !is_preset {
        return Err(bad(format!("{platform} has no preset {preset}")));
    }
    if text(spec, "cloud_init_user_data").len() > 32_768 {
        return Err(bad("cloud_init_user_data is too long"));
    }
    for interface in spec["network_interfaces"].as_array().into_iter().flatten() {
        let subnet = text(interface, "subnet_id");
        if !subnets(project).iter().any(|own| own["metadata"]["id"] == subnet) {
            return Err(missing(subnet));
        }
    }
    let thing = |kind: Kind, id: &str| {
        let mut things = state
            .things
            .iter()
            .filter(|thing| thing.kind == kind && thing.is_there());
        let thing =
            things.find(|thing| thing.id == id && thing.project() == project && thing.gone_at.is_none());
        thing.ok_or_else(|| missing(id))
    };
    let disk = thing(Kind::Disk, text(&spec["boot_disk"]["existing_disk"], "id"))?;
    if text(&spec["boot_disk"], "attach_mode") != "READ_WRITE" {
        return Err(bad("machines write to their boot disk"));
    }
    let is_had = state
        .things
        .iter()
        .any(|other| other.is_there() && other.has(&disk.id));
    if !disk.is_ready() || is_had {
        return Err(in_use(
            &disk.id,
            "the disk is not ready, or another machine has it",
        ));
    }
    if let Some(cluster) = spec["gpu_cluster"]["id"].as_str() {
        let fabric = text(&thing(Kind::Cluster, cluster)?.asked["spec"], "infiniband_fabric");
        let fits = FABRICS
            .iter()
            .any(|(name, of, _)| *name == fabric && *of == platform);
        if !fits || count != "8gpu" {
            return Err(bad("such machines are not in the fabric of the cluster"));
        }
    }
    let is_preemptible = spec["preemptible"].is_object();
    let is_spot = spec["follows_spot_price"].is_object() || spec["spot_pricing_policy"].is_object();
    if is_preemptible != is_spot || (is_preemptible && text(spec, "recovery_policy") != "FAIL") {
        return Err(bad(
            "preemptible machines fail, and have a spot price; others have neither",
        ));
    }
    if let Some(id) = spec["spot_pricing_policy"]["id"].as_str() {
        let policy = thing(Kind::Policy, id)?;
        if !policy.is_ready() {
            return Err(in_use(id, "the policy is not active"));
        }
        if text(&policy.asked["spec"]["compute_instance_spec"]["v1"], "platform") != platform {
            return Err(bad("the policy is of another platform"));
        }
    }
    Ok(())
}

pub(crate) fn status(thing: &Thing) -> Value {
    let now = Instant::now();
    let takes = thing.ready_at - thing.made_at;
    let is_starting = thing.made_at + takes / 2 <= now;
    let state = match () {
        () if thing.gone_at.is_some() => "DELETING",
        () if thing.is_failed && thing.made_at + takes / 4 <= now => "ERROR",
        () if thing.is_stopped => "STOPPED",
        () if thing.is_ready() => "RUNNING",
        () if is_starting => "STARTING",
        () => "CREATING",
    };
    let interface = json!({
        "name": "dstack-default-interface",
        "ip_address": {"address": "192.168.0.5/32", "allocation_id": "vpcallocation-e00a"},
        "public_ip_address": {"address": "203.0.113.56/32", "allocation_id": "vpcallocation-e00b", "static": true},
    });
    let interfaces: Vec<Value> = (is_starting && !thing.is_failed)
        .then_some(interface)
        .into_iter()
        .collect();
    json!({"state": state, "network_interfaces": interfaces})
}
