//! Network volumes: none can be made by this version, so there are none.

use dstack_api::{ErrorCode, Nothing, routes};
use dstack_model::requests::{CreateVolumeRequest, ListVolumesRequest, NameRequest, NamesRequest};
use dstack_model::volumes::Volume;

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::VolumesList, _, _>(list_all)
        .on::<routes::ProjectVolumesList, _, _>(list)
        .on::<routes::VolumesGet, _, _>(get)
        .on::<routes::VolumesCreate, _, _>(create)
        .on::<routes::VolumesDelete, _, _>(delete)
}

async fn list_all(_: Call, _: ListVolumesRequest) -> Result<Vec<Volume>> {
    Ok(Vec::new())
}

async fn list(_: Call, _: Nothing) -> Result<Vec<Volume>> {
    Ok(Vec::new())
}

async fn get(_: Call, _: NameRequest) -> Result<Volume> {
    Err(ApiError::not_exists())
}

async fn create(_: Call, _: CreateVolumeRequest) -> Result<Volume> {
    Err(ApiError::with_code(
        ErrorCode::BackendNotAvailable,
        "This server version has no backend with network volumes yet. Mount a directory of the instance instead.",
    ))
}

/// Unknown names are ignored.
async fn delete(_: Call, _: NamesRequest) -> Result<()> {
    Ok(())
}
