//! The gateway of a service.

use dstack_api::ErrorCode;
use dstack_control::{ControlError, Result};
use dstack_model::configurations::service::GatewayChoice;
use dstack_model::gateways::GatewayStatus;
use dstack_model::runs::RunSpec;
use dstack_store::Database;
use dstack_store::queries::gateways::ListedGateway;
use dstack_store::rows::GatewayRow;

use dstack_units::ProjectId;

/// The gateway of a service. Refuses one that is not there or cannot take it, and none where there must be one; dstack 0.22.5's texts.
pub(crate) async fn gateway_of(
    database: &Database,
    project: ProjectId,
    spec: &RunSpec,
    must_have_gateway: bool,
) -> Result<Option<GatewayRow>> {
    let Some(service) = spec.configuration.service() else {
        return Ok(None);
    };
    let missing = |text: String| Err(ControlError::with_code(ErrorCode::ResourceNotExists, text));
    match gateway(database, project, service.gateway.as_ref()).await? {
        Found::Gateway(gateway) => {
            check_ready(&gateway.row)?;
            Ok(Some(gateway.row))
        }
        Found::Missing(text) => missing(text),
        Found::None if must_have_gateway => missing(
            "This dstack-server installation forbids services without a gateway. Please configure a gateway."
                .to_owned(),
        ),
        Found::None => Ok(None),
    }
}

/// Refuses a gateway that takes no services (now).
fn check_ready(row: &GatewayRow) -> Result<()> {
    let name = &row.name;
    if row.status() != GatewayStatus::Running {
        let status = row.status().to_string().to_uppercase();
        return Err(ControlError::refused(format!(
            "Gateway {name} is not running: its status is {status}. Wait until it runs, or set `gateway: false` to run the service \
             without a gateway"
        )));
    }
    if row.wildcard_domain.as_deref().unwrap_or_default().is_empty() {
        return Err(ControlError::refused(format!(
            "Gateway {name} has no domain: set `domain` in its configuration and apply it, or set `gateway: false` to run the service \
             without a gateway"
        )));
    }
    Ok(())
}

enum Found {
    Gateway(Box<ListedGateway>),
    /// The service goes without.
    None,
    /// It asks for one that is not there: why.
    Missing(String),
}

async fn gateway(database: &Database, project: ProjectId, choice: Option<&GatewayChoice>) -> Result<Found> {
    let (found, text) = match choice {
        Some(GatewayChoice::Flag(false)) => return Ok(Found::None),
        Some(GatewayChoice::Reference(wanted)) => {
            let own = database.projects().by_id(project).await?;
            let own = own.map(|row| row.name).unwrap_or_default();
            let owner = wanted.project.as_deref().unwrap_or(&own);
            let found = match owner == own {
                true => database.gateways().by_name(project, &wanted.name).await?,
                false => {
                    database
                        .gateways()
                        .imported_by_name(project, owner, &wanted.name)
                        .await?
                }
            };
            let text = match &found {
                Some(_) => format!("Gateway {} was marked for deletion", wanted.name),
                None => format!("Gateway {} does not exist in project {owner}", wanted.name),
            };
            (found.filter(|found| !found.row.to_be_deleted), text)
        }
        Some(GatewayChoice::Flag(true)) | None => {
            let found = database.gateways().default_of(project).await?;
            if found.is_none() && choice.is_none() {
                return Ok(Found::None);
            }
            let text = "The service requires a gateway, but there is no default gateway in the project";
            (found, text.to_owned())
        }
    };
    Ok(found.map_or(Found::Missing(text), |found| Found::Gateway(Box::new(found))))
}
