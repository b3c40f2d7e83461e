//! Which GPUs a node has, by the labels that the vendors' operators give it.

use dstack_model::instances::Gpu;
use dstack_units::AcceleratorVendor as Vendor;
use dstack_units::accelerators::ACCELERATORS;

use crate::objects::Node;

/// Label of NVIDIA's GPU feature discovery.
pub(crate) const NVIDIA_PRODUCT: &str = "nvidia.com/gpu.product";

/// Label of AMD's node labeller, with the device id in hexadecimal digits at the end.
pub(crate) const AMD_DEVICE: &str = "beta.amd.com/gpu.device-id.";

/// The resource of a vendor's GPUs, which is also the key of the taint of their nodes.
pub(crate) const fn resource(vendor: Vendor) -> Option<&'static str> {
    match vendor {
        Vendor::Nvidia => Some("nvidia.com/gpu"),
        Vendor::Amd => Some("amd.com/gpu"),
        Vendor::Google | Vendor::Intel | Vendor::Tenstorrent => None,
    }
}

/// The model of a node's GPUs; `None`: it has none that is known.
pub(crate) fn model(node: &Node, vendor: Vendor) -> Option<Gpu> {
    match vendor {
        Vendor::Nvidia => nvidia(node.metadata.labels.get(NVIDIA_PRODUCT)?),
        Vendor::Amd => amd(node),
        Vendor::Google | Vendor::Intel | Vendor::Tenstorrent => None,
    }
}

fn nvidia(product: &str) -> Option<Gpu> {
    let plain = product.replace("RTX-", "RTX").to_ascii_lowercase();
    let parts: Vec<&str> = plain.split('-').collect();
    let known = || ACCELERATORS.iter().filter(|one| one.vendor == Vendor::Nvidia);
    let name = known()
        .find(|one| parts.contains(&one.name.to_ascii_lowercase().as_str()))?
        .name;
    let memory = match product.contains("40GB") {
        true => 40,
        false => known().rfind(|one| one.name == name)?.memory_gib,
    };
    Some(Gpu {
        name: name.to_owned(),
        memory_mib: i64::from(memory) * 1024,
        vendor: Some(Vendor::Nvidia),
    })
}

/// Device ids that a node's labels name.
pub(crate) fn amd_devices(node: &Node) -> impl Iterator<Item = &str> {
    node.metadata
        .labels
        .keys()
        .filter_map(|label| label.strip_prefix(AMD_DEVICE))
}

/// A node with several models tells not how many it has of each.
fn amd(node: &Node) -> Option<Gpu> {
    let mut found = None;
    for device in amd_devices(node) {
        let id = u32::from_str_radix(device, 16).ok()?;
        let known = ACCELERATORS.iter().find(|one| one.pci_device_ids.contains(&id))?;
        if found.is_some_and(|before| before != known) {
            return None;
        }
        found = Some(known);
    }
    let found = found?;
    Some(Gpu {
        name: found.name.to_owned(),
        memory_mib: i64::from(found.memory_gib) * 1024,
        vendor: Some(Vendor::Amd),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gpus_are_known_by_their_labels() {
        for (product, expected) in [
            ("NVIDIA-H100-80GB-HBM3", Some(("H100", 80))),
            ("NVIDIA-A100-SXM4-40GB", Some(("A100", 40))),
            ("NVIDIA-A100-SXM4-80GB", Some(("A100", 80))),
            ("NVIDIA-GeForce-RTX-4090", Some(("RTX4090", 24))),
            ("Tesla-T4", Some(("T4", 16))),
            ("NVIDIA-Unheard-Of", None),
        ] {
            let found = nvidia(product).map(|gpu| (gpu.name, gpu.memory_mib / 1024));
            assert_eq!(
                found,
                expected.map(|(name, memory)| (name.to_owned(), memory)),
                "{product}"
            );
        }
        let node = |labels: serde_json::Value| {
            serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap()
        };
        let one: Node = node(json!({"beta.amd.com/gpu.device-id.74a1": "8"}));
        assert_eq!(model(&one, Vendor::Amd).unwrap().name, "MI300X");
        let several: Node =
            node(json!({"beta.amd.com/gpu.device-id.74a1": "4", "beta.amd.com/gpu.device-id.740f": "4"}));
        assert_eq!(model(&several, Vendor::Amd), None);
    }
}
