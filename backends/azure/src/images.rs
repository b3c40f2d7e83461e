//! The image that a machine starts from, for x86-64: one of dstack's, with Docker and drivers, in the community gallery of dstack 0.22.5;
//! for gateways Canonical's.

use dstack_model::instances::Resources;
use serde_json::{Value, json};

/// Of generation 2.
const GALLERY: &str = "dstack-ebac134d-04b9-4c2b-8b6c-ad3e73904aa7";

/// The user of the images.
pub(crate) const USER: &str = "ubuntu";

/// GPUs before Turing, which NVIDIA's open kernel modules do not know; the names are those of the catalogue.
const OLD_GPUS: &[&str] = &[
    "V100", "P100", "P40", "P4", "M60", "M40", "M4", "K80", "K40", "K20",
];

/// Plain Ubuntu. That of generation 2: newer sizes start no other, and those before take it as well, but for the oldest ("Support for
/// Generation 2 VMs on Azure"). dstack 0.22.5 has that of generation 1, and its one size.
pub(crate) fn gateway_image() -> Value {
    json!({"publisher": "canonical", "offer": "0001-com-ubuntu-server-jammy", "sku": "22_04-lts-gen2", "version": "latest"})
}

/// The image for jobs on machines of a size. Parts of an A10 need NVIDIA's GRID driver.
pub(crate) fn image_for(size: &str, resources: &Resources) -> Value {
    let image = match resources.gpus.first() {
        _ if size.contains("_A10_v5") => "dstack-grid-0.14",
        None => "dstack-0.14",
        Some(gpu) if OLD_GPUS.contains(&gpu.name.as_str()) => "dstack-cuda-0.10",
        Some(_) => "dstack-cuda-0.14",
    };
    json!({"communityGalleryImageId": format!("/CommunityGalleries/{GALLERY}/Images/{image}")})
}
