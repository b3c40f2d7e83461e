//! Fleets: lists, plans, deleting.

mod apply;
mod plan;

use dstack_api::routes;
use dstack_control::fleets::{FleetRights, TrustedHost};
use dstack_model::fleets::Fleet;
use dstack_model::requests::{
    DeleteFleetInstancesRequest, GetFleetRequest, ListFleetsRequest, ListImportedRequest, NamesRequest,
    TrustHostRequest,
};
use dstack_store::queries::Page;
use dstack_store::queries::views::{FleetFilter, ListedFleet};
use dstack_units::FleetId;

use super::projects::visible_projects;
use crate::access::Project;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};
use crate::render::fleets::fleet;
use crate::state::Data;

/// Fleets of a project are not paged.
const ALL: i64 = 1_000_000;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::FleetsList, _, _>(list_all)
        .on::<routes::ProjectFleetsList, _, _>(list)
        .on::<routes::FleetsGet, _, _>(get)
        .on::<routes::FleetsGetPlan, _, _>(plan::get_plan)
        .on::<routes::FleetsApply, _, _>(apply::apply)
        .on::<routes::FleetsDelete, _, _>(delete)
        .on::<routes::FleetsDeleteInstances, _, _>(delete_instances)
        .on::<routes::FleetsTrustHost, _, _>(trust_host)
}

async fn list_all(call: Call, request: ListFleetsRequest) -> Result<Vec<Fleet>> {
    let state = &call.state;
    let database = &state.data.database;
    let visible = visible_projects(&call, request.project_name.as_ref().map(std::slice::from_ref)).await?;
    let page = Page {
        prev_at: request.prev_created_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    let filter = FleetFilter {
        projects: Some(visible),
        imported: request.include_imported,
        only_active: request.only_active,
    };
    let found = database.views().fleets(&filter, &page).await?;
    with_instances(&state.data, &found).await
}

async fn list(call: Call, request: ListImportedRequest) -> Result<Vec<Fleet>> {
    let filter = FleetFilter {
        projects: Some(vec![call.project()?.row.id]),
        imported: request.include_imported,
        only_active: true,
    };
    let found = call
        .state
        .data
        .database
        .views()
        .fleets(&filter, &Page::newest(ALL))
        .await?;
    with_instances(&call.state.data, &found).await
}

async fn with_instances(data: &Data, found: &[ListedFleet]) -> Result<Vec<Fleet>> {
    let ids: Vec<FleetId> = found.iter().map(|listed| listed.fleet.id).collect();
    let instances = data.database.views().instances_of_fleets(&ids).await?;
    Ok(found.iter().map(|listed| fleet(listed, &instances)).collect())
}

/// The project, if the caller may see the fleet: as a member, or as a member of a project that imports it.
pub(super) async fn check_importer(call: &Call, fleet: Option<FleetId>) -> Result<&Project> {
    let project = call.project()?;
    match project.is_member(call.user()?) || super::exports::imports_fleet(call, fleet).await? {
        true => Ok(project),
        false => Err(ApiError::Denied),
    }
}

async fn get(call: Call, request: GetFleetRequest) -> Result<Fleet> {
    let (database, project) = (&call.state.data.database, call.project()?.row.id);
    let found = match (request.id, &request.name) {
        (Some(id), _) => database.views().fleet_by_id(project, id).await?,
        (None, Some(name)) => database.views().fleet_by_name(project, name).await?,
        (None, None) => None,
    };
    check_importer(&call, found.as_ref().map(|found| found.fleet.id)).await?;
    if request.id.is_none() && request.name.is_none() {
        return Err(ApiError::client("name or id must be specified"));
    }
    let found = found.ok_or_else(ApiError::not_exists)?;
    with_instances(&call.state.data, &[found])
        .await?
        .pop()
        .ok_or_else(ApiError::not_exists)
}

/// SSH fleets may be reserved to admins.
fn rights(call: &Call) -> Result<FleetRights> {
    let everyone = call
        .state
        .auth
        .permissions
        .get()
        .allow_non_admins_manage_ssh_fleets;
    Ok(FleetRights {
        ssh_fleets: everyone || call.project()?.is_admin(call.user()?),
    })
}

async fn delete(call: Call, request: NamesRequest) -> Result<()> {
    terminate(&call, &request.names, None).await
}

async fn delete_instances(call: Call, request: DeleteFleetInstancesRequest) -> Result<()> {
    terminate(&call, &[request.name], Some(&request.instance_nums)).await
}

async fn trust_host(call: Call, request: TrustHostRequest) -> Result<()> {
    let trusted = TrustedHost {
        project: call.project()?.row.id,
        fleet: request.name,
        instance_num: request.instance_num,
        host_key: request.host_key,
        jump_host: request.jump_host,
    };
    let (actor, rights) = (call.user()?.into(), rights(&call)?);
    Ok(call
        .state
        .control
        .fleets
        .trust_host(actor, rights, &trusted)
        .await?)
}

async fn terminate(call: &Call, names: &[String], nums: Option<&[i64]>) -> Result<()> {
    let (actor, project) = (call.user()?.into(), call.project()?.row.id);
    let verbs = &call.state.control.fleets;
    Ok(verbs
        .terminate(actor, rights(call)?, project, names, nums)
        .await?)
}
