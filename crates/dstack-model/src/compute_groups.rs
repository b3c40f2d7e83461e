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
        /// There.
        Running = "running",
        /// Gone.
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
    /// The backend.
    pub backend: BackendType,
    /// The backend behind the backend.
    pub base_backend: Option<BackendType>,
    /// Its region.
    pub region: String,
    /// One for each instance.
    pub job_provisioning_datas: Vec<JobProvisioningData>,
    /// JSON of the backend.
    pub backend_data: Option<String>,
}

/// A compute group.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ComputeGroup {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Its project.
    pub project_name: String,
    /// When it was made.
    pub created_at: Time,
    /// Its state.
    pub status: ComputeGroupStatus,
    /// What the backend answered.
    pub provisioning_data: ComputeGroupProvisioningData,
}
