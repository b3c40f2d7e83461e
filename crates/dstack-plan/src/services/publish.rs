//! Where a service is reached, and which services can do without a gateway (dstack 0.22.5: `http-api` runs, services).

use dstack_model::configurations::AnyModel;
use dstack_model::configurations::service::{HttpsSetting, ServiceConfiguration};
use dstack_model::gateways::{AnyGatewayCertificate, GatewayConfiguration};
use dstack_model::interpolate::Interpolator;
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
    Ok(spec(service, url, format!("/proxy/models/{project}/")))
}

/// The addresses of a service at a gateway with this domain: host names below it.
///
/// # Errors
/// The gateway cannot do what the service asks for (status 400).
pub fn at_gateway(
    project: &str,
    run: &str,
    service: &ServiceConfiguration,
    gateway: &GatewayConfiguration,
    domain: &str,
) -> Result<ServiceSpec, PlanError> {
    check_model(service)?;
    let scheme = match speaks_tls(service, gateway)? {
        true => "https",
        false => "http",
    };
    let domain = domain_of(project, domain)?;
    let models = format!("{scheme}://gateway.{domain}");
    Ok(spec(service, format!("{scheme}://{run}.{domain}"), models))
}

/// Whether clients reach the service over TLS.
fn speaks_tls(service: &ServiceConfiguration, gateway: &GatewayConfiguration) -> Result<bool, PlanError> {
    let has_certificate = gateway.certificate.is_some();
    let wanted = match service.https {
        Some(HttpsSetting::Flag(wanted)) => wanted,
        Some(HttpsSetting::Auto) => has_certificate,
        None => true,
    };
    let is_at_load_balancer = !matches!(
        gateway.certificate,
        None | Some(AnyGatewayCertificate::LetsEncrypt(_))
    );
    match wanted {
        true if !has_certificate => Err(PlanError::new(
            "The gateway has no certificate (`certificate: null`), and the service is to be reached over HTTPS. Set `https: false` or \
             `https: auto` in the service configuration",
        )),
        false if is_at_load_balancer => Err(PlanError::new(
            "The load balancer of the gateway answers over HTTPS only. Remove `https: false` from the service configuration",
        )),
        wanted => Ok(wanted),
    }
}

/// The domain of the services of a project, of that of the gateway, which may begin with `*.` and name the project.
fn domain_of(project: &str, domain: &str) -> Result<String, PlanError> {
    let known = Interpolator::default().namespace("run", [("project_name", project)]);
    let domain = known.interpolate(domain);
    let domain = domain.map_err(|error| PlanError::new(format!("The domain of the gateway: {error}")))?;
    Ok(domain.strip_prefix("*.").unwrap_or(&domain).to_lowercase())
}

fn spec(service: &ServiceConfiguration, url: String, models: String) -> ServiceSpec {
    let base_url = match &service.model {
        Some(AnyModel::OpenAi(model)) => format!("{}{}", url.trim_end_matches('/'), model.prefix),
        Some(AnyModel::Tgi(_)) | None => models,
    };
    ServiceSpec {
        url,
        model: service.model.as_ref().map(|model| ServiceModelSpec {
            name: model.name().to_owned(),
            base_url,
            kind: "chat".to_owned(),
        }),
        options: service.model.as_ref().map(options).unwrap_or_default(),
        notice: None,
    }
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
    check_model(service)
}

fn check_model(service: &ServiceConfiguration) -> Result<(), PlanError> {
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

    fn gateway(more: &Value) -> GatewayConfiguration {
        let mut all = json!({"type": "gateway", "backend": "remote", "region": "f"});
        for (name, value) in more.as_object().unwrap() {
            all[name] = value.clone();
        }
        dstack_model::decode::decode_strict(&all).unwrap()
    }

    #[test]
    fn at_a_gateway_a_service_has_a_host_name() {
        let url = |service_more: &Value, gateway_more: &Value, domain: &str| {
            at_gateway(
                "Main",
                "web",
                &service(service_more),
                &gateway(gateway_more),
                domain,
            )
            .map(|spec| spec.url)
            .map_err(|error| error.to_string())
        };
        let (plain, bare) = (json!({}), json!({"certificate": null}));
        assert_eq!(
            url(&plain, &plain, "example.com").unwrap(),
            "https://web.example.com"
        );
        let of_project = "*.${{ run.project_name }}.Example.com";
        assert_eq!(
            url(&plain, &plain, of_project).unwrap(),
            "https://web.main.example.com"
        );
        assert_eq!(
            url(&json!({"https": false}), &plain, "e.com").unwrap(),
            "http://web.e.com"
        );
        assert_eq!(
            url(&json!({"https": "auto"}), &bare, "e.com").unwrap(),
            "http://web.e.com"
        );
        assert!(
            url(&plain, &bare, "e.com")
                .unwrap_err()
                .contains("has no certificate")
        );
        let limited = json!({"rate_limits": [{"rps": 1}]});
        assert!(url(&limited, &plain, "e.com").is_ok());
    }

    #[test]
    fn models_are_reached_at_the_service_or_the_host_of_models() {
        let base_url = |model: &Value| {
            let service = service(&json!({ "model": model }));
            let spec = at_gateway("main", "llm", &service, &gateway(&json!({})), "e.com").unwrap();
            spec.model.unwrap().base_url
        };
        assert_eq!(
            base_url(&json!({"format": "openai", "name": "m"})),
            "https://llm.e.com/v1"
        );
        let tgi = json!({"format": "tgi", "name": "m", "chat_template": "t", "eos_token": "e"});
        assert_eq!(base_url(&tgi), "https://gateway.e.com");
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
