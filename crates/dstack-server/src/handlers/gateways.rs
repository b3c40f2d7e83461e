//! Gateways: plans, creating and changing, the default of a project.

mod validate;

use dstack_api::{ErrorCode, routes};
use dstack_model::common::ApplyAction;
use dstack_model::gateways::{
    Gateway, GatewayConfiguration, GatewayPlan, GatewayReplica, GatewaySpec, GatewayStatus,
};
use dstack_model::requests::{
    ApplyGatewayPlanRequest, CreateGatewayRequest, GetGatewayPlanRequest, ListImportedRequest, NameRequest,
    NamesRequest, SetDefaultGatewayRequest, SetWildcardDomainRequest,
};
use dstack_plan::names;
use dstack_store::directory::gateways::{self, GatewayRow, ListedGateway, ReplicaRow};
use dstack_store::{EventTarget, Json, NewEvent};
use dstack_units::GatewayId;
use serde_json::Value;

use crate::api::{Api, Call};
use crate::audit;
use crate::compat;
use crate::error::{ApiError, Result};
use crate::state::AppState;

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
    let pool = call.state.database.pool();
    let found = gateways::list(pool, call.project()?.row.id, request.include_imported).await?;
    shown(&call, found).await
}

async fn get(call: Call, request: NameRequest) -> Result<Gateway> {
    let project = call.project()?;
    let found = gateways::by_name(call.state.database.pool(), project.row.id, &request.name).await?;
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
    let pool = call.state.database.pool();
    let default = gateways::default_id(pool, call.project()?.row.id).await?;
    let ids: Vec<GatewayId> = found.iter().map(|listed| listed.row.id).collect();
    let replicas = gateways::replicas(pool, &ids).await?;
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

fn gateway(listed: ListedGateway, replicas: &[ReplicaRow], default: Option<GatewayId>) -> Gateway {
    let row = listed.row;
    let is_default = default == Some(row.id);
    let mut configuration = (*row.configuration).clone();
    configuration.default = Some(is_default);
    Gateway {
        id: row.id,
        name: row.name,
        project_name: listed.project_name,
        configuration,
        created_at: row.created_at,
        status: row.status,
        status_message: row.status_message,
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

fn replica(row: &ReplicaRow) -> GatewayReplica {
    let data = row.provisioning_data.as_deref();
    GatewayReplica {
        hostname: data.map(|data| data.ip_address.clone()),
        replica_num: u32::try_from(row.replica_num).unwrap_or(0),
        backend: Some(row.configuration.backend),
        region: data.map(|data| data.region.clone()),
        created_at: row.created_at,
        status: row.status,
        status_message: row.status_message.clone(),
    }
}

/// The gateway of that name, if it can be changed at all.
async fn changeable(call: &Call, name: &str) -> Result<Option<ListedGateway>> {
    let pool = call.state.database.pool();
    let Some(found) = gateways::by_name(pool, call.project()?.row.id, name).await? else {
        return Ok(None);
    };
    if found.row.to_be_deleted {
        return Err(ApiError::client(format!(
            "Gateway '{name}' is being deleted. Try again later."
        )));
    }
    if found.row.status == GatewayStatus::Failed {
        return Err(ApiError::client(format!(
            "Gateway '{name}' is in FAILED status and cannot be updated in-place. Delete it and re-apply."
        )));
    }
    Ok(Some(found))
}

fn check(call: &Call, configuration: &GatewayConfiguration) -> Result<()> {
    let state = &call.state;
    validate::check(
        &state.registry,
        state.settings.gateway_max_replicas,
        configuration,
    )
}

async fn get_plan(call: Call, request: GetGatewayPlanRequest) -> Result<GatewayPlan> {
    let mut spec = request.spec;
    compat::gateway_request(&mut spec.configuration, &call.version);
    let effective = call.state.plugins.on_apply(&call, spec.clone()).await?;
    check(&call, &effective.configuration)?;
    let mut action = ApplyAction::Create;
    let mut current = None;
    if let Some(name) = &effective.configuration.name
        && let Some(found) = changeable(&call, name).await?
    {
        let gateway = one(&call, found).await?;
        if validate::can_change(&changed(&gateway.configuration, &effective.configuration)) {
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

/// Fields in which two configurations differ. An unset `default` leaves it as it is.
fn changed(old: &GatewayConfiguration, new: &GatewayConfiguration) -> Vec<String> {
    let json = |configuration: &GatewayConfiguration| match serde_json::to_value(configuration) {
        Ok(Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    };
    let (old, fields) = (json(old), json(new));
    fields
        .into_iter()
        .filter(|(field, value)| old.get(field) != Some(value))
        .map(|(field, _)| field)
        .filter(|field| field != "default" || new.default.is_some())
        .collect()
}

async fn apply(call: Call, request: ApplyGatewayPlanRequest) -> Result<Gateway> {
    let mut spec = request.plan.spec;
    compat::gateway_request(&mut spec.configuration, &call.version);
    let configuration = call.state.plugins.on_apply(&call, spec).await?.configuration;
    check(&call, &configuration)?;
    let found = match &configuration.name {
        Some(name) => changeable(&call, name).await?,
        None => None,
    };
    let Some(found) = found else {
        return make(&call, configuration).await;
    };
    let current = one(&call, found.clone()).await?;
    let expected = request.plan.current_resource.as_ref();
    let as_expected = expected
        .is_some_and(|expected| expected.id == current.id && expected.configuration == current.configuration);
    if !request.force && !as_expected {
        return Err(ApiError::stale());
    }
    let fields = changed(&current.configuration, &configuration);
    if !validate::can_change(&fields) {
        return Err(ApiError::client(format!(
            "Gateway '{}' cannot be updated in-place. Delete it and re-apply.",
            found.row.name
        )));
    }
    let name = found.row.name.clone();
    change(&call, found.row, configuration, &fields).await?;
    fetched(&call, &name).await
}

async fn fetched(call: &Call, name: &str) -> Result<Gateway> {
    let pool = call.state.database.pool();
    let found = gateways::by_name(pool, call.project()?.row.id, name).await?;
    one(call, found.ok_or_else(ApiError::not_exists)?).await
}

async fn change(
    call: &Call,
    row: GatewayRow,
    configuration: GatewayConfiguration,
    fields: &[String],
) -> Result<()> {
    let state = &call.state;
    let mut events = Vec::new();
    let default = match configuration.default {
        Some(true) => default_events(call, &row, true).await?,
        Some(false) => default_events(call, &row, false).await?,
        None => None,
    };
    let text = format!("Gateway updated. Changed fields: {}", fields.join(", "));
    events.extend(audit::event(state, call.user()?, text, target(&row)));
    let new = GatewayRow {
        wildcard_domain: configuration.domain.clone(),
        configuration: Json::new(configuration),
        last_processed_at: state.clock.now(),
        ..row
    };
    let project = call.project()?.row.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                if let Some((id, changes)) = default {
                    gateways::set_default(tx, project, id).await?;
                    events.extend(changes);
                }
                gateways::put(tx, &new).await?;
                for event in events {
                    audit::write(tx, Some(event)).await?;
                }
                Ok(())
            })
        })
        .await?;
    state.gateways_changed.notify_one();
    Ok(())
}

/// The new default and the events that tell of it; `None` when nothing changes.
async fn default_events(
    call: &Call,
    row: &GatewayRow,
    make_default: bool,
) -> Result<Option<(Option<GatewayId>, Vec<NewEvent>)>> {
    let (state, project) = (&call.state, &call.project()?.row);
    let old = gateways::default_of(state.database.pool(), project.id).await?;
    let is_default = old.as_ref().is_some_and(|old| old.row.id == row.id);
    if is_default == make_default {
        return Ok(None);
    }
    let maker = audit::by(state, call.user()?);
    let mut events = Vec::new();
    if let Some(old) = old.filter(|_| make_default || is_default) {
        events.push(maker.event(
            "Gateway unset as project default",
            vec![target(&old.row), audit::project(project)],
        ));
    }
    if make_default {
        events.push(maker.event(
            "Gateway set as project default",
            vec![target(row), audit::project(project)],
        ));
    }
    Ok(Some((make_default.then_some(row.id), audit::kept(state, events))))
}

async fn create(call: Call, request: CreateGatewayRequest) -> Result<Gateway> {
    let mut spec = GatewaySpec {
        configuration: request.configuration,
        configuration_path: None,
    };
    compat::gateway_request(&mut spec.configuration, &call.version);
    let configuration = call.state.plugins.on_apply(&call, spec).await?.configuration;
    check(&call, &configuration)?;
    make(&call, configuration).await
}

async fn make(call: &Call, mut configuration: GatewayConfiguration) -> Result<Gateway> {
    let (state, project) = (&call.state, call.project()?);
    let pool = state.database.pool();
    let backends = dstack_store::directory::backends::list(pool, project.row.id).await?;
    let backend = backends
        .iter()
        .find(|backend| backend.kind == configuration.backend.as_str())
        .ok_or_else(|| {
            let code = ErrorCode::BackendNotAvailable;
            ApiError::with_code(code, code.default_message())
        })?;
    let existing = gateways::list(pool, project.row.id, false).await?;
    let name = configuration.name.clone().unwrap_or_else(|| {
        names::numbered(&names::stem(&state.random), |name| {
            existing.iter().any(|listed| listed.row.name == name)
        })
    });
    configuration.name = Some(name.clone());
    let now = state.clock.now();
    let row = GatewayRow {
        id: state.random.uuid().into(),
        project_id: project.row.id,
        name,
        created_at: now,
        status: GatewayStatus::Submitted,
        status_message: None,
        wildcard_domain: configuration.domain.clone(),
        hostname: None,
        backend_id: Some(backend.id.clone()),
        to_be_deleted: false,
        last_processed_at: now,
        version: 0,
        configuration: Json::new(configuration.clone()),
    };
    let has_default = gateways::default_of(pool, project.row.id).await?.is_some();
    let becomes_default = configuration.default.unwrap_or(!has_default);
    let default = match becomes_default {
        true => default_events(call, &row, true).await?,
        false => None,
    };
    let created = audit::event(
        state,
        call.user()?,
        "Gateway created. Status: SUBMITTED",
        target(&row),
    );
    // The answer is what this call has stored, not what has become of it meanwhile.
    let listed = ListedGateway {
        row: row.clone(),
        project_name: project.row.name.clone(),
    };
    let project = project.row.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                gateways::put(tx, &row).await?;
                audit::write(tx, created).await?;
                if let Some((id, events)) = default {
                    gateways::set_default(tx, project, id).await?;
                    for event in events {
                        audit::write(tx, Some(event)).await?;
                    }
                }
                Ok(())
            })
        })
        .await?;
    state.gateways_changed.notify_one();
    one(call, listed).await
}

