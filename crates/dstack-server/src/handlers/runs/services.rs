//! The gateway of a service.

use dstack_api::ErrorCode;
use dstack_control::{ControlError, Result};
use dstack_model::configurations::service::GatewayChoice;
use dstack_model::runs::RunSpec;
use dstack_store::Database;
use dstack_store::queries::gateways::ListedGateway;

use dstack_units::ProjectId;

/// Refuses a service whose gateway is not there, or that has none and must; dstack 0.22.5's texts.
pub(crate) async fn check_gateway(
    database: &Database,
    project: ProjectId,
    spec: &RunSpec,
    must_have_gateway: bool,
) -> Result<()> {
    let Some(service) = spec.configuration.service() else {
        return Ok(());
    };
    let missing = |text: String| Err(ControlError::with_code(ErrorCode::ResourceNotExists, text));
    match gateway(database, project, service.gateway.as_ref()).await? {
        Found::Gateway(gateway) => Err(no_gateways_yet(&gateway)),
        Found::Missing(text) => missing(text),
        Found::None if must_have_gateway => missing(
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

/// Gateways are kept and made, but no requests go through them yet.
fn no_gateways_yet(gateway: &ListedGateway) -> ControlError {
    ControlError::refused(format!(
        "Services behind a gateway are not supported by this server version yet, and this one would be published at gateway {}. Set \
         `gateway: false` to run it without.",
        gateway.row.name
    ))
}
