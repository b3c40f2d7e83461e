//! Uploading what `files` names.

use std::path::Path;

use dstack_api::routes::FilesUploadArchive;
use dstack_model::files::{FileArchiveMapping, FilePathMapping};
use dstack_system::task;

use crate::archive;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};

/// Expands and checks local paths: relative ones start at the configuration file's folder.
pub(crate) fn resolve(
    context: &Context,
    files: &mut [FilePathMapping],
    configuration_path: &str,
) -> Result<(), CliError> {
    let file = context.folder.join(configuration_path);
    let folder = file.parent().unwrap_or(&context.folder);
    for mapping in files {
        let path = context.resolve(&mapping.local_path, folder);
        if !path.exists() {
            return Err(CliError::new(
                ErrorKind::FileMissing,
                format!("Path '{}' specified in `files` does not exist", path.display()),
            )
            .hint("paths are relative to the configuration file"));
        }
        mapping.local_path = path.display().to_string();
    }
    Ok(())
}

/// Packs and uploads everything, in order.
pub(crate) async fn upload(
    project: &Project,
    files: &[FilePathMapping],
) -> Result<Vec<FileArchiveMapping>, CliError> {
    let mut uploaded = Vec::with_capacity(files.len());
    for mapping in files {
        let local = mapping.local_path.clone();
        let packed = task::blocking("pack-files", move || archive::pack(Path::new(&local))).await;
        let packed = packed
            .map_err(|error| CliError::from_error(ErrorKind::File, error))?
            .map_err(|error| {
                let message = format!("failed to archive '{}'", mapping.local_path);
                CliError::caused_by(ErrorKind::File, message, error)
            })?;
        let archive = project
            .client
            .upload::<FilesUploadArchive>((), &[], &packed.hash, packed.content)
            .await?;
        uploaded.push(FileArchiveMapping {
            id: archive.id,
            path: mapping.path.clone(),
        });
    }
    Ok(uploaded)
}