/// Unknown names are ignored.
async fn delete(call: Call, request: NamesRequest) -> Result<()> {
    let state = &call.state;
    let found = gateways::list(state.database.pool(), call.project()?.row.id, false).await?;
    let mut marked = Vec::new();
    for listed in found {
        if !request.names.contains(&listed.row.name) || listed.row.to_be_deleted {
            continue;
        }
        let event = audit::event(
            state,
            call.user()?,
            "Gateway marked for deletion",
            target(&listed.row),
        );
        let row = GatewayRow {
            to_be_deleted: true,
            ..listed.row
        };
        marked.push((row, event));
    }
    write_all(state, marked).await
}

async fn write_all(state: &AppState, rows: Vec<(GatewayRow, Option<NewEvent>)>) -> Result<()> {
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (row, event) in rows {
                    gateways::put(tx, &row).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    state.gateways_changed.notify_one();
    Ok(())
}

async fn set_default(call: Call, request: SetDefaultGatewayRequest) -> Result<()> {
    let (state, project) = (&call.state, &call.project()?.row);
    let pool = state.database.pool();
    let found = match request.gateway_project.as_deref() {
        Some(owner) if owner != project.name => {
            gateways::imported_by_name(pool, project.id, owner, &request.name).await?
        }
        _ => gateways::by_name(pool, project.id, &request.name).await?,
    };
    let found = found.ok_or_else(ApiError::not_exists)?;
    if found.row.to_be_deleted {
        return Err(ApiError::client(
            "Cannot set gateway marked for deletion as default",
        ));
    }
    let Some((id, events)) = default_events(&call, &found.row, true).await? else {
        return Ok(());
    };
    let project = project.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                gateways::set_default(tx, project, id).await?;
                for event in events {
                    audit::write(tx, Some(event)).await?;
                }
                Ok(())
            })
        })
        .await?;
    Ok(())
}

