//! The REST plugin: a service that sees every run, fleet, volume and gateway before it is applied, and may change or refuse
//! it (dstack 0.22.5: `plugins: [rest_plugin]`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{Request, header};
use dstack_model::decode::{Decode, decode_strict};
use dstack_model::fleets::FleetSpec;
use dstack_model::gateways::GatewaySpec;
use dstack_model::runs::RunSpec;
use dstack_model::volumes::VolumeSpec;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::Call;
use crate::error::{ApiError, Result};
use crate::outbound::{Http, HttpError};
use crate::settings::Settings;

/// The only plugin that is not Python code.
const REST: &str = "rest_plugin";

/// Where the service is.
const SERVICE: &str = "DSTACK_PLUGIN_SERVICE_URI";

/// What a plugin may change or refuse.
pub(crate) trait Applied: Serialize + Decode {
    /// The last part of the path.
    const POLICY: &'static str;

    /// Leaves out fields that services written for older versions do not know, as dstack 0.22.5 does.
    fn trim(_spec: &mut Map<String, Value>) {}
}

fn drop_unset(spec: &mut Map<String, Value>, fields: &[&str]) {
    if let Some(Value::Object(configuration)) = spec.get_mut("configuration") {
        configuration.retain(|name, value| !(value.is_null() && fields.contains(&name.as_str())));
    }
}

impl Applied for RunSpec {
    const POLICY: &'static str = "on_run_apply";

    fn trim(spec: &mut Map<String, Value>) {
        drop_unset(spec, &["groups", "nodes"]);
    }
}

impl Applied for FleetSpec {
    const POLICY: &'static str = "on_fleet_apply";

    fn trim(spec: &mut Map<String, Value>) {
        spec.remove("autocreated");
    }
}

impl Applied for VolumeSpec {
    const POLICY: &'static str = "on_volume_apply";
}

impl Applied for GatewaySpec {
    const POLICY: &'static str = "on_gateway_apply";

    fn trim(spec: &mut Map<String, Value>) {
        drop_unset(spec, &["default", "load_balancer"]);
    }
}

/// The plugins in force.
#[derive(Debug)]
pub struct Plugins {
    enabled: AtomicBool,
    service: Option<String>,
    patience: Duration,
    http: Http,
}

impl Plugins {
    /// As the settings say; none is enabled until [`Plugins::enable`].
    pub fn new(settings: &Settings) -> Self {
        Self {
            enabled: AtomicBool::new(false),
            service: settings.plugin_service.clone(),
            patience: Duration::from_secs(settings.plugin_timeout),
            http: Http::default(),
        }
    }

    /// Those that `config.yml` names, from now on.
    pub fn enable(&self, names: &[String]) {
        let enabled = names.iter().any(|name| name == REST);
        self.enabled.store(enabled, Ordering::Relaxed);
        if enabled && self.service.is_none() {
            tracing::warn!("{REST} is enabled, but {SERVICE} is not set: nothing can be applied");
        }
        for plugin in names.iter().filter(|name| *name != REST) {
            tracing::warn!(
                plugin,
                "this plugin is ignored: Python code cannot be loaded. Put it behind {REST} (docs/plugins.md)"
            );
        }
    }

    /// Whether the service is asked.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// The specification as the service wants it.
    ///
    /// # Errors
    /// 400 with the service's reason, or what is wrong with the service.
    pub(crate) async fn on_apply<S: Applied>(&self, call: &Call, spec: S) -> Result<S> {
        if !self.is_enabled() {
            return Ok(spec);
        }
        let url = self.service.as_deref();
        let url = url.ok_or_else(|| ApiError::client(format!("{SERVICE} is not set")))?;
        let mut sent = serde_json::to_value(&spec).map_err(ApiError::internal)?;
        if let Value::Object(fields) = &mut sent {
            S::trim(fields);
        }
        let body = json!({"user": call.user()?.name, "project": call.project()?.row.name, "spec": sent});
        let answer = self.ask(url, S::POLICY, &body).await?;
        read(&answer)
    }

