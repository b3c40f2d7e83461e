//! Network volumes: lists, creating, marking for deletion. The engine asks their clouds.

use dstack_api::{Nothing, routes};
use dstack_model::requests::{CreateVolumeRequest, ListVolumesRequest, NameRequest, NamesRequest};
use dstack_model::volumes::{Volume, VolumeAttachment, VolumeInstance, VolumeSpec, VolumeStatus};
use dstack_plan::lifecycle::WaitReason;
use dstack_store::queries::Page;
use dstack_store::queries::volumes::{ListedAttachment, ListedVolume};
use dstack_units::{Time, VolumeId};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};
use crate::handlers::projects::visible_projects;

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
    let database = &call.state.data.database;
    let visible = visible_projects(&call, request.project_name.as_ref().map(std::slice::from_ref)).await?;
    let page = Page {
        prev_at: request.prev_created_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    let found = database
        .volumes()
        .list(&visible, request.only_active, &page)
        .await?;
    shown(&call, found).await
}

async fn list(call: Call, _: Nothing) -> Result<Vec<Volume>> {
    let found = call
        .state
        .data
        .database
        .volumes()
        .of_project(call.project()?.row.id)
        .await?;
    shown(&call, found).await
}

async fn shown(call: &Call, found: Vec<ListedVolume>) -> Result<Vec<Volume>> {
    let now = call.state.data.clock.now();
    let live = found.iter().filter(|listed| !listed.row.deleted);
    let ids: Vec<VolumeId> = live.map(|listed| listed.row.id).collect();
    let attached = call.state.data.database.volumes().attachments(&ids).await?;
    let with_attachments = |listed: ListedVolume| {
        let its = attached.iter().filter(|one| one.row.volume_id == listed.row.id);
        let attachments = its.map(attachment).collect();
        volume(listed, attachments, now)
    };
    Ok(found.into_iter().map(with_attachments).collect())
}

fn attachment(listed: &ListedAttachment) -> VolumeAttachment {
    let instance = &listed.instance;
    let place = instance.job_provisioning_data.as_ref();
    VolumeAttachment {
        instance: VolumeInstance {
            name: instance.name.clone(),
            fleet_name: listed.fleet_name.clone(),
            instance_num: u32::try_from(instance.instance_num).unwrap_or_default(),
            instance_id: place.map(|place| place.instance_id.clone()),
        },
        attachment_data: listed.row.data.as_deref().cloned(),
    }
}

async fn get(call: Call, request: NameRequest) -> Result<Volume> {
    let project = call.project()?.row.id;
    let found = call
        .state
        .data
        .database
        .volumes()
        .by_name(project, &request.name)
        .await?;
    let shown = shown(&call, vec![found.ok_or_else(ApiError::not_exists)?]).await?;
    shown.into_iter().next().ok_or_else(ApiError::not_exists)
}

async fn create(call: Call, request: CreateVolumeRequest) -> Result<Volume> {
    let (state, project, user) = (&call.state, &call.project()?.row, call.user()?);
    let spec = VolumeSpec {
        configuration: request.configuration,
        configuration_path: None,
    };
    let configuration = state.edge.plugins.on_apply(&call, spec).await?.configuration;
    let verbs = &state.control.volumes;
    let row = verbs.create(user.id, project.id, &configuration).await?;
    let listed = ListedVolume {
        row,
        project_name: project.name.clone(),
        user_name: user.name.clone(),
    };
    Ok(volume(listed, Vec::new(), state.data.clock.now()))
}

async fn delete(call: Call, request: NamesRequest) -> Result<()> {
    let verbs = &call.state.control.volumes;
    Ok(verbs
        .delete(call.user()?.into(), call.project()?.row.id, &request.names)
        .await?)
}

/// A volume as the API shows it.
fn volume(listed: ListedVolume, attachments: Vec<VolumeAttachment>, now: Time) -> Volume {
    let row = listed.row;
    let configuration = (*row.configuration).clone();
    let provisioning_data = row.provisioning_data.as_ref().map(|data| {
        let mut data = (**data).clone();
        data.backend.get_or_insert(configuration.backend());
        data
    });
    let status = row.status();
    let status_message = row
        .status_message()
        .map(str::to_owned)
        .or_else(|| row.waiting_for().and_then(WaitReason::trouble));
    let end = match (row.deleted_at, status) {
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
        status,
        status_message,
        deleted: row.deleted,
        deleted_at: row.deleted_at,
        volume_id: provisioning_data.as_ref().map(|data| data.volume_id.clone()),
        provisioning_data,
        cost: price.map_or(0.0, |price| {
            price * seconds_between(row.created_at, end) / MONTH_SECONDS
        }),
        attachments: Some(attachments),
        attachment_data: None,
    }
}

#[allow(clippy::cast_precision_loss)] // a price
fn seconds_between(start: Time, end: Time) -> f64 {
    end.as_micros().saturating_sub(start.as_micros()) as f64 / 1_000_000.0
}
