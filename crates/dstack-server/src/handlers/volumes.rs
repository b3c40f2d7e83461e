//! Network volumes: lists, creating, marking for deletion. Their clouds are asked by `crate::volume_worker`.

use dstack_api::{ErrorCode, Nothing, routes};
use dstack_compute::Registry;
use dstack_model::backends::BackendType;
use dstack_model::requests::{CreateVolumeRequest, ListVolumesRequest, NameRequest, NamesRequest};
use dstack_model::volumes::{AnyVolumeConfiguration, Volume, VolumeSpec, VolumeStatus};
use dstack_plan::names;
use dstack_store::directory::Page;
use dstack_store::directory::volumes::{self, ListedVolume, VolumeRow};
use dstack_store::{EventTarget, Json};
use dstack_units::Time;
use dstack_units::name::{RESOURCE_NAME_MESSAGE, is_resource_name};

use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result};
use crate::handlers::projects::{python_list, visible_projects};

/// Clouds charge for months of 30 days.
const MONTH_SECONDS: f64 = 30.0 * 24.0 * 3600.0;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::VolumesList, _, _>(list_all)
        .on::<routes::ProjectVolumesList, _, _>(list)
        .on::<routes::VolumesGet, _, _>(get)
        .on::<routes::VolumesCreate, _, _>(create)
        .on::<routes::VolumesDelete, _, _>(delete)
}

