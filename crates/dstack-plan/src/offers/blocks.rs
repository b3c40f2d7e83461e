//! Dividing instances into blocks.

use dstack_model::fleets::Blocks;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_units::AcceleratorVendor;

/// An instance divided into blocks; `None` when its CPUs and GPUs cannot be divided evenly. One block is no division.
pub fn divide(mut offer: Offer, blocks: Blocks) -> Option<Offer> {
    if blocks == Blocks::Count(1) {
        return Some(offer);
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
    offer.total_blocks = u32::try_from(blocks).ok()?;
    Some(offer)
}
