//! HTTP probes of a service: what is requested, and how.

use dstack_units::Seconds;
use serde::Serialize;

use crate::{Decode, string_enum, tag};

tag!(
    /// The value of `type` for probes.
    pub HttpTag = "http"
);

string_enum! {
    /// Methods that a probe can use.
    literal pub enum HttpMethod {
        /// GET.
        Get = "get",
        /// POST.
        Post = "post",
        /// PUT.
        Put = "put",
        /// DELETE.
        Delete = "delete",
        /// PATCH.
        Patch = "patch",
        /// HEAD.
        Head = "head",
    }
}

/// A header of a probe's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct HttpHeaderSpec {
    /// The name of the HTTP header.
    #[decode(min_len = 1, max_len = 256)]
    pub name: String,
    /// The value of the HTTP header.
    #[decode(min_len = 1, max_len = 2048)]
    pub value: String,
}

/// How a replica is asked whether it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(after = check_body)]
pub struct ProbeConfig {
    /// The probe type. Must be `http`.
    #[serde(rename = "type")]
    pub kind: HttpTag,
    /// The URL to request. Defaults to `/`.
    #[decode(check = check_url)]
    pub url: Option<String>,
    /// The HTTP method to use for the probe. Defaults to `get`.
    pub method: Option<HttpMethod>,
    /// A list of HTTP headers to include in the request.
    #[decode(default, max_len = 16)]
    pub headers: Vec<HttpHeaderSpec>,
    /// The HTTP request body to send with the probe.
    #[decode(min_len = 1, max_len = 2048)]
    pub body: Option<String>,
    /// Maximum amount of time the HTTP request is allowed to take. Defaults to `10s`.
    #[decode(check = check_timeout)]
    pub timeout: Option<Seconds>,
    /// Minimum amount of time between the end of one probe execution and the start of the next. Defaults to `15s`.
    #[decode(check = check_interval)]
    pub interval: Option<Seconds>,
    /// The number of consecutive successful probe executions required for the replica to be considered ready.
    #[decode(ge = 1)]
    pub ready_after: Option<i64>,
    /// If `true`, the probe will stop being executed as soon as it reaches the `ready_after` threshold.
    pub until_ready: Option<bool>,
}

fn check_url(url: Option<String>) -> Result<Option<String>, String> {
    let Some(text) = &url else {
        return Ok(None);
    };
    if !text.starts_with('/') {
        return Err("Must start with `/`".to_owned());
    }
    if text.chars().count() > 2048 {
        return Err("Cannot be longer than 2048 characters".to_owned());
    }
    if text
        .chars()
        .any(|c| c.is_control() || (c.is_whitespace() && c != ' '))
    {
        return Err("Cannot contain non-printable characters".to_owned());
    }
    Ok(url)
}

fn check_timeout(timeout: Option<Seconds>) -> Result<Option<Seconds>, String> {
    if timeout.is_some_and(|timeout| timeout.0 < 1) {
        return Err("Probe timeout cannot be shorter than 1s".to_owned());
    }
    Ok(timeout)
}

fn check_interval(interval: Option<Seconds>) -> Result<Option<Seconds>, String> {
    if interval.is_some_and(|interval| interval.0 < 1) {
        return Err("Probe interval cannot be shorter than 1s".to_owned());
    }
    Ok(interval)
}

fn check_body(probe: ProbeConfig) -> Result<ProbeConfig, String> {
    match probe.method {
        Some(method @ (HttpMethod::Get | HttpMethod::Head)) if probe.body.is_some() => {
            Err(format!("Cannot set request body for the `{method}` method"))
        }
        _ => Ok(probe),
    }
}

pub(super) fn check_unique(probes: Option<Vec<ProbeConfig>>) -> Result<Option<Vec<ProbeConfig>>, String> {
    let list = probes.as_deref().unwrap_or_default();
    let repeated = list
        .iter()
        .enumerate()
        .any(|(index, probe)| list.iter().take(index).any(|earlier| earlier == probe));
    if repeated {
        Err("Probes must be unique".to_owned())
    } else {
        Ok(probes)
    }
}