async fn set_wildcard_domain(call: Call, request: SetWildcardDomainRequest) -> Result<Gateway> {
    let state = &call.state;
    let found = gateways::by_name(state.database.pool(), call.project()?.row.id, &request.name).await?;
    let row = found.ok_or_else(ApiError::not_exists)?.row;
    let domain = Some(request.wildcard_domain);
    if row.wildcard_domain != domain {
        let text = format!(
            "Gateway wildcard domain changed {} -> {}",
            quoted(row.wildcard_domain.as_deref()),
            quoted(domain.as_deref())
        );
        let event = audit::event(state, call.user()?, text, target(&row));
        let mut configuration = (*row.configuration).clone();
        configuration.domain.clone_from(&domain);
        let row = GatewayRow {
            wildcard_domain: domain,
            configuration: Json::new(configuration),
            ..row
        };
        write_all(state, vec![(row, event)]).await?;
    }
    fetched(&call, &request.name).await
}

/// As Python shows a text or nothing.
fn quoted(text: Option<&str>) -> String {
    text.map_or_else(|| "None".to_owned(), |text| format!("'{text}'"))
}

/// As the target of an event.
pub(crate) fn target(row: &GatewayRow) -> EventTarget {
    EventTarget {
        gateway_id: Some(row.id.to_string()),
        ..audit::target("gateway", &row.id, &row.name, Some(row.project_id.to_string()))
    }
}
