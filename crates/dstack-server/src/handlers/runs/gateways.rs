//! The gateway that a service names.

use dstack_api::ErrorCode;
use dstack_model::configurations::service::GatewayChoice;
use dstack_model::runs::RunSpec;
use dstack_store::directory::gateways;

use crate::api::Call;
use crate::error::{ApiError, Result};

/// Refuses a gateway that neither the project nor one that exports to it has.
pub(super) async fn check_exists(call: &Call, spec: &RunSpec) -> Result<()> {
    let service = spec.configuration.service();
    let Some(GatewayChoice::Reference(wanted)) = service.and_then(|service| service.gateway.as_ref()) else {
        return Ok(());
    };
    let (pool, project) = (call.state.database.pool(), &call.project()?.row);
    let owner = wanted.project.as_deref().unwrap_or(&project.name);
    let found = match owner == project.name {
        true => gateways::by_name(pool, project.id, &wanted.name).await?,
        false => gateways::imported_by_name(pool, project.id, owner, &wanted.name).await?,
    };
    if found.is_some() {
        return Ok(());
    }
    let text = format!("Gateway {} does not exist in project {owner}", wanted.name);
    Err(ApiError::with_code(ErrorCode::ResourceNotExists, text))
}
