//! Where a service is reached, and which services can do without a gateway (dstack 0.22.5: `http-api` runs, services).

use dstack_model::configurations::AnyModel;
use dstack_model::configurations::service::{HttpsSetting, ServiceConfiguration};
use dstack_model::runs::{ServiceModelSpec, ServiceSpec};
use serde_json::{Map, Value, json};

use crate::PlanError;

/// The addresses of a service that this server itself passes requests on to: paths below the server's own URL.
///
/// # Errors
/// The service asks for what only a gateway does, with dstack 0.22.5's texts (status 400).
pub fn without_gateway(
    project: &str,
    run: &str,
    service: &ServiceConfiguration,
) -> Result<ServiceSpec, PlanError> {
    check(service)?;
    let url = format!("/proxy/services/{project}/{run}/");
    let base_url = match &service.model {
        Some(AnyModel::OpenAi(model)) => format!("{}{}", url.trim_end_matches('/'), model.prefix),
        Some(AnyModel::Tgi(_)) | None => format!("/proxy/models/{project}/"),
    };
    Ok(ServiceSpec {
        url,
        model: service.model.as_ref().map(|model| ServiceModelSpec {
            name: model.name().to_owned(),
            base_url,
            kind: "chat".to_owned(),
        }),
        options: service.model.as_ref().map(options).unwrap_or_default(),
        notice: None,
    })
}

fn check(service: &ServiceConfiguration) -> Result<(), PlanError> {
    // Clients before 0.20.12 send `true` when nothing is configured.
    if service.https == Some(HttpsSetting::Flag(false)) {
        return Err(PlanError::new(
            "Setting `https: False` is not allowed without a gateway. Please configure a gateway or remove the `https` \
             property from the service configuration",
        ));
    }
    if !service.rate_limits.is_empty() {
        return Err(PlanError::new(
            "Rate limits are not supported when running services without a gateway. Please configure a gateway or remove \
             `rate_limits` from the service configuration",
        ));
    }
    match &service.model {
        // dstack 0.22.5 asks huggingface.co for what is missing.
        Some(AnyModel::Tgi(model)) if model.chat_template.is_none() || model.eos_token.is_none() => {
            Err(PlanError::new(
                "A model with `format: tgi` needs `chat_template` and `eos_token`: this server does not look them up. Set both, \
                 or use `format: openai`, which the text-generation-inference image serves as well",
            ))
        }
        _ => Ok(()),
    }
}

/// What the model API is told about the model.
fn options(model: &AnyModel) -> Map<String, Value> {
    Map::from_iter([("openai".to_owned(), json!({ "model": model }))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::testing::service;

    fn refusal(more: &Value) -> String {
        without_gateway("main", "web", &service(more))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_plain_service_has_a_path() {
        let spec =
            without_gateway("main", "web", &service(&json!({"https": "auto", "replicas": 3}))).unwrap();
        assert_eq!(spec.url, "/proxy/services/main/web/");
        assert!(spec.model.is_none() && spec.options.is_empty());
    }

    #[test]
    fn models_are_reached_below_the_service_or_at_the_models_api() {
        let openai = service(&json!({"model": {"format": "openai", "name": "m", "prefix": "/api"}}));
        let spec = without_gateway("main", "llm", &openai).unwrap();
        assert_eq!(spec.model.unwrap().base_url, "/proxy/services/main/llm/api");
        assert_eq!(spec.options["openai"]["model"]["prefix"], "/api");
        let tgi = json!({"format": "tgi", "name": "m", "chat_template": "t", "eos_token": "e"});
        let spec = without_gateway("main", "llm", &service(&json!({"model": tgi}))).unwrap();
        assert_eq!(spec.model.unwrap().base_url, "/proxy/models/main/");
    }

    /// dstack 0.22.5 scales services with a gateway only.
    #[test]
    fn a_service_scales_without_a_gateway() {
        let scaling = json!({"replicas": "0..2", "scaling": {"metric": "rps", "target": 1}});
        without_gateway("main", "web", &service(&scaling)).unwrap();
    }

    #[test]
    fn what_only_a_gateway_does_is_refused() {
        assert!(refusal(&json!({"https": false})).starts_with("Setting `https: False` is not allowed"));
        let limits = json!({"rate_limits": [{"rps": 1}]});
        assert!(refusal(&limits).starts_with("Rate limits are not supported"));
        let tgi = json!({"model": {"format": "tgi", "name": "m", "eos_token": "e"}});
        assert!(refusal(&tgi).contains("needs `chat_template` and `eos_token`"));
    }
}
