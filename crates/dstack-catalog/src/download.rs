//! Large downloads: straight to disk, continued after a break, with progress.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::tokio as fs;
use reqwest::StatusCode;
use reqwest::header::{ETAG, IF_RANGE, RANGE};
use tokio::io::AsyncWriteExt;

use crate::Progress;
use crate::http::{Http, HttpError};

/// Attempts; each goes on where the last one broke off.
const ATTEMPTS: u32 = 5;

/// A whole download may take so long.
const WHOLE: Duration = Duration::from_secs(6 * 3600);

/// A download that failed for good. What has arrived is kept for the next try.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The request failed.
    #[error("the download failed")]
    Http(#[source] HttpError),
    /// The file cannot be written.
    #[error("cannot write `{}`", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// Downloads `url` to `path`. An unfinished `path.part` of an earlier try is continued if the server still has the
/// same file; `path` appears only when it is complete.
pub async fn download(
    http: &Http,
    url: &str,
    path: &Path,
    progress: &dyn Progress,
) -> Result<(), DownloadError> {
    let mut attempt = 1;
    loop {
        match once(http, url, path, progress).await {
            Ok(()) => return Ok(()),
            Err(DownloadError::Http(error)) if attempt < ATTEMPTS && may_pass(&error) => {
                progress.warn(&format!("{error}: trying again ({attempt} of {ATTEMPTS})"));
                tokio::time::sleep(http.patience().backoff * 2u32.pow(attempt - 1)).await;
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn may_pass(error: &HttpError) -> bool {
    match error {
        HttpError::Transport { .. } => true,
        HttpError::Status { status, .. } => {
            status.is_server_error()
                || matches!(
                    *status,
                    StatusCode::TOO_MANY_REQUESTS | StatusCode::RANGE_NOT_SATISFIABLE
                )
        }
        _ => false,
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

async fn once(http: &Http, url: &str, path: &Path, progress: &dyn Progress) -> Result<(), DownloadError> {
    let part = beside(path, ".part");
    let tag_path = beside(path, ".part.etag");
    let file_error = |path: &Path| {
        let path = path.to_owned();
        move |source| DownloadError::File { path, source }
    };
    let transport = |source: reqwest::Error| {
        DownloadError::Http(HttpError::Transport {
            url: url.to_owned(),
            source: source.without_url(),
        })
    };
    let have = fs::metadata(&part).await.map_or(0, |metadata| metadata.len());
    let tag = fs::read_to_string(&tag_path).await.ok();
    let mut request = http
        .client()
        .map_err(DownloadError::Http)?
        .get(url)
        .timeout(WHOLE);
    if let Some(tag) = tag.filter(|_| have > 0) {
        // Without a tag we could not know that the rest belongs to the same file.
        request = request
            .header(RANGE, format!("bytes={have}-"))
            .header(IF_RANGE, tag);
    }
    let mut response = request.send().await.map_err(transport)?;
    let status = response.status();
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        drop(fs::remove_file(&part).await);
    }
    if !status.is_success() {
        return Err(DownloadError::Http(HttpError::Status {
            url: url.to_owned(),
            status,
        }));
    }
    let start = if status == StatusCode::PARTIAL_CONTENT {
        have
    } else {
        0
    };
    let mut options = fs::OpenOptions::new();
    options
        .create(true)
        .write(true)
        .append(start > 0)
        .truncate(start == 0);
    let mut file = options.open(&part).await.map_err(file_error(&part))?;
    match response.headers().get(ETAG).and_then(|tag| tag.to_str().ok()) {
        // Only a strong tag promises identical bytes.
        Some(tag) if !tag.starts_with("W/") => {
            fs::write(&tag_path, tag).await.map_err(file_error(&tag_path))?;
        }
        _ => drop(fs::remove_file(&tag_path).await),
    }
    let total = response.content_length().map(|rest| start + rest);
    let mut done = start;
    while let Some(chunk) = response.chunk().await.map_err(transport)? {
        file.write_all(&chunk).await.map_err(file_error(&part))?;
        done += chunk.len() as u64;
        progress.bytes(done, total);
    }
    file.sync_all().await.map_err(file_error(&part))?;
    drop(file);
    drop(fs::remove_file(&tag_path).await);
    fs::rename(&part, path).await.map_err(file_error(path))
}