    async fn ask(&self, service: &str, policy: &str, body: &Value) -> Result<Vec<u8>> {
        let failed = |reason: &str| {
            tracing::error!(policy, "the plugin service failed: {reason}");
            ApiError::client("Request to the plugin service failed")
        };
        let request = Request::post(format!("{service}/apply_policies/{policy}"))
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| failed(&error.to_string()))?;
        let answer = tokio::time::timeout(self.patience, self.http.send(request)).await;
        let answer = answer.map_err(|_| failed("it did not answer in time"))?;
        let answer = answer.map_err(|error| match &error {
            HttpError::Failed(cause) if cause.is_connect() || cause.is_request() => {
                tracing::error!(
                    policy,
                    cause = cause as &dyn std::error::Error,
                    "the plugin service cannot be reached"
                );
                ApiError::client(format!("Could not connect to plugin service at {service}"))
            }
            other => failed(&other.to_string()),
        })?;
        match answer.status().is_success() {
            true => Ok(answer.into_body()),
            false => Err(failed(&format!("status {}", answer.status()))),
        }
    }
}

/// `{spec, error}`: there must be a specification also beside an error.
fn read<S: Applied>(answer: &[u8]) -> Result<S> {
    let invalid = |why: &str| {
        tracing::error!("the plugin service returned an invalid response: {why}");
        ApiError::client("Plugin service returned an invalid response")
    };
    let answer: Value = serde_json::from_slice(answer).map_err(|error| invalid(&error.to_string()))?;
    let spec = answer.get("spec").ok_or_else(|| invalid("there is no `spec`"))?;
    let spec = decode_strict(spec).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        invalid(&problems.join("; "))
    })?;
    match answer.get("error") {
        None | Some(Value::Null) => Ok(spec),
        Some(Value::String(reason)) if !reason.is_empty() => {
            Err(ApiError::client(format!("Apply request rejected: {reason}")))
        }
        Some(_) => Err(invalid("`error` is neither a text nor null")),
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::volumes::VolumeSpec;

    use super::*;

    fn refusal(answer: &Value) -> Option<String> {
        match read::<VolumeSpec>(answer.to_string().as_bytes()) {
            Ok(_) => None,
            Err(ApiError::Client { msg, .. }) => Some(msg),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn an_answer_has_a_valid_specification_and_maybe_a_reason() {
        let spec = json!({"configuration": {
            "type": "volume", "name": "v", "backend": "aws", "region": "eu-west-1", "size": "1GB",
        }});
        assert_eq!(refusal(&json!({"spec": spec})), None);
        assert_eq!(refusal(&json!({"spec": spec, "error": null, "more": 1})), None);
        let rejected = refusal(&json!({"spec": spec, "error": "no"}));
        assert_eq!(rejected.as_deref(), Some("Apply request rejected: no"));
        let mut unknown = spec.clone();
        unknown["configuration"]["colour"] = json!("red");
        for invalid in [
            json!({"error": "no"}),
            json!({"spec": null}),
            json!({"spec": unknown}),
            json!({"spec": spec, "error": ""}),
            json!({"spec": spec, "error": 5}),
            json!([1]),
            json!("text"),
        ] {
            let text = refusal(&invalid);
            assert_eq!(
                text.as_deref(),
                Some("Plugin service returned an invalid response"),
                "{invalid}"
            );
        }
        assert!(read::<VolumeSpec>(b"<h1>Hello</h1>").is_err());
    }

    #[test]
    fn new_fields_are_left_out_as_long_as_they_are_unset() {
        let mut spec = json!({"configuration": {"default": null, "load_balancer": null, "domain": null}});
        GatewaySpec::trim(spec.as_object_mut().unwrap());
        assert_eq!(spec, json!({"configuration": {"domain": null}}));
        let mut spec = json!({"configuration": {"nodes": 1, "groups": null}, "autocreated": false});
        RunSpec::trim(spec.as_object_mut().unwrap());
        assert_eq!(spec, json!({"configuration": {"nodes": 1}, "autocreated": false}));
        FleetSpec::trim(spec.as_object_mut().unwrap());
        assert_eq!(spec, json!({"configuration": {"nodes": 1}}));
    }
}
