//! Probes of services: defaults filled in.

use dstack_model::configurations::{HttpHeaderSpec, HttpMethod, ProbeConfig};
use dstack_model::runs::ProbeSpec;

/// Seconds; dstack 0.22.5's defaults.
const TIMEOUT: i64 = 10;
const INTERVAL: i64 = 15;
const MODEL_TIMEOUT: i64 = 30;

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
