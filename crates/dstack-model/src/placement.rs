//! Placement groups: their configuration and what a backend made of them.

use serde::Serialize;

use crate::Decode;
use crate::backends::BackendType;
use crate::string_enum;

string_enum! {
    /// How the instances of a placement group are placed.
    pub enum PlacementStrategy {
        /// Close to each other.
        Cluster = "cluster",
    }
}

/// What a placement group is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct PlacementGroupConfiguration {
    /// The backend that was asked for.
    pub backend: BackendType,
    /// Region of the backend that the group is in.
    pub region: String,
    /// How instances are placed.
    pub placement_strategy: PlacementStrategy,
}

/// What the backend answered.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct PlacementGroupProvisioningData {
    /// May differ from the configured one.
    pub backend: BackendType,
    /// JSON of the backend.
    pub backend_data: Option<String>,
}

/// A placement group.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct PlacementGroup {
    /// Name of the group at its backend: `<fleet>-<random suffix>`.
    pub name: String,
    /// Name of the project that owns its fleet.
    pub project_name: String,
    /// What it is made from.
    pub configuration: PlacementGroupConfiguration,
    /// What the backend answered.
    pub provisioning_data: Option<PlacementGroupProvisioningData>,
}
