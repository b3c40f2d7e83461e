//! Archives of files that runs take along.

use dstack_api::{Nothing, routes};
use dstack_model::files::FileArchive;
use dstack_model::requests::GetFileArchiveByHashRequest;

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};
use crate::request::Upload;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::FilesGetArchiveByHash, _, _>(get_archive_by_hash)
        .on_upload::<routes::FilesUploadArchive, _, _>(upload_archive)
}

async fn get_archive_by_hash(call: Call, request: GetFileArchiveByHashRequest) -> Result<FileArchive> {
    let found = call
        .state
        .data
        .database
        .content()
        .archive_by_hash(call.user()?.id, &request.hash)
        .await?;
    Ok(FileArchive {
        id: found.ok_or_else(ApiError::not_exists)?,
        hash: request.hash,
    })
}

async fn upload_archive(call: Call, _: Nothing, upload: Upload) -> Result<FileArchive> {
    let state = &call.state;
    check_size(
        "Archive size",
        "Use .gitignore/.dstackignore to exclude large files. ",
        upload.request_size,
        state.edge.settings.code_upload_limit,
    )?;
    let user = call.user()?.id;
    let hash = upload.name.clone();
    let id = state.data.random.uuid().into();
    let id = state
        .data
        .blobs
        .put_archive(id, user, upload.name, upload.content)
        .await?;
    Ok(FileArchive { id, hash })
}

/// Refuses uploads beyond the limit; 0 = unlimited.
pub(super) fn check_size(what: &str, advice: &str, size: u64, limit: u64) -> Result<()> {
    if limit == 0 || size <= limit {
        return Ok(());
    }
    let (mut shown, mut shown_limit) = (human(size), human(limit));
    if shown == shown_limit {
        (shown, shown_limit) = (format!("{size}B"), format!("{limit}B"));
    }
    Err(ApiError::client(format!(
        "{what} is {shown}, which exceeds the limit of {shown_limit}. {advice}This limit can be modified by setting \
         the DSTACK_SERVER_CODE_UPLOAD_LIMIT environment variable."
    )))
}

/// Returns the size as people read it, such as `2.0MiB`.
#[allow(clippy::cast_precision_loss)] // sizes of files
fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["", "Ki", "Mi", "Gi", "Ti"] {
        if value < 1024.0 {
            return format!("{value:.1}{unit}B");
        }
        value /= 1024.0;
    }
    format!("{value:.1}PiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(size: u64) -> String {
        match check_size("Archive size", "", size, 2 * 1024 * 1024).unwrap_err() {
            ApiError::Client { msg, .. } => msg,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sizes_that_look_alike_are_shown_exactly() {
        assert!(
            message(3 * 1024 * 1024)
                .starts_with("Archive size is 3.0MiB, which exceeds the limit of 2.0MiB. ")
        );
        assert!(
            message(2_097_269).starts_with("Archive size is 2097269B, which exceeds the limit of 2097152B. ")
        );
        assert!(check_size("x", "", u64::MAX, 0).is_ok());
    }
}
