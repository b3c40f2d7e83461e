use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;

use crate::Marks;
use crate::lifecycle::Resource;

/// Virtual or real machines of a cloud, on which an agent runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Machine {}

impl Resource for Machine {
    type Want = MachineRequest;
    /// Region.
    type Site = String;
    type Place = JobProvisioningData;
}

/// A machine that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineRequest {
    /// What it carries: whatever is made for the request is found by them.
    pub marks: Marks,
    /// The reservation that it is to be made of: nothing else may be taken.
    pub reservation: Option<String>,
    /// Which offer is to be taken.
    pub offer: InstanceOfferWithAvailability,
}
