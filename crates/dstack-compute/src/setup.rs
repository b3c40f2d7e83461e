//! What a machine needs done before it can be a host.

use dstack_model::runs::JobProvisioningData;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is done on a machine before the agent is started there, besides what is done on all of them. It is a part of the
/// `backend_data` of the machine's place, beside what the backend has there for itself: what is not in it is not done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSetup {
    /// Docker is installed where it is missing: images of the cloud may lack it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub install_docker: bool,
}

impl MachineSetup {
    /// Of the machine at a place.
    pub fn of(place: &JobProvisioningData) -> Self {
        let data = place.backend_data.as_deref();
        data.and_then(|data| serde_json::from_str(data).ok())
            .unwrap_or_default()
    }

    /// The place of a machine that is set up so. What is not an object in `backend_data` is kept as it is.
    #[must_use]
    pub fn noted_in(self, place: JobProvisioningData) -> JobProvisioningData {
        let data = place.backend_data.as_deref().unwrap_or("{}");
        let (Ok(mut data), Ok(Value::Object(own))) = (
            serde_json::from_str::<Map<String, Value>>(data),
            serde_json::to_value(self),
        ) else {
            return place;
        };
        data.extend(own);
        JobProvisioningData {
            backend_data: (!data.is_empty()).then(|| Value::Object(data).to_string()),
            ..place
        }
    }
}
