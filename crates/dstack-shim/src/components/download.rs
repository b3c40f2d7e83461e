//! Downloading a binary and putting it in place in one step.

use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);
/// No binary of ours comes near.
const MAX_BYTES: u64 = 1 << 30;

/// Why a component was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The server still has what is installed.
    #[error("unchanged")]
    Unchanged,
    /// The transfer failed.
    #[error("cannot download {url}")]
    Http {
        /// Address of the binary.
        url: String,
        /// How the request failed.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The server answered with another status than 200.
    #[error("{url} answered {status}")]
    Status {
        /// Address of the binary.
        url: String,
        /// HTTP status of the answer.
        status: u16,
    },
    /// The agent shuts down.
    #[error("cancelled")]
    Cancelled,
    /// The file cannot be written.
    #[error("cannot write the binary")]
    Io(#[from] io::Error),
}

/// A finished installation.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) etag: Option<String>,
}

/// Downloads to a temporary file beside `path`, makes it executable and renames it. Blocking.
pub(super) fn install(
    url: &str,
    path: &Path,
    etag: Option<&str>,
    cancelled: &AtomicBool,
) -> Result<Installed, InstallError> {
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .timeout_global(Some(LIMIT))
            .http_status_as_error(false)
            .build(),
    );
    let mut request = agent.get(url);
    if let Some(etag) = etag {
        request = request.header("If-None-Match", etag);
    }
    let mut response = request.call().map_err(|source| InstallError::Http {
        url: url.to_owned(),
        source: Box::new(source),
    })?;
    match response.status().as_u16() {
        200 => {}
        304 => return Err(InstallError::Unchanged),
        status => {
            return Err(InstallError::Status {
                url: url.to_owned(),
                status,
            });
        }
    }
    let etag = response
        .headers()
        .get("etag")
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs_err::create_dir_all(dir)?;
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let temporary = dir.join(format!(".{name}.{}.download", std::process::id()));
    let body = response.body_mut().with_config().limit(MAX_BYTES).reader();
    let written = write(body, &temporary, cancelled).and_then(|()| Ok(fs_err::rename(&temporary, path)?));
    if written.is_err() {
        let _ = fs_err::remove_file(&temporary);
    }
    written.map(|()| Installed { etag })
}

fn write(mut body: impl Read, path: &Path, cancelled: &AtomicBool) -> Result<(), InstallError> {
    let mut file = fs_err::File::create(path)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        if cancelled.load(Ordering::Relaxed) {
            return Err(InstallError::Cancelled);
        }
        let count = body.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        file.write_all(buffer.get(..count).unwrap_or_default())?;
    }
    file.sync_all()?;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}
