//! Gateways: plans, creating and changing, the default of a project.

use dstack_api::routes;
use dstack_control::gateways::{SeenGateway, can_change, changed};
use dstack_model::common::ApplyAction;
use dstack_model::gateways::{Gateway, GatewayPlan, GatewayReplica, GatewaySpec};
use dstack_model::requests::{
    ApplyGatewayPlanRequest, CreateGatewayRequest, GetGatewayPlanRequest, ListImportedRequest, NameRequest,
    NamesRequest, SetDefaultGatewayRequest, SetWildcardDomainRequest,
};
use dstack_plan::lifecycle::WaitReason;
use dstack_store::queries::gateways::ListedGateway;
use dstack_store::rows::{GatewayReplicaRow, GatewayRow};
use dstack_units::GatewayId;

use crate::api::{Api, Call};
use crate::compat;
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

async fn list(call: Call, request: ListImportedRequest) -> Result<Vec<Gateway>> {
    let database = &call.state.data.database;
    let found = database
        .gateways()
        .list(call.project()?.row.id, request.include_imported)
        .await?;
    shown(&call, found).await
}

async fn get(call: Call, request: NameRequest) -> Result<Gateway> {
    let project = call.project()?;
    let found = call
        .state
        .data
        .database
        .gateways()
        .by_name(project.row.id, &request.name)
        .await?;
    if !project.row.is_public && !project.is_member(call.user()?) {
        // A member of a project that imports it may see it, and nobody else may know that it is there.
        let id = found.as_ref().map(|found| found.row.id);
        if !super::exports::imports_gateway(&call, id).await? {
            return Err(ApiError::Denied);
        }
    }
    one(&call, found.ok_or_else(ApiError::not_exists)?).await
}

/// As the API shows gateways to the project.
async fn shown(call: &Call, found: Vec<ListedGateway>) -> Result<Vec<Gateway>> {
    let database = &call.state.data.database;
    let default = database.gateways().default_id(call.project()?.row.id).await?;
    let ids: Vec<GatewayId> = found.iter().map(|listed| listed.row.id).collect();
    let replicas = database.gateways().replicas(&ids).await?;
    let mut gateways: Vec<Gateway> = found
        .into_iter()
        .map(|listed| gateway(listed, &replicas, default))
        .collect();
    for gateway in &mut gateways {
        compat::gateway(gateway, &call.version);
    }
    Ok(gateways)
}

async fn one(call: &Call, found: ListedGateway) -> Result<Gateway> {
    let shown = shown(call, vec![found]).await?.pop();
    shown.ok_or_else(ApiError::not_exists)
}

fn gateway(listed: ListedGateway, replicas: &[GatewayReplicaRow], default: Option<GatewayId>) -> Gateway {
    let row = listed.row;
    let is_default = default == Some(row.id);
    let mut configuration = (*row.configuration).clone();
    configuration.default = Some(is_default);
    let trouble = || row.waiting_for().and_then(WaitReason::trouble);
    let status = row.status();
    let status_message = row.status_message().map(str::to_owned).or_else(trouble);
    Gateway {
        id: row.id,
        name: row.name,
        project_name: listed.project_name,
        configuration,
        created_at: row.created_at,
        status,
        status_message,
        hostname: row.hostname,
        wildcard_domain: row.wildcard_domain,
        default: is_default,
        replicas: replicas
            .iter()
            .filter(|replica| replica.gateway_id == row.id)
            .map(replica)
            .collect(),
        backend: None,
        region: None,
        ip_address: None,
        instance_id: None,
    }
}

fn replica(row: &GatewayReplicaRow) -> GatewayReplica {
    let data = row.provisioning_data.as_deref();
    let trouble = || row.waiting_for().and_then(WaitReason::trouble);
    GatewayReplica {
        hostname: data.map(|data| data.ip_address.clone()),
        replica_num: u32::try_from(row.replica_num).unwrap_or(0),
        backend: Some(row.configuration.backend),
        region: data.map(|data| data.region.clone()),
        created_at: row.created_at,
        status: row.status(),
        status_message: row.status_message().map(str::to_owned).or_else(trouble),
    }
}

