//! Uploads: straight to disk, without a limit.

use std::path::{Path, PathBuf};

use axum::body::{Body, BodyDataStream};
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::io::AsyncWriteExt;

use crate::shared::chain;
use crate::uploads;

use super::Api;
use super::reply::{Error, empty};

pub(super) async fn code(State(api): State<Api>, body: Body) -> Result<Response, Error> {
    api.core.accepts_uploads()?;
    let path = uploads::code_path(&api.core.settings.temp_dir);
    let chunks: BodyDataStream = body.into_data_stream();
    save(&api, &path, chunks).await?;
    Ok(empty())
}

pub(super) async fn archive(State(api): State<Api>, request: Request) -> Result<Response, Error> {
    api.core.accepts_uploads()?;
    let mut parts = Multipart::from_request(request, &())
        .await
        .map_err(|error| bad(format!("not a multipart upload: {error}")))?;
    let malformed = |error: axum::extract::multipart::MultipartError| bad(error.body_text());
    let part = parts
        .next_field()
        .await
        .map_err(malformed)?
        .ok_or_else(|| bad("missing field archive"))?;
    match part.name() {
        Some("archive") => {}
        Some(other) => return Err(bad(format!("unexpected field {other}"))),
        None => return Err(bad("missing field name")),
    }
    let id = part
        .file_name()
        .filter(|name| !name.is_empty())
        .ok_or_else(|| bad("missing file name"))?;
    let path = uploads::archive_path(&api.core.settings.temp_dir, id)
        .ok_or_else(|| bad(format!("file name {id:?} is not an archive id")))?;
    // A part ends well or with an error: a cut upload is never taken for a whole one.
    let chunks = stream::try_unfold(part, async |mut part| {
        let chunk = part.chunk().await?;
        Ok::<_, axum::extract::multipart::MultipartError>(chunk.map(|chunk| (chunk, part)))
    });
    save(&api, &path, Box::pin(chunks)).await?;
    if parts.next_field().await.map_err(malformed)?.is_some() {
        let _ = fs_err::tokio::remove_file(&path).await;
        return Err(bad("more than one part"));
    }
    Ok(empty())
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(StatusCode::BAD_REQUEST, message)
}

/// Writes beside the path and then renames: a broken upload leaves what was there.
async fn save<E>(
    api: &Api,
    path: &Path,
    chunks: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<(), Error>
where
    E: std::error::Error + 'static,
{
    let partial = partial_path(path);
    let saved = write(&partial, chunks).await;
    let renamed = match saved {
        Ok(()) => fs_err::tokio::rename(&partial, path).await.map_err(Failed::Disk),
        Err(failed) => Err(failed),
    };
    renamed.map_err(|failed| {
        // It may not even have been created.
        let _ = fs_err::remove_file(&partial);
        match failed {
            Failed::Disk(error) => {
                api.core
                    .log
                    .error(format_args!("cannot store an upload: {}", chain(&error)));
                Error::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("cannot store the upload: {}", chain(&error)),
                )
            }
            Failed::Client(message) => bad(message),
        }
    })
}

enum Failed {
    Disk(std::io::Error),
    Client(String),
}

async fn write<E>(path: &Path, mut chunks: impl Stream<Item = Result<Bytes, E>> + Unpin) -> Result<(), Failed>
where
    E: std::error::Error + 'static,
{
    if let Some(parent) = path.parent() {
        fs_err::tokio::create_dir_all(parent)
            .await
            .map_err(Failed::Disk)?;
    }
    let mut file = fs_err::tokio::File::create(path).await.map_err(Failed::Disk)?;
    while let Some(chunk) = chunks.next().await {
        let chunk =
            chunk.map_err(|error| Failed::Client(format!("the upload broke off: {}", chain(&error))))?;
        file.write_all(&chunk).await.map_err(Failed::Disk)?;
    }
    file.flush().await.map_err(Failed::Disk)
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}
