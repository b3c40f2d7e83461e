//! Health of instances.

use dstack_units::Time;
use serde::Serialize;

use crate::Decode;
use crate::string_enum;

string_enum! {
    /// How an instance's accelerators are.
    pub enum HealthStatus {
        /// The last check found nothing.
        Healthy = "healthy",
        /// Findings that do not stop it from working.
        Warning = "warning",
        /// It should not be used.
        Failure = "failure",
    }
}

/// One finding of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct HealthEvent {
    /// When it was found.
    pub timestamp: Time,
    /// How bad the finding is.
    pub status: HealthStatus,
    /// What was found, for people.
    pub message: String,
}

/// The findings of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct HealthCheck {
    /// When the check was made.
    pub collected_at: Time,
    /// The worst finding.
    pub status: HealthStatus,
    /// All findings of the check.
    pub events: Vec<HealthEvent>,
}
