//! The image that a machine starts from: one of dstack's, with Docker and drivers, for x86-64, in the community gallery of dstack 0.22.5.

use dstack_model::instances::Resources;

/// Of generation 2.
const GALLERY: &str = "dstack-ebac134d-04b9-4c2b-8b6c-ad3e73904aa7";

/// The user of the images.
pub(crate) const USER: &str = "ubuntu";

/// GPUs before Turing, which NVIDIA's open kernel modules do not know; the names are those of the catalogue.
const OLD_GPUS: &[&str] = &[
    "V100", "P100", "P40", "P4", "M60", "M40", "M4", "K80", "K40", "K20",
];

/// Id of the image for machines of a size. Parts of an A10 need NVIDIA's GRID driver.
pub(crate) fn image_for(size: &str, resources: &Resources) -> String {
    let image = match resources.gpus.first() {
        _ if size.contains("_A10_v5") => "dstack-grid-0.14",
        None => "dstack-0.14",
        Some(gpu) if OLD_GPUS.contains(&gpu.name.as_str()) => "dstack-cuda-0.10",
        Some(_) => "dstack-cuda-0.14",
    };
    format!("/CommunityGalleries/{GALLERY}/Images/{image}")
}
