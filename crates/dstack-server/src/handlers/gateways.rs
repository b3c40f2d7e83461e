//! Gateways: none can be made by this version, so there are none.

use dstack_api::{ErrorCode, routes};
use dstack_model::gateways::{Gateway, GatewayPlan};
use dstack_model::requests::{
    ApplyGatewayPlanRequest, CreateGatewayRequest, GetGatewayPlanRequest, ListImportedRequest, NameRequest,
    NamesRequest, SetDefaultGatewayRequest, SetWildcardDomainRequest,
};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::GatewaysList, _, _>(list)
        .on::<routes::GatewaysGet, _, _>(get)
        .on::<routes::GatewaysGetPlan, _, _>(get_plan)
        .on::<routes::GatewaysApply, _, _>(apply)
        .on::<routes::GatewaysCreate, _, _>(create)
        .on::<routes::GatewaysDelete, _, _>(delete)
        .on::<routes::GatewaysSetDefault, _, _>(set_default)
        .on::<routes::GatewaysSetWildcardDomain, _, _>(set_wildcard_domain)
}

fn unavailable() -> ApiError {
    ApiError::with_code(
        ErrorCode::BackendNotAvailable,
        "This server version has no backend with gateways yet.",
    )
}

async fn list(_: Call, _: ListImportedRequest) -> Result<Vec<Gateway>> {
    Ok(Vec::new())
}

async fn get(call: Call, _: NameRequest) -> Result<Gateway> {
    let project = call.project()?;
    if !project.row.is_public && !project.is_member(call.user()?) {
        return Err(ApiError::Denied);
    }
    Err(ApiError::not_exists())
}

async fn get_plan(_: Call, _: GetGatewayPlanRequest) -> Result<GatewayPlan> {
    Err(unavailable())
}

async fn apply(_: Call, _: ApplyGatewayPlanRequest) -> Result<Gateway> {
    Err(unavailable())
}

async fn create(_: Call, _: CreateGatewayRequest) -> Result<Gateway> {
    Err(unavailable())
}

/// Unknown names are ignored.
async fn delete(_: Call, _: NamesRequest) -> Result<()> {
    Ok(())
}

async fn set_default(_: Call, _: SetDefaultGatewayRequest) -> Result<()> {
    Err(ApiError::not_exists())
}

async fn set_wildcard_domain(_: Call, _: SetWildcardDomainRequest) -> Result<Gateway> {
    Err(ApiError::not_exists())
}
