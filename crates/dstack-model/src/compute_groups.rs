//! Compute groups: instances that a provider makes and removes together.

use dstack_units::Time;
use serde::Serialize;
use uuid::Uuid;

use crate::Decode;
use crate::backends::BackendType;
use crate::runs::JobProvisioningData;
use crate::string_enum;

string_enum! {
    /// State of a compute group.
    pub enum ComputeGroupStatus {
        /// Its instances exist.
        Running = "running",
        /// Its instances have been deleted.
        Terminated = "terminated",
    }
}

/// What the backend answered.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ComputeGroupProvisioningData {
    /// The provider's id.
    pub compute_group_id: String,
    /// The provider's name.
    pub compute_group_name: String,
    /// Backend that created the group.
    pub backend: BackendType,
    /// The backend behind the backend.
    pub base_backend: Option<BackendType>,
    /// Region of the backend that the group is in.
    pub region: String,
    /// One for each instance.
    pub job_provisioning_datas: Vec<JobProvisioningData>,
    /// JSON of the backend.
    pub backend_data: Option<String>,
}

/// A compute group.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ComputeGroup {
    /// Id of the group.
    pub id: Uuid,
    /// Name of the group.
    pub name: String,
    /// Name of the project that owns its fleet.
    pub project_name: String,
    /// When it was made.
    pub created_at: Time,
    /// Whether its instances exist.
    pub status: ComputeGroupStatus,
    /// What the backend answered.
    pub provisioning_data: ComputeGroupProvisioningData,
}