async fn get_plan(call: Call, request: GetGatewayPlanRequest) -> Result<GatewayPlan> {
    let mut spec = request.spec;
    compat::gateway_request(&mut spec.configuration, &call.version);
    let effective = call.state.edge.plugins.on_apply(&call, spec.clone()).await?;
    let verbs = &call.state.control.gateways;
    verbs.check(&effective.configuration)?;
    let mut action = ApplyAction::Create;
    let mut current = None;
    if let Some(name) = &effective.configuration.name
        && let Some(found) = verbs.changeable(call.project()?.row.id, name).await?
    {
        let gateway = one(&call, found).await?;
        if can_change(&changed(&gateway.configuration, &effective.configuration)) {
            action = ApplyAction::Update;
        }
        current = Some(gateway);
    }
    let mut plan = GatewayPlan {
        project_name: call.project()?.row.name.clone(),
        user: call.user()?.name.clone(),
        effective_spec: effective,
        spec,
        current_resource: current,
        action,
    };
    compat::gateway_plan(&mut plan, &call.version);
    Ok(plan)
}

async fn apply(call: Call, request: ApplyGatewayPlanRequest) -> Result<Gateway> {
    let mut spec = request.plan.spec;
    compat::gateway_request(&mut spec.configuration, &call.version);
    let configuration = call.state.edge.plugins.on_apply(&call, spec).await?.configuration;
    let seen = request.plan.current_resource.map(|seen| SeenGateway {
        id: seen.id,
        configuration: seen.configuration,
    });
    let (verbs, project) = (&call.state.control.gateways, &call.project()?.row);
    let row = verbs
        .apply(
            call.user()?,
            project,
            &configuration,
            seen.as_ref(),
            request.force,
        )
        .await?;
    stored(&call, row).await
}

/// What this call has stored, not what has become of it meanwhile.
async fn stored(call: &Call, row: GatewayRow) -> Result<Gateway> {
    let project_name = call.project()?.row.name.clone();
    one(call, ListedGateway { row, project_name }).await
}

async fn create(call: Call, request: CreateGatewayRequest) -> Result<Gateway> {
    let mut spec = GatewaySpec {
        configuration: request.configuration,
        configuration_path: None,
    };
    compat::gateway_request(&mut spec.configuration, &call.version);
    let configuration = call.state.edge.plugins.on_apply(&call, spec).await?.configuration;
    let (verbs, project) = (&call.state.control.gateways, &call.project()?.row);
    let row = verbs.create(call.user()?, project, &configuration).await?;
    stored(&call, row).await
}

async fn delete(call: Call, request: NamesRequest) -> Result<()> {
    let verbs = &call.state.control.gateways;
    Ok(verbs
        .delete(call.user()?.into(), call.project()?.row.id, &request.names)
        .await?)
}

async fn set_default(call: Call, request: SetDefaultGatewayRequest) -> Result<()> {
    let (verbs, project) = (&call.state.control.gateways, &call.project()?.row);
    let owner = request.gateway_project.as_deref();
    Ok(verbs
        .set_default(call.user()?.into(), project, owner, &request.name)
        .await?)
}

async fn set_wildcard_domain(call: Call, request: SetWildcardDomainRequest) -> Result<Gateway> {
    let (verbs, project) = (&call.state.control.gateways, call.project()?.row.id);
    let (name, domain) = (&request.name, &request.wildcard_domain);
    verbs
        .set_wildcard_domain(call.user()?.into(), project, name, domain)
        .await?;
    let found = call.state.data.database.gateways().by_name(project, name).await?;
    one(&call, found.ok_or_else(ApiError::not_exists)?).await
}
