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

/// A placement group that is asked for. Machines name it as [`Marks::name`] does.
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
