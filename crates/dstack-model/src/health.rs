//! Health of instances.

use dstack_units::Time;
use serde::Serialize;

use crate::Decode;
use crate::string_enum;

string_enum! {
    /// How an instance's accelerators are.
    pub enum HealthStatus {
        /// No findings.
        Healthy = "healthy",
        /// Findings that do not stop it from working.
        Warning = "warning",
        /// It should not be used.
        Failure = "failure",
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct HealthEvent {
    /// When.
    pub timestamp: Time,
    /// How bad.
    pub status: HealthStatus,
    /// What.
    pub message: String,
}

/// The findings of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct HealthCheck {
    /// When.
    pub collected_at: Time,
    /// The worst finding.
    pub status: HealthStatus,
    /// All findings.
    pub events: Vec<HealthEvent>,
}
