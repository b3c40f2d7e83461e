//! What a gateway must look like (the messages are those of dstack 0.22.5).

use dstack_compute::Registry;
use dstack_model::backends::BackendType;
use dstack_model::gateways::{AnyGatewayCertificate, GatewayConfiguration};
use dstack_model::interpolate::Interpolator;
use dstack_units::name::{RESOURCE_NAME_MESSAGE, is_resource_name};

use crate::error::{ControlError, Result};
use crate::volumes::{check_available, types};

/// Fields that may change while a gateway is there.
const CHANGEABLE: &[&str] = &["domain", "default", "replicas"];

/// Whether a gateway can be changed in these fields.
pub fn can_change(fields: &[String]) -> bool {
    fields.iter().all(|field| CHANGEABLE.contains(&field.as_str()))
}

/// Checks a gateway.
pub(super) fn check(
    registry: &Registry,
    max_replicas: i64,
    configuration: &GatewayConfiguration,
) -> Result<()> {
    let backend = configuration.backend;
    let supporting = registry.with(|capabilities| capabilities.gateways);
    // Hosts of SSH fleets are asked of no backend.
    let is_on_hosts = configuration.fleet().is_some();
    if !is_on_hosts {
        check_available(registry, backend)?;
    }
    if !is_on_hosts && !supporting.contains(&backend) {
        return refuse(format!(
            "Gateways are not supported for {backend} backend. Available backends with gateway support: {}.",
            types(&supporting)
        ));
    }
    if configuration
        .name
        .as_deref()
        .is_some_and(|name| !is_resource_name(name))
    {
        return refuse(RESOURCE_NAME_MESSAGE);
    }
    if let Some(domain) = &configuration.domain {
        let known = Interpolator::default().namespace("run", [("project_name", "example")]);
        if let Err(error) = known.interpolate(domain) {
            return refuse(format!("Cannot interpolate gateway domain name: {error}"));
        }
    }
    let private = registry.with(|capabilities| capabilities.gateways && capabilities.private_gateways);
    if !configuration.public_ip && !is_on_hosts && !private.contains(&backend) {
        return refuse(format!(
            "Private gateways are not supported for {backend} backend.  Available backends with private gateway \
             support: {}.",
            types(&private)
        ));
    }
    let replicas = configuration.replicas.unwrap_or(1);
    if replicas > max_replicas {
        return refuse(format!(
            "Cannot provision {replicas} gateway replicas. This server allows at most {max_replicas}"
        ));
    }
    check_load_balancer(registry, configuration)?;
    check_certificate(configuration, replicas)
}

fn refuse<T>(text: impl Into<String>) -> Result<T> {
    Err(ControlError::refused(text))
}

fn check_load_balancer(registry: &Registry, configuration: &GatewayConfiguration) -> Result<()> {
    use AnyGatewayCertificate::{Acm, GcpCm};
    if !configuration.has_load_balancer() {
        return Ok(());
    }
    let backend = configuration.backend;
    match (backend, &configuration.certificate) {
        (BackendType::Aws, None | Some(Acm(_))) | (BackendType::Gcp, None | Some(GcpCm(_))) => {}
        (BackendType::Aws, Some(_)) => {
            return refuse(
                "`load_balancer: { type: alb }` can only be used with `certificate: null` or `certificate: { type: acm }`",
            );
        }
        (BackendType::Gcp, Some(_)) if configuration.load_balancer.is_some() => {
            return refuse(
                "`load_balancer: { type: alb }` for the `gcp` backend can only be used with `certificate: null` or \
                 `certificate: { type: gcp-cm }`",
            );
        }
        _ if configuration.load_balancer.is_some() => {
            return refuse("`load_balancer: { type: alb }` is supported for `aws` and `gcp` backends only");
        }
        // Its certificate is refused.
        _ => return Ok(()),
    }
    let able = registry.with(|capabilities| capabilities.load_balancers);
    if !able.contains(&backend) {
        return refuse(format!(
            "This server version makes no load balancers for {backend} gateways: leave `load_balancer` out, and set `certificate: \
             {{ type: lets-encrypt }}` or `certificate: null`"
        ));
    }
    Ok(())
}

fn check_certificate(configuration: &GatewayConfiguration, replicas: i64) -> Result<()> {
    use AnyGatewayCertificate::{Acm, GcpCm, LetsEncrypt};
    let backend = configuration.backend;
    match &configuration.certificate {
        Some(LetsEncrypt(_)) if !configuration.public_ip => {
            refuse("lets-encrypt certificate type is not supported for private gateways")
        }
        Some(LetsEncrypt(_)) if replicas > 1 => {
            let instead = match backend {
                BackendType::Aws => " or `certificate: { type: acm, arn: <arn> }` (AWS ACM)",
                BackendType::Gcp => {
                    " or `certificate: { type: gcp-cm, name: <name> }` (GCP Certificate Manager)"
                }
                _ => "",
            };
            refuse(format!(
                "The `lets-encrypt` certificate type is not supported for gateways with `replicas` greater than `1`. To \
                 create a replicated gateway, set the `certificate` configuration property to one of the supported \
                 values, such as `certificate: null` (no HTTPS){instead}"
            ))
        }
        Some(Acm(_)) if backend != BackendType::Aws => {
            refuse("acm certificate type is supported for aws backend only")
        }
        Some(GcpCm(_)) if backend != BackendType::Gcp => {
            refuse("gcp-cm certificate type is supported for gcp backend only")
        }
        Some(GcpCm(_)) if configuration.load_balancer.is_none() => {
            refuse("`certificate: { type: gcp-cm }` requires `load_balancer: { type: alb }`")
        }
        _ => Ok(()),
    }
}
