use std::collections::BTreeMap;

use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;

use crate::Marks;
use crate::lifecycle::Resource;

/// Virtual or real machines of a cloud, on which an agent runs. They need an SSH server, to which the agent is brought, and Docker.
#[derive(Debug, Clone, PartialEq)]
pub enum Machine {}

impl Resource for Machine {
    type Want = MachineRequest;
    /// Region.
    type Site = String;
    /// With `dockerized`.
    type Place = JobProvisioningData;
}

/// A machine that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineRequest {
    /// What it carries: whatever is made for the request is found by them.
    pub marks: Marks,
    /// For whom it is.
    pub owner: Owner,
    /// The reservation that it is to be made of: nothing else may be taken.
    pub reservation: Option<String>,
    /// Which offer is to be taken. Of its zones, each may be taken.
    pub offer: InstanceOfferWithAvailability,
    /// Public keys that may log in, each a line `type base64`: that of the project first.
    pub authorized_keys: Vec<String>,
    /// The placement group that it belongs into, by its name.
    pub placement_group: Option<String>,
}

/// For whom something is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// Name of the project.
    pub project: String,
    /// Name of the user; empty: not known.
    pub user: String,
    /// Tags that the user or the fleet wants on everything.
    pub tags: BTreeMap<String, String>,
}
