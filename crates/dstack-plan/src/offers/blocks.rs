//! Dividing instances into blocks.

use dstack_model::fleets::Blocks;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_units::AcceleratorVendor;

/// Into how many blocks an instance is divided; `None` when its CPUs and GPUs cannot be divided evenly. One block is no
/// division.
pub fn total_blocks(offer: &Offer, blocks: Blocks) -> Option<u32> {
    if blocks == Blocks::Count(1) {
        return Some(offer.total_blocks);
    }
    let resources = &offer.instance.resources;
    let cpus = resources.cpus;
    let gpus = match resources.gpus.first() {
        // Parts of a TPU cannot be used by themselves.
        Some(gpu) if gpu.vendor == Some(AcceleratorVendor::Google) => 1,
        _ => i64::try_from(resources.gpus.len()).unwrap_or(i64::MAX),
    };
    let blocks = match blocks {
        Blocks::Count(count) => count,
        Blocks::Auto if gpus == 0 => cpus,
        Blocks::Auto => cpus.min(gpus),
    };
    if blocks < 1 || cpus % blocks != 0 || gpus % blocks != 0 {
        return None;
    }
    u32::try_from(blocks).ok()
}
