//! Probes of services: defaults filled in, and what follows from the answers.

use dstack_model::configurations::{HttpHeaderSpec, HttpMethod, ProbeConfig};
use dstack_model::runs::ProbeSpec;
use serde::{Deserialize, Serialize};

use crate::lifecycle::WaitReason;

/// Seconds; dstack 0.22.5's defaults.
const TIMEOUT: i64 = 10;
const INTERVAL: i64 = 15;
const MODEL_TIMEOUT: i64 = 30;

/// After so many failures of a probe in a row, a replica that was ready is given no more requests.
pub const MAX_FAILURES: i64 = 3;
/// As much is kept of what came instead of a success.
const MAX_FAILURE_CHARS: usize = 200;
/// As much of the path of a probe is shown.
const MAX_PATH_CHARS: usize = 80;

/// A probe as configured, with what was left out.
pub fn from_config(config: &ProbeConfig) -> ProbeSpec {
    ProbeSpec {
        kind: config.kind,
        url: config.url.clone().unwrap_or_else(|| "/".to_owned()),
        method: config.method.unwrap_or(HttpMethod::Get),
        headers: config.headers.clone(),
        body: config.body.clone(),
        timeout: config.timeout.map_or(TIMEOUT, |timeout| timeout.0),
        interval: config.interval.map_or(INTERVAL, |interval| interval.0),
        ready_after: config.ready_after.unwrap_or(1),
        until_ready: config.until_ready.unwrap_or(false),
    }
}

/// The probe of an OpenAI-compatible model: the shortest possible chat completion.
pub fn for_model(name: &str, prefix: &str) -> ProbeSpec {
    // Key order and blanks as dstack 0.22.5 sends them.
    let name = serde_json::Value::from(name);
    let body =
        format!(r#"{{"model": {name}, "messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 1}}"#);
    ProbeSpec {
        kind: Default::default(),
        url: format!("{}/chat/completions", prefix.trim_end_matches('/')),
        method: HttpMethod::Post,
        headers: vec![HttpHeaderSpec {
            name: "Content-Type".to_owned(),
            value: "application/json".to_owned(),
        }],
        body: Some(body),
        timeout: MODEL_TIMEOUT,
        interval: INTERVAL,
        ready_after: 1,
        until_ready: false,
    }
}

/// How a probe of a job went last, as far as it means something: a probe that goes on as before changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeState {
    /// Successes in a row, up to as many as are wanted.
    pub streak: i64,
    /// Failures in a row, up to [`MAX_FAILURES`].
    pub failures: i64,
    /// What came instead of a success the last time, if that was a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl ProbeState {
    /// With as many successes as are wanted.
    fn reached(spec: &ProbeSpec) -> Self {
        Self {
            streak: wanted(spec),
            ..Self::default()
        }
    }

    /// Whether it has succeeded as often as is wanted.
    pub fn is_reached(&self, spec: &ProbeSpec) -> bool {
        self.streak >= wanted(spec)
    }

    /// Whether it is not to be asked any more.
    pub fn is_over(&self, spec: &ProbeSpec) -> bool {
        spec.until_ready && self.is_reached(spec)
    }

    /// How it is after one more answer.
    #[must_use]
    pub fn after(&self, spec: &ProbeSpec, answer: Result<(), String>) -> Self {
        match answer {
            Ok(()) => Self {
                streak: (self.streak + 1).min(wanted(spec)),
                ..Self::default()
            },
            Err(failure) => Self {
                streak: 0,
                failures: (self.failures + 1).min(MAX_FAILURES),
                failure: Some(short(&failure, MAX_FAILURE_CHARS)),
            },
        }
    }
}

fn wanted(spec: &ProbeSpec) -> i64 {
    spec.ready_after.max(1)
}

/// On one line, and not longer than that.
fn short(text: &str, chars: usize) -> String {
    let printable = |char: char| if char.is_control() { ' ' } else { char };
    text.chars().take(chars).map(printable).collect()
}

/// How the probes of a job went last, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProbeStates(Vec<ProbeState>);

impl ProbeStates {
    /// None was asked yet.
    pub fn unasked(specs: &[ProbeSpec]) -> Self {
        Self(vec![ProbeState::default(); specs.len()])
    }

    /// Taken for ready until they say otherwise.
    pub fn assumed(specs: &[ProbeSpec]) -> Self {
        Self(specs.iter().map(ProbeState::reached).collect())
    }

    /// That of one of them; of one that is not known, as of one that was never asked.
    pub fn of(&self, index: usize) -> ProbeState {
        self.0.get(index).cloned().unwrap_or_default()
    }

    /// Changes one of them.
    pub fn set(&mut self, index: usize, state: ProbeState) {
        if self.0.len() <= index {
            self.0.resize(index + 1, ProbeState::default());
        }
        if let Some(known) = self.0.get_mut(index) {
            *known = state;
        }
    }

    /// Whether all have succeeded as often as is wanted, and the replica is ready.
    pub fn are_reached(&self, specs: &[ProbeSpec]) -> bool {
        self.unreached(specs).next().is_none()
    }

    /// Whether one of them has failed so often that the replica should get no requests.
    pub fn are_failing(&self) -> bool {
        self.0.iter().any(|state| state.failures >= MAX_FAILURES)
    }

