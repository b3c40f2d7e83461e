//! The API's sockets.

use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::Router;
use axum::serve::ListenerExt as _;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::error::StartError;
use crate::settings::Settings;

/// Open sockets.
pub(super) struct Listeners {
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
}

/// Opens what the settings name: loopback TCP, a Unix socket, or both.
pub(super) async fn open(settings: &Settings) -> Result<Listeners, StartError> {
    let tcp = match settings.http_port {
        Some(port) => Some(open_tcp(port, settings.port_file.as_deref()).await?),
        None => None,
    };
    let unix = match &settings.socket {
        Some(path) => Some(open_unix(path).map_err(|source| StartError::Listen {
            address: path.display().to_string(),
            source,
        })?),
        None => None,
    };
    Ok(Listeners { tcp, unix })
}

async fn open_tcp(port: u16, port_file: Option<&Path>) -> Result<TcpListener, StartError> {
    let failed = |source| StartError::Listen {
        address: format!("localhost:{port}"),
        source,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    tracing::info!(port, "listening on localhost");
    if let Some(path) = port_file {
        crate::files::write_atomically(path, format!("{port}\n").as_bytes(), 0o644)
            .map_err(StartError::State)?;
    }
    Ok(listener)
}

/// Bound beside its place and moved there, so that nobody ever sees it with other rights or not listening. What a dead
/// agent left is replaced.
fn open_unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)?;
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    if temporary.exists() {
        fs_err::remove_file(temporary)?;
    }
    let listener = UnixListener::bind(temporary)?;
    fs_err::set_permissions(temporary, std::fs::Permissions::from_mode(0o600))?;
    fs_err::rename(temporary, path)?;
    tracing::info!(socket = %path.display(), "listening on a Unix socket");
    Ok(listener)
}

impl Listeners {
    /// Until shutdown, and then until open requests are answered.
    pub(super) async fn serve(self, router: Router, shutdown: &CancellationToken) {
        let tcp = async {
            if let Some(listener) = self.tcp {
                let listener = listener.tap_io(|stream| {
                    let _ = stream.set_nodelay(true);
                });
                let server = axum::serve(listener, router.clone());
                log(server
                    .with_graceful_shutdown(shutdown.clone().cancelled_owned())
                    .await);
            }
        };
        let unix = async {
            if let Some(listener) = self.unix {
                let server = axum::serve(listener, router.clone());
                log(server
                    .with_graceful_shutdown(shutdown.clone().cancelled_owned())
                    .await);
            }
        };
        tokio::join!(tcp, unix);
    }
}

fn log(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!(%error, "a listener failed");
    }
}
