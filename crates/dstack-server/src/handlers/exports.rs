//! Exports and imports: switched off, as in the open-source server of dstack 0.22.5.

use dstack_api::responses::{ExportsAnswer, ImportsAnswer};
use dstack_api::{Nothing, routes};
use dstack_model::exports::Export;
use dstack_model::requests::{CreateExportRequest, DeleteImportRequest, NameRequest, UpdateExportRequest};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::ExportsCreate, _, _>(create)
        .on::<routes::ExportsUpdate, _, _>(update)
        .on::<routes::ExportsDelete, _, _>(delete)
        .on::<routes::ExportsList, _, _>(list)
        .on::<routes::ImportsList, _, _>(list_imports)
        .on::<routes::ImportsDelete, _, _>(delete_import)
}

fn off() -> ApiError {
    ApiError::client(
        "This dstack server does not support exports. Export support is available in dstack Sky and dstack Factory.",
    )
}

async fn create(_: Call, _: CreateExportRequest) -> Result<Export> {
    Err(off())
}

async fn update(_: Call, _: UpdateExportRequest) -> Result<Export> {
    Err(ApiError::not_exists())
}

async fn delete(_: Call, _: NameRequest) -> Result<()> {
    Err(ApiError::not_exists())
}

async fn list(_: Call, _: Nothing) -> Result<ExportsAnswer> {
    Err(off())
}

async fn list_imports(_: Call, _: Nothing) -> Result<ImportsAnswer> {
    Err(off())
}

async fn delete_import(_: Call, _: DeleteImportRequest) -> Result<()> {
    Err(ApiError::not_exists())
}
