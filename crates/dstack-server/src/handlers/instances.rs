//! Handlers that list instances and show one with its health checks.

use dstack_api::routes;
use dstack_engine::health::shown;
use dstack_model::instances::{Instance, InstanceStatus};
use dstack_model::requests::{
    GetInstanceHealthChecksRequest, GetInstanceHealthChecksResponse, GetInstanceRequest, ListInstancesRequest,
};
use dstack_store::queries::Page;
use dstack_store::queries::views::InstanceFilter;

use super::fleets::check_importer;
use super::projects::visible_projects;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};
use crate::render::fleets::instance;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::InstancesList, _, _>(list)
        .on::<routes::InstancesGet, _, _>(get)
        .on::<routes::InstancesGetHealthChecks, _, _>(health_checks)
}

/// What `only_active` shows: instances that jobs can have, or have.
const ACTIVE: &[InstanceStatus] = &[InstanceStatus::Idle, InstanceStatus::Busy];

async fn list(call: Call, request: ListInstancesRequest) -> Result<Vec<Instance>> {
    let database = &call.state.data.database;
    let visible = visible_projects(&call, request.project_names.as_deref()).await?;
    let filter = InstanceFilter {
        projects: Some(visible),
        imported: request.include_imported,
        fleets: request.fleet_ids,
        statuses: request.only_active.then_some(ACTIVE),
    };
    let page = Page {
        prev_at: request.prev_created_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    Ok(database
        .views()
        .instances(&filter, &page)
        .await?
        .iter()
        .map(instance)
        .collect())
}

async fn get(call: Call, request: GetInstanceRequest) -> Result<Instance> {
    let project = call.project()?.row.id;
    let found = call
        .state
        .data
        .database
        .views()
        .instance_by_id(project, request.id)
        .await?;
    check_importer(&call, found.as_ref().and_then(|found| found.instance.fleet_id)).await?;
    found.as_ref().map(instance).ok_or_else(ApiError::not_exists)
}

async fn health_checks(
    call: Call,
    request: GetInstanceHealthChecksRequest,
) -> Result<GetInstanceHealthChecksResponse> {
    let database = &call.state.data.database;
    let fleet = database
        .views()
        .fleet_by_name(call.project()?.row.id, &request.fleet_name)
        .await?;
    let fleet = fleet.ok_or_else(ApiError::not_exists)?;
    let instances = database.views().instances_of_fleets(&[fleet.fleet.id]).await?;
    let instance = instances
        .iter()
        .find(|listed| listed.instance.instance_num == request.instance_num)
        .ok_or_else(ApiError::not_exists)?;
    let checks = database
        .health_checks()
        .list(instance.instance.id, request.after, request.before, request.limit)
        .await?;
    Ok(GetInstanceHealthChecksResponse {
        health_checks: checks.iter().map(shown).collect(),
    })
}
