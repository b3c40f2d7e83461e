//! Fleets: lists, plans, deleting.

mod apply;
mod plan;
mod ssh;
mod validate;

pub(crate) use ssh::sealed as sealed_fleet;

use dstack_api::routes;
use dstack_model::fleets::{Fleet, FleetStatus};
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::requests::{
    DeleteFleetInstancesRequest, GetFleetRequest, ListFleetsRequest, ListImportedRequest, NamesRequest,
};
use dstack_store::directory::lists::{self, ListedFleet};
use dstack_store::directory::{Page, exports};
use dstack_store::rows::InstanceRow;
use dstack_store::{Changes, Commit, EngineStore, StoreError};
use dstack_units::FleetId;

use super::projects::visible_projects;
use crate::access::Project;
use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result};
use crate::render::fleets::fleet;
use crate::state::AppState;

/// Fleets of a project are not paged.
const ALL: i64 = 1_000_000;
const ATTEMPTS: usize = 8;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::FleetsList, _, _>(list_all)
        .on::<routes::ProjectFleetsList, _, _>(list)
        .on::<routes::FleetsGet, _, _>(get)
        .on::<routes::FleetsGetPlan, _, _>(plan::get_plan)
        .on::<routes::FleetsApply, _, _>(apply::apply)
        .on::<routes::FleetsDelete, _, _>(delete)
        .on::<routes::FleetsDeleteInstances, _, _>(delete_instances)
}

async fn list_all(call: Call, request: ListFleetsRequest) -> Result<Vec<Fleet>> {
    let state = &call.state;
    let pool = state.database.pool();
    let visible = visible_projects(&call, request.project_name.as_ref().map(std::slice::from_ref)).await?;
    let page = Page {
        prev_at: request.prev_created_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    let found = lists::fleets(pool, Some(&visible), request.only_active, &page).await?;
    with_instances(state, &found).await
}

async fn list(call: Call, request: ListImportedRequest) -> Result<Vec<Fleet>> {
    let (pool, project) = (call.state.database.pool(), call.project()?.row.id);
    let mut found = lists::fleets(pool, Some(&[project]), true, &Page::newest(ALL)).await?;
    if request.include_imported {
        let ids = exports::imported_fleets(pool, project).await?;
        found.extend(lists::fleets_by_ids(pool, &ids).await?);
    }
    with_instances(&call.state, &found).await
}

async fn with_instances(state: &AppState, found: &[ListedFleet]) -> Result<Vec<Fleet>> {
    let ids: Vec<FleetId> = found.iter().map(|listed| listed.fleet.id).collect();
    let instances = lists::instances_of_fleets(state.database.pool(), &ids).await?;
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
    let (pool, project) = (call.state.database.pool(), call.project()?.row.id);
    let found = match (request.id, &request.name) {
        (Some(id), _) => lists::fleet_by_id(pool, project, id).await?,
        (None, Some(name)) => lists::fleet_by_name(pool, project, name).await?,
        (None, None) => None,
    };
    check_importer(&call, found.as_ref().map(|found| found.fleet.id)).await?;
    if request.id.is_none() && request.name.is_none() {
        return Err(ApiError::client("name or id must be specified"));
    }
    let found = found.ok_or_else(ApiError::not_exists)?;
    with_instances(&call.state, &[found])
        .await?
        .pop()
        .ok_or_else(ApiError::not_exists)
}

/// SSH fleets may be reserved to admins.
fn check_ssh_permission(call: &Call) -> Result<()> {
    let allowed = call.state.permissions.get().allow_non_admins_manage_ssh_fleets
        || call.project()?.is_admin(call.user()?);
    if allowed {
        Ok(())
    } else {
        Err(ApiError::Forbidden("Access denied".to_owned()))
    }
}

async fn delete(call: Call, request: NamesRequest) -> Result<()> {
    let project = call.project()?.row.id;
    for listed in lists::fleets_by_names(call.state.database.pool(), project, &request.names).await? {
        terminate(&call, &listed, None).await?;
    }
    Ok(())
}

async fn delete_instances(call: Call, request: DeleteFleetInstancesRequest) -> Result<()> {
    let project = call.project()?.row.id;
    let found = lists::fleets_by_names(call.state.database.pool(), project, &[request.name]).await?;
    for listed in found {
        terminate(&call, &listed, Some(&request.instance_nums)).await?;
    }
    Ok(())
}

/// Ends a fleet, or some of its instances: refused while jobs run there.
async fn terminate(call: &Call, listed: &ListedFleet, nums: Option<&[i64]>) -> Result<()> {
    if listed.fleet.local {
        return Err(ApiError::client(format!(
            "Fleet {} is this server's own machine. Start the server with --no-local to do without it.",
            listed.fleet.name
        )));
    }
    if listed.fleet.spec.configuration.ssh_config.is_some() {
        check_ssh_permission(call)?;
    }
    for _ in 0..ATTEMPTS {
        let commit = termination(call, listed.fleet.id, nums).await?;
        match call.state.engine.commit(commit).await {
            Err(error) if error.is_conflict() => {}
            other => return Ok(other?),
        }
    }
    Err(ApiError::client(format!(
        "Fleet {} is being processed currently. Try again later.",
        listed.fleet.name
    )))
}

async fn termination(call: &Call, id: FleetId, nums: Option<&[i64]>) -> Result<Commit> {
    let state = &call.state;
    let Some(snapshot) = state.store.fleet(id).await? else {
        return Ok(Commit::default());
    };
    let chosen = |row: &InstanceRow| nums.is_none_or(|nums| nums.contains(&row.instance_num));
    let busy = snapshot
        .instances
        .iter()
        .any(|row| chosen(row) && row.busy_blocks > 0);
    if busy || (nums.is_none() && !snapshot.active_runs.is_empty()) {
        return Err(ApiError::client(match nums {
            None => format!("Failed to delete fleet {}. Fleet is in use.", snapshot.fleet.name),
            Some(nums) => format!(
                "Failed to delete fleet {} instances {nums:?}. Fleet instances are in use.",
                snapshot.fleet.name
            ),
        }));
    }
    let now = state.clock.now();
    let mut changes = Changes::new(audit::by(state, call.user()?));
    for row in snapshot.instances.iter().filter(|row| chosen(row)) {
        let mut changed = row.clone();
        if row.status() == InstanceStatus::Terminated {
            // It is over, and need not be shown any more.
            changed.delete(now);
        } else if row.status().is_active() {
            let reason = InstanceTerminationReason::TerminatedByUser;
            changed.terminate(reason, None, now).map_err(StoreError::from)?;
        }
        changes.update(row, changed);
    }
    if nums.is_none() && snapshot.fleet.status() != FleetStatus::Terminating {
        let mut ending = snapshot.fleet.clone();
        ending.terminate(now).map_err(StoreError::from)?;
        changes.update(&snapshot.fleet, ending);
    }
    Ok(audit::kept_of(state, changes))
}
