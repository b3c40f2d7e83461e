//! The gateway of a service, and where it is reached.

use dstack_api::ErrorCode;
use dstack_model::configurations::service::GatewayChoice;
use dstack_model::runs::{RunSpec, ServiceSpec};
use dstack_plan::services::publish;
use dstack_store::directory::gateways::{self, ListedGateway};

use crate::api::Call;
use crate::error::{ApiError, Result};

/// Refuses a service whose gateway is not there, or that has none and must; dstack 0.22.5's texts.
pub(super) async fn check_gateway(call: &Call, spec: &RunSpec) -> Result<()> {
    let Some(service) = spec.configuration.service() else {
        return Ok(());
    };
    let missing = |text: String| Err(ApiError::with_code(ErrorCode::ResourceNotExists, text));
    match gateway(call, service.gateway.as_ref()).await? {
        Found::Gateway(gateway) => Err(no_gateways_yet(&gateway)),
        Found::Missing(text) => missing(text),
        Found::None if call.state.settings.forbid_services_without_gateway => missing(
            "This dstack-server installation forbids services without a gateway. Please configure a gateway."
                .to_owned(),
        ),
        Found::None => Ok(()),
    }
}

enum Found {
    Gateway(Box<ListedGateway>),
    /// The service goes without.
    None,
    /// It asks for one that is not there: why.
    Missing(String),
}

async fn gateway(call: &Call, choice: Option<&GatewayChoice>) -> Result<Found> {
    let (pool, project) = (call.state.database.pool(), &call.project()?.row);
    let (found, text) = match choice {
        Some(GatewayChoice::Flag(false)) => return Ok(Found::None),
        Some(GatewayChoice::Reference(wanted)) => {
            let owner = wanted.project.as_deref().unwrap_or(&project.name);
            let found = match owner == project.name {
                true => gateways::by_name(pool, project.id, &wanted.name).await?,
                false => gateways::imported_by_name(pool, project.id, owner, &wanted.name).await?,
            };
            let text = match &found {
                Some(_) => format!("Gateway {} was marked for deletion", wanted.name),
                None => format!("Gateway {} does not exist in project {owner}", wanted.name),
            };
            (found.filter(|found| !found.row.to_be_deleted), text)
        }
        Some(GatewayChoice::Flag(true)) | None => {
            let found = gateways::default_of(pool, project.id).await?;
            if found.is_none() && choice.is_none() {
                return Ok(Found::None);
            }
            let text = "The service requires a gateway, but there is no default gateway in the project";
            (found, text.to_owned())
        }
    };
    Ok(found.map_or(Found::Missing(text), |found| Found::Gateway(Box::new(found))))
}

/// Gateways are kept and made, but no requests go through them yet.
fn no_gateways_yet(gateway: &ListedGateway) -> ApiError {
    ApiError::client(format!(
        "Services behind a gateway are not supported by this server version yet, and this one would be published at gateway {}. Set \
         `gateway: false` to run it without.",
        gateway.row.name
    ))
}

/// Where the service is reached; `None`: the run is none.
pub(super) fn published(project: &str, spec: &RunSpec) -> Result<Option<ServiceSpec>> {
    let Some(service) = spec.configuration.service() else {
        return Ok(None);
    };
    let run = spec.run_name.as_deref().unwrap_or_default();
    Ok(Some(publish::without_gateway(project, run, service)?))
}