    /// Those that are still to be asked.
    pub fn to_ask<'a>(&'a self, specs: &'a [ProbeSpec]) -> impl Iterator<Item = usize> + 'a {
        let specs = specs.iter().enumerate();
        specs
            .filter(|(index, spec)| !self.of(*index).is_over(spec))
            .map(|(index, _)| index)
    }

    /// Their successes in a row, as clients see them.
    pub fn streaks(&self, specs: &[ProbeSpec]) -> Vec<i64> {
        (0..specs.len()).map(|index| self.of(index).streak).collect()
    }

    /// What a replica waits for, so that it gets requests, or goes on getting them.
    pub fn awaited(&self, specs: &[ProbeSpec]) -> Option<WaitReason> {
        let (spec, state) = self.unreached(specs).next()?;
        Some(WaitReason::ProbeSucceeds {
            probe: name(spec),
            others: self.unreached(specs).count() - 1,
            error: state.failure,
        })
    }

    /// Which probe fails, and with what.
    pub fn failure(&self, specs: &[ProbeSpec]) -> Option<String> {
        let mut failing = self.unreached(specs).filter(|(_, state)| state.failures > 0);
        let (spec, state) = failing.next()?;
        Some(format!(
            "{}: {}",
            name(spec),
            state.failure.as_deref().unwrap_or("no success")
        ))
    }

    fn unreached<'a>(&'a self, specs: &'a [ProbeSpec]) -> impl Iterator<Item = (&'a ProbeSpec, ProbeState)> {
        let states = specs
            .iter()
            .enumerate()
            .map(|(index, spec)| (spec, self.of(index)));
        states.filter(|(spec, state)| !state.is_reached(spec))
    }
}

/// A probe for people: what it asks, without its query.
fn name(spec: &ProbeSpec) -> String {
    let path = spec.url.split('?').next().unwrap_or_default();
    format!(
        "{} {}",
        spec.method.as_str().to_uppercase(),
        short(path, MAX_PATH_CHARS)
    )
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::json;

    use super::*;

    fn spec(ready_after: i64, until_ready: bool) -> ProbeSpec {
        let spec = json!({"type": "http", "url": "/health?key=1", "timeout": 10, "interval": 15, "ready_after": ready_after,
            "until_ready": until_ready});
        decode_strict(&spec).unwrap()
    }

    #[test]
    fn a_probe_that_goes_on_as_before_changes_nothing() {
        let spec = spec(2, false);
        let first = ProbeState::default().after(&spec, Ok(()));
        assert!(!first.is_reached(&spec));
        let ready = first.after(&spec, Ok(()));
        assert!(ready.is_reached(&spec) && !ready.is_over(&spec));
        assert_eq!(ready.after(&spec, Ok(())), ready);
        let mut failing = ready;
        for failures in 1..=MAX_FAILURES {
            failing = failing.after(&spec, Err("status 500".to_owned()));
            assert_eq!((failing.streak, failing.failures), (0, failures));
        }
        assert_eq!(failing.after(&spec, Err("status 500".to_owned())), failing);
        assert_eq!(failing.after(&spec, Ok(())).failures, 0);
    }

    #[test]
    fn a_job_is_ready_when_all_its_probes_are() {
        let specs = [spec(1, true), spec(2, false)];
        let mut states = ProbeStates::unasked(&specs);
        assert_eq!(states.to_ask(&specs).collect::<Vec<_>>(), [0, 1]);
        states.set(0, states.of(0).after(&specs[0], Ok(())));
        assert_eq!(
            states.to_ask(&specs).collect::<Vec<_>>(),
            [1],
            "the first one only until it is ready"
        );
        assert!(!states.are_reached(&specs));
        assert_eq!(states.streaks(&specs), [1, 0]);
        for _ in 0..2 {
            states.set(1, states.of(1).after(&specs[1], Ok(())));
        }
        assert!(states.are_reached(&specs) && !states.are_failing());
        assert_eq!(states, ProbeStates::assumed(&specs));
        assert!(ProbeStates::default().are_reached(&[]), "no probes, always ready");
    }

    #[test]
    fn what_fails_is_named_with_what_came_instead() {
        let specs = [spec(1, false), spec(1, false)];
        let mut states = ProbeStates::unasked(&specs);
        let text = |states: &ProbeStates| states.awaited(&specs).unwrap().to_string();
        assert_eq!(text(&states), "its probe GET /health and another one to succeed");
        states.set(1, ProbeState::reached(&specs[1]));
        let long = format!("status\n500 {}", "é".repeat(1000));
        states.set(0, states.of(0).after(&specs[0], Err(long)));
        let text = text(&states);
        assert!(
            text.starts_with("its probe GET /health to succeed (last attempt: status 500 é"),
            "{text}"
        );
        assert!(text.chars().count() < 300, "{text}");
        assert!(
            states
                .failure(&specs)
                .unwrap()
                .starts_with("GET /health: status 500")
        );
    }

    #[test]
    fn states_of_later_versions_are_read_as_far_as_they_are_known() {
        let read: ProbeStates = serde_json::from_str(r#"[{"streak": 2, "since": 5}, {}]"#).unwrap();
        assert_eq!(
            (read.of(0).streak, read.of(1), read.of(7)),
            (2, ProbeState::default(), ProbeState::default())
        );
    }
}
