use dstack_model::placement::PlacementGroupProvisioningData;

use crate::lifecycle::Resource;
use crate::{Marks, Owner};

/// Groups of machines that a cloud places close to each other.
#[derive(Debug, Clone, PartialEq)]
pub enum Placement {}

impl Resource for Placement {
    type Want = PlacementRequest;
    /// Region.
    type Site = String;
    type Place = PlacementGroupProvisioningData;
}

/// Longest name of a placement group: it is known to the backend and to the machines in it by the name of this length.
const NAME_LENGTH: usize = 60;

/// By what a placement group with these marks is known, to machines as well.
pub fn placement_name(marks: &Marks) -> String {
    marks.name(NAME_LENGTH)
}

/// A placement group that is asked for. Its name is [`placement_name`].
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementRequest {
    /// What it carries: whatever is made for the request is found by them.
    pub marks: Marks,
    /// For whom it is.
    pub owner: Owner,
    /// Region of the machines.
    pub region: String,
    /// Of the first machine: some clouds have groups for one type of machine only.
    pub instance_type: String,
}
