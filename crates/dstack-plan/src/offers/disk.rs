//! Disks: fixed ones must fit, configurable ones are made as small as allowed.

use std::sync::Arc;

use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::resources::DiskSpec;
use dstack_units::{Memory, Range};

/// The smallest disk within what is asked for (100 GB or more unless said) and what the backend can make; `None` when
/// that is nothing.
pub fn disk_size(wanted: Option<&DiskSpec>, possible: Range<Memory>) -> Option<Memory> {
    let wanted = wanted.map_or_else(|| DiskSpec::default().size, |disk| disk.size);
    let both = wanted.intersect(&possible)?;
    both.min.or(both.max)
}

/// The offer with the disk that the instance would get. `possible` is the range the backend can make, or `None` when
/// the disk is fixed.
pub fn fit_disk(
    mut offer: Offer,
    wanted: Option<&DiskSpec>,
    possible: Option<Range<Memory>>,
) -> Option<Offer> {
    let Some(possible) = possible else {
        let size = offer.instance.resources.disk.size_mib;
        let fits = size == 0 || wanted.is_none_or(|disk| disk.size.contains(from_mib(size)));
        return fits.then_some(offer);
    };
    let size = disk_size(wanted, possible)?;
    Arc::make_mut(&mut offer.instance).resources.disk.size_mib = to_mib(size);
    Some(offer)
}

#[allow(clippy::cast_precision_loss)] // sizes of disks
fn from_mib(mib: i64) -> Memory {
    Memory::from_mib(mib as f64)
}

#[allow(clippy::cast_possible_truncation)] // saturates
fn to_mib(size: Memory) -> i64 {
    size.mib().round_ties_even() as i64
}
