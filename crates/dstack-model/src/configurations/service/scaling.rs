//! Autoscaling of a service, by requests per second and by other signals.

use dstack_units::{Range, Seconds};
use serde::Serialize;
use serde_json::{Value, json};

use super::signals::{self, ScalingSignal};
use crate::{Decode, tag};

tag!(
    /// The value of `metric`: requests per second.
    pub RpsTag = "rps"
);

/// The `target` of scaling rules that name none, having `signals` instead: no rule by requests per second, but that one replica stays as
/// long as requests come. Clients of dstack 0.22.5 demand a number.
pub const NO_RPS_TARGET: f64 = 1e9;

/// When replicas are added and removed.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(before = without_rps)]
pub struct ScalingSpec {
    /// The target metric to track: `rps` (requests per second). May be left out if there are `signals`.
    #[decode(implied)]
    pub metric: RpsTag,
    /// The target value of the metric. May be left out if there are `signals`.
    #[decode(implied, gt = 0)]
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
    /// What the number of replicas follows besides: it is as large as any of the rules needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[decode(default, check = signals::check_unique)]
    pub signals: Vec<ScalingSignal>,
    /// Where a replica answers with its metrics in the format of Prometheus. Defaults to `/metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(check = signals::check_path)]
    pub metrics_path: Option<String>,
}

impl ScalingSpec {
    /// The window, the default if unset.
    pub fn effective_window(&self) -> Seconds {
        self.window.unwrap_or(Seconds(60))
    }

    /// Where a replica answers with its metrics, the default if unset.
    pub fn metrics_path(&self) -> &str {
        self.metrics_path.as_deref().unwrap_or("/metrics")
    }
}

/// With `signals`, no target of requests per second is needed.
fn without_rps(value: &Value) -> Result<Option<Value>, String> {
    let Value::Object(map) = value else {
        return Ok(None);
    };
    let has_signals = map
        .get("signals")
        .and_then(Value::as_array)
        .is_some_and(|signals| !signals.is_empty());
    if !has_signals || map.contains_key("target") {
        return Ok(None);
    }
    let mut map = map.clone();
    map.entry("metric").or_insert_with(|| json!("rps"));
    map.insert("target".to_owned(), json!(NO_RPS_TARGET));
    Ok(Some(Value::Object(map)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configurations::service::SignalMetric;
    use crate::decode::decode_strict;

    fn read(value: &Value) -> Result<ScalingSpec, String> {
        decode_strict(value).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn with_signals_no_target_of_requests_is_needed() {
        let signals = json!([
            {"metric": "concurrency", "target": 8},
            {"metric": "queue_length", "target": 2},
            {"metric": "time_to_first_token", "target": "500ms"},
        ]);
        let rules = read(&json!({"signals": signals, "metrics_path": "/prometheus"})).unwrap();
        assert_eq!(rules.target, NO_RPS_TARGET);
        let targets: Vec<_> = rules
            .signals
            .iter()
            .map(|signal| (signal.metric, signal.target))
            .collect();
        assert_eq!(
            targets,
            [
                (SignalMetric::Concurrency, 8.0),
                (SignalMetric::QueueLength, 2.0),
                (SignalMetric::TimeToFirstToken, 0.5),
            ]
        );
        let with_both = read(&json!({"metric": "rps", "target": 3, "signals": signals})).unwrap();
        assert_eq!(with_both.target, 3.0);
        for none in [json!({}), json!({"signals": []}), json!({"metric": "rps"})] {
            assert!(read(&none).unwrap_err().contains("target"), "{none}");
        }
    }

    /// As clients of dstack 0.22.5 read it: they demand `metric` and `target`, and know nothing of the others.
    #[test]
    fn what_is_written_has_what_older_clients_demand_and_is_read_again() {
        let rules = read(&json!({"signals": [{"metric": "time_to_first_token", "target": "2s"}]})).unwrap();
        let written = serde_json::to_value(&rules).unwrap();
        assert_eq!(written["metric"], "rps");
        assert_eq!(written["target"], json!(1_000_000_000.0));
        assert_eq!(
            written["signals"],
            json!([{"metric": "time_to_first_token", "target": 2.0}])
        );
        assert_eq!(read(&written).unwrap(), rules);
        let plain = serde_json::to_value(read(&json!({"metric": "rps", "target": 1})).unwrap()).unwrap();
        assert!(plain.get("signals").is_none() && plain.get("metrics_path").is_none());
    }

    #[test]
    fn signals_that_mean_nothing_are_refused() {
        let signals = |signals: Value| read(&json!({"signals": signals})).unwrap_err();
        for (wrong, said) in [
            (json!([{"metric": "gpu_use", "target": 1}]), "gpu_use"),
            (json!([{"metric": "concurrency", "target": 0}]), "greater than 0"),
            (
                json!([{"metric": "concurrency", "target": "2s"}]),
                "only times have units",
            ),
            (
                json!([{"metric": "time_to_first_token", "target": "2h"}]),
                "`500ms`",
            ),
            (
                json!([{"metric": "time_to_first_token", "target": "-1s"}]),
                "`500ms`",
            ),
            (
                json!([{"metric": "concurrency", "target": 1}, {"metric": "concurrency", "target": 2}]),
                "only one signal",
            ),
        ] {
            let error = signals(wrong.clone());
            assert!(error.contains(said), "{wrong}: {error}");
        }
        for path in ["metrics", "/a b", "/metr\u{e9}"] {
            let one = json!([{"metric": "queue_length", "target": 1}]);
            let error = read(&json!({"signals": one, "metrics_path": path})).unwrap_err();
            assert!(error.contains("metrics_path"), "{path}: {error}");
        }
    }
}
