//! Where the instances of a cluster are: beside its first one.

use dstack_model::runs::JobProvisioningData;
use dstack_units::InstanceId;

/// Where a new instance of a cluster may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ClusterAnchor<'a> {
    /// Anywhere: it is the first.
    None,
    /// Not known yet: the first is being made.
    Undecided,
    /// Where this one is.
    At(&'a JobProvisioningData),
}

/// Where the first instance of a cluster is, of those that are not being ended, in order; `chosen` is the one that the
/// fleet has chosen.
pub fn cluster_anchor<'a>(
    instances: impl Iterator<Item = (InstanceId, Option<&'a JobProvisioningData>)>,
    chosen: Option<InstanceId>,
) -> ClusterAnchor<'a> {
    let mut found = ClusterAnchor::None;
    for (id, place) in instances {
        found = match (found, place) {
            (_, Some(place)) if chosen == Some(id) => return ClusterAnchor::At(place),
            (ClusterAnchor::At(first), _) => ClusterAnchor::At(first),
            (_, Some(place)) => ClusterAnchor::At(place),
            (_, None) => ClusterAnchor::Undecided,
        };
    }
    found
}
