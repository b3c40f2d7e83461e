//! Metrics of jobs.

use dstack_units::Time;
use serde::Serialize;
use serde_json::Value;

use crate::Decode;

/// A measured quantity.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Metric {
    /// Name of the metric, such as `cpu_usage_percent`.
    pub name: String,
    /// When it was measured, newest first.
    pub timestamps: Vec<Time>,
    /// What was measured then.
    pub values: Vec<Value>,
}

/// The metrics of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct JobMetrics {
    /// All of them.
    pub metrics: Vec<Metric>,
}
