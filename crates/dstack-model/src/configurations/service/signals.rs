//! What the number of replicas can follow besides requests per second.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::schema::{Schemas, any_of};
use crate::{Decode, string_enum};

string_enum! {
    /// What a signal measures.
    pub enum SignalMetric {
        /// Requests under way.
        Concurrency = "concurrency",
        /// Requests that wait in the replicas.
        QueueLength = "queue_length",
        /// Time until the first token of an answer.
        TimeToFirstToken = "time_to_first_token",
    }
}

impl SignalMetric {
    /// Whether replicas tell it themselves, on their pages of metrics.
    pub const fn is_on_page(self) -> bool {
        matches!(self, Self::QueueLength | Self::TimeToFirstToken)
    }
}

/// A signal, and what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Decode)]
pub struct ScalingSignal {
    /// `concurrency` (requests under way of each replica), `queue_length` (requests that wait in each replica), or
    /// `time_to_first_token` (how long clients wait for the first token, on average).
    pub metric: SignalMetric,
    /// What it should be at most; of a time seconds, or a text such as `500ms`.
    #[decode(before = in_seconds, gt = 0, schema = target_schema)]
    pub target: f64,
}

fn target_schema(_: &mut Schemas) -> Value {
    any_of(vec![json!({"type": "number"}), json!({"type": "string"})])
}

/// A time as text is as many seconds.
fn in_seconds(value: &Value, signal: &Map<String, Value>) -> Result<Option<Value>, String> {
    let Some(text) = value.as_str() else {
        return Ok(None);
    };
    let metric = signal.get("metric").and_then(Value::as_str);
    if metric != Some(SignalMetric::TimeToFirstToken.as_str()) {
        return match text.trim().parse::<f64>() {
            Ok(number) => Ok(Some(json!(number))),
            Err(_) => Err("Must be a number: only times have units".to_owned()),
        };
    }
    let seconds =
        seconds(text).ok_or("Must be a time such as `500ms`, `2s` or `1.5s`, or a number of seconds")?;
    Ok(Some(json!(seconds)))
}

fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("", 1.0)];
    let in_unit = |(unit, seconds): (&str, f64)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Some(number * seconds)
    };
    let read = units.into_iter().find_map(in_unit)?;
    (read.is_finite() && read > 0.0).then_some(read)
}

/// Of two rules by the same signal nobody would know which counts.
pub(super) fn check_unique(signals: Vec<ScalingSignal>) -> Result<Vec<ScalingSignal>, String> {
    let is_again = |(index, signal): (usize, &ScalingSignal)| {
        let mut earlier = signals.iter().take(index);
        earlier.any(|earlier| earlier.metric == signal.metric)
    };
    match signals.iter().enumerate().any(is_again) {
        true => Err("There can be only one signal of each metric".to_owned()),
        false => Ok(signals),
    }
}

/// As long as the path of a probe at most.
const MAX_PATH_LENGTH: usize = 2048;

pub(super) fn check_path(path: Option<String>) -> Result<Option<String>, String> {
    let is_path = |path: &str| {
        path.starts_with('/')
            && path.bytes().all(|byte| byte.is_ascii_graphic())
            && path.len() <= MAX_PATH_LENGTH
    };
    match path.as_deref().is_none_or(is_path) {
        true => Ok(path),
        false => {
            Err("Must be a path such as `/metrics`, of at most 2048 printable ASCII characters".to_owned())
        }
    }
}