async fn list_all(call: Call, request: ListVolumesRequest) -> Result<Vec<Volume>> {
    let pool = call.state.database.pool();
    let visible = visible_projects(&call, request.project_name.as_ref().map(std::slice::from_ref)).await?;
    let page = Page {
        prev_at: request.prev_created_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    let found = volumes::list(pool, &visible, request.only_active, &page).await?;
    Ok(shown(&call, found))
}

async fn list(call: Call, _: Nothing) -> Result<Vec<Volume>> {
    let found = volumes::of_project(call.state.database.pool(), call.project()?.row.id).await?;
    Ok(shown(&call, found))
}

fn shown(call: &Call, found: Vec<ListedVolume>) -> Vec<Volume> {
    let now = call.state.clock.now();
    found.into_iter().map(|listed| volume(listed, now)).collect()
}

async fn get(call: Call, request: NameRequest) -> Result<Volume> {
    let project = call.project()?.row.id;
    let found = volumes::by_name(call.state.database.pool(), project, &request.name).await?;
    Ok(volume(
        found.ok_or_else(ApiError::not_exists)?,
        call.state.clock.now(),
    ))
}

async fn create(call: Call, request: CreateVolumeRequest) -> Result<Volume> {
    let (state, project, user) = (&call.state, call.project()?, call.user()?);
    let spec = VolumeSpec {
        configuration: request.configuration,
        configuration_path: None,
    };
    let mut configuration = state.plugins.on_apply(&call, spec).await?.configuration;
    check(&state.registry, &configuration)?;
    let existing = volumes::of_project(state.database.pool(), project.row.id).await?;
    let taken = |name: &str| existing.iter().any(|listed| listed.row.name == name);
    let name = match configuration.name() {
        Some(name) if taken(name) => return Err(ApiError::exists()),
        Some(name) => name.to_owned(),
        None => names::numbered(&names::stem(&state.random), taken),
    };
    configuration.set_name(Some(name.clone()));
    let now = state.clock.now();
    let row = VolumeRow {
        id: state.random.uuid().into(),
        project_id: project.row.id,
        user_id: user.id,
        name,
        created_at: now,
        status: VolumeStatus::Submitted,
        status_message: None,
        auto_cleanup_enabled: configuration
            .auto_cleanup_duration()
            .is_some_and(|duration| duration.0 > 0),
        configuration: Json::new(configuration),
        provisioning_data: None,
        to_be_deleted: false,
        deleted: false,
        deleted_at: None,
        last_job_processed_at: None,
        last_processed_at: now,
        version: 0,
    };
    let event = audit::event(state, user, "Volume created. Status: SUBMITTED", target(&row));
    let stored = row.clone();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                volumes::put(tx, &stored).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    state.volumes_changed.notify_one();
    let listed = ListedVolume {
        row,
        project_name: project.row.name.clone(),
        user_name: user.name.clone(),
    };
    Ok(volume(listed, now))
}

/// Unknown names are ignored.
async fn delete(call: Call, request: NamesRequest) -> Result<()> {
    let state = &call.state;
    let found = volumes::of_project(state.database.pool(), call.project()?.row.id).await?;
    let mut marked = Vec::new();
    for listed in found {
        if !request.names.contains(&listed.row.name) || listed.row.to_be_deleted {
            continue;
        }
        let event = audit::event(
            state,
            call.user()?,
            "Volume marked for deletion",
            target(&listed.row),
        );
        let row = VolumeRow {
            to_be_deleted: true,
            ..listed.row
        };
        marked.push((row, event));
    }
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (row, event) in marked {
                    volumes::put(tx, &row).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    state.volumes_changed.notify_one();
    Ok(())
}

/// What a volume must look like (the messages are those of dstack 0.22.5).
fn check(registry: &Registry, configuration: &AnyVolumeConfiguration) -> Result<()> {
    if configuration.has_size() && !configuration.is_external() && configuration.size().is_none() {
        return Err(ApiError::client(
            "Volume must specify either existing identifier or size",
        ));
    }
    let backend = configuration.backend();
    check_available(registry, backend)?;
    let supporting = registry.with(|capabilities| capabilities.volumes);
    if !supporting.contains(&backend) {
        return Err(ApiError::client(format!(
            "Volumes are not supported for {backend} backend. Available backends with volumes support: {}.",
            types(&supporting)
        )));
    }
    if configuration.name().is_some_and(|name| !is_resource_name(name)) {
        return Err(ApiError::client(RESOURCE_NAME_MESSAGE));
    }
    let cleaned_up = configuration
        .auto_cleanup_duration()
        .is_some_and(|duration| duration.0 > 0);
    if configuration.is_external() && cleaned_up {
        return Err(ApiError::client(
            "External volumes do not support auto_cleanup_duration. Auto-cleanup only works for volumes created and \
             managed by dstack.",
        ));
    }
    Ok(())
}

/// Whether the build has this type of backend.
pub(super) fn check_available(registry: &Registry, backend: BackendType) -> Result<()> {
    if registry.get(backend).is_some() {
        return Ok(());
    }
    Err(ApiError::with_code(
        ErrorCode::BackendNotAvailable,
        format!(
            "Backend {backend} not available. This version of the server does not have it. Available backends: {}.",
            types(&registry.types())
        ),
    ))
}

/// Types of backends in a message.
pub(super) fn types(types: &[BackendType]) -> String {
    python_list(&types.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// As the target of an event.
pub(crate) fn target(row: &VolumeRow) -> EventTarget {
    audit::target("volume", &row.id, &row.name, Some(row.project_id.to_string()))
}

/// A volume as the API shows it.
fn volume(listed: ListedVolume, now: Time) -> Volume {
    let row = listed.row;
    let configuration = (*row.configuration).clone();
    let provisioning_data = row.provisioning_data.as_ref().map(|data| {
        let mut data = (**data).clone();
        data.backend.get_or_insert(configuration.backend());
        data
    });
    let end = match (row.deleted_at, row.status) {
        (Some(at), _) => at,
        (None, VolumeStatus::Failed) => row.last_processed_at,
        _ => now,
    };
    let price = provisioning_data.as_ref().and_then(|data| data.price);
    Volume {
        id: row.id,
        name: row.name,
        user: listed.user_name,
        project_name: listed.project_name,
        external: configuration.is_external(),
        configuration,
        created_at: row.created_at,
        last_processed_at: row.last_processed_at,
        status: row.status,
        status_message: row.status_message,
        deleted: row.deleted,
        deleted_at: row.deleted_at,
        volume_id: provisioning_data.as_ref().map(|data| data.volume_id.clone()),
        provisioning_data,
        cost: price.map_or(0.0, |price| {
            price * seconds_between(row.created_at, end) / MONTH_SECONDS
        }),
        attachments: Some(Vec::new()),
        attachment_data: None,
    }
}

#[allow(clippy::cast_precision_loss)] // a price
fn seconds_between(start: Time, end: Time) -> f64 {
    end.as_micros().saturating_sub(start.as_micros()) as f64 / 1_000_000.0
}
