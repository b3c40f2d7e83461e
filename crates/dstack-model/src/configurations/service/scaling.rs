//! Autoscaling of a service by requests per second.

use dstack_units::{Range, Seconds};
use serde::Serialize;

use crate::{Decode, tag};

tag!(
    /// The value of `metric`: requests per second.
    pub RpsTag = "rps"
);

/// When replicas are added and removed.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ScalingSpec {
    /// The target metric to track: `rps` (requests per second).
    pub metric: RpsTag,
    /// The target value of the metric.
    #[decode(gt = 0)]
    pub target: f64,
    /// The time window used to calculate requests per second: `30s`, `60s`, or `300s`. Defaults to `60s`.
    #[decode(check = check_window)]
    pub window: Option<Seconds>,
    /// The minimum time, in seconds, between a scaling event and the next scale-up decision.
    #[decode(default = Seconds(300))]
    pub scale_up_delay: Seconds,
    /// The minimum time, in seconds, between a scaling event and the next scale-down decision.
    #[decode(default = Seconds(600))]
    pub scale_down_delay: Seconds,
}

impl ScalingSpec {
    /// The window, the default if unset.
    pub fn effective_window(&self) -> Seconds {
        self.window.unwrap_or(Seconds(60))
    }
}

fn check_window(window: Option<Seconds>) -> Result<Option<Seconds>, String> {
    match window {
        Some(Seconds(30 | 60 | 300)) | None => Ok(window),
        Some(_) => Err("Window must be one of: `30s`, `60s`, `300s`".to_owned()),
    }
}

/// A range needs scaling rules, and a fixed number must not have any.
pub(super) fn check(replicas: &Range<i64>, scaling: Option<&ScalingSpec>) -> Result<(), String> {
    match (replicas.min == replicas.max, scaling) {
        (false, None) => Err("When you set `replicas` to a range, ensure to specify `scaling`.".to_owned()),
        (true, Some(_)) => Err("To use `scaling`, `replicas` must be set to a range.".to_owned()),
        _ => Ok(()),
    }
}
