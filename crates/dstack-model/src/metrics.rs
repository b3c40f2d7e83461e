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

/// What was counted of the requests to a service since whoever passes them on was started: by the server that is asked, and by the
/// gateways that answer it. Not part of dstack 0.22.5's API.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct ServiceMetrics {
    /// Requests that came within the last 60 seconds; `null`: somebody has not said so lately, or was just started.
    pub requests_last_minute: Option<i64>,
    /// Requests under way.
    pub requests_in_flight: i64,
    /// Connections that were upgraded, and are closed.
    pub responses_1xx: i64,
    /// Requests that succeeded.
    pub responses_2xx: i64,
    /// Requests that were sent elsewhere.
    pub responses_3xx: i64,
    /// Requests that were refused, or whose client went before the answer.
    pub responses_4xx: i64,
    /// Requests that failed.
    pub responses_5xx: i64,
    /// Time until the head of the answer.
    pub response_head_seconds: Percentiles,
    /// Time until the end of the answer.
    pub request_duration_seconds: Percentiles,
    /// Tokens of what the service's model was asked, as far as it says so.
    pub prompt_tokens: i64,
    /// Tokens of what it answered.
    pub completion_tokens: i64,
}

/// What so many percent of the times are below, in seconds, as exactly as the buckets that are counted allow; `null`: there were
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Decode)]
pub struct Percentiles {
    /// Half of them.
    pub p50: Option<f64>,
    /// 95 percent.
    pub p95: Option<f64>,
    /// 99 percent.
    pub p99: Option<f64>,
}
