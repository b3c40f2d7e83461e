//! Where the instances of a cluster are: beside its first one.

use dstack_model::runs::JobProvisioningData;
use dstack_units::InstanceId;

/// Where a new instance of a cluster may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Beside<'a> {
    /// Anywhere: it is the first.
    Nobody,
    /// Not known yet: the first is being made.
    Unknown,
    /// Where this one is.
    First(&'a JobProvisioningData),
}

/// Where the first instance of a cluster is, of those that are not being ended, in order; `chosen` is the one that the
/// fleet has chosen.
pub fn beside<'a>(
    instances: impl Iterator<Item = (InstanceId, Option<&'a JobProvisioningData>)>,
    chosen: Option<InstanceId>,
) -> Beside<'a> {
    let mut found = Beside::Nobody;
    for (id, place) in instances {
        found = match (found, place) {
            (_, Some(place)) if chosen == Some(id) => return Beside::First(place),
            (Beside::First(first), _) => Beside::First(first),
            (_, Some(place)) => Beside::First(place),
            (_, None) => Beside::Unknown,
        };
    }
    found
}
