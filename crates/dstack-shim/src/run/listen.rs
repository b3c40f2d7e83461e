//! The API's sockets.

use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::Router;
use axum::serve::{Listener, ListenerExt as _};
use dstack_agent_api::peer;
use tokio::net::unix::SocketAddr;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::error::StartError;
use crate::settings::Settings;

/// The sockets on which the API is served.
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
        address: format!("127.0.0.1:{port}"),
        source,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    tracing::info!(port, "listening on 127.0.0.1");
    if let Some(path) = port_file {
        dstack_system::file::write_atomically(path, format!("{port}\n").as_bytes(), 0o644)
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
                let server = axum::serve(OwnPeers(listener), router.clone());
                log(server
                    .with_graceful_shutdown(shutdown.clone().cancelled_owned())
                    .await);
            }
        };
        tokio::join!(tcp, unix);
    }
}

/// A socket that answers processes of this user only, and of root.
struct OwnPeers(UnixListener);

impl Listener for OwnPeers {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.0).await;
            match peer::check(&stream) {
                Ok(()) => return (stream, address),
                Err(error) => tracing::warn!(%error, "a connection is not answered"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

fn log(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!(%error, "a listener failed");
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Connects as another user, in a thread of its own that becomes that user. `None`: this process may not.
    #[allow(clippy::disallowed_methods)] // a pooled thread would stay that user
    fn connect_as_nobody(path: PathBuf) -> Option<std::os::unix::net::UnixStream> {
        let connect = move || {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).ok()?;
            Some(std::os::unix::net::UnixStream::connect(path).unwrap())
        };
        std::thread::spawn(connect).join().unwrap()
    }

    #[tokio::test]
    async fn other_users_are_not_answered_even_where_they_reach_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shim.sock");
        let mut listener = OwnPeers(open_unix(&path).unwrap());
        for (path, mode) in [(dir.path(), 0o755), (path.as_path(), 0o666)] {
            fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let Some(foreign) = connect_as_nobody(path.clone()) else {
            eprintln!("skipped: only root can be somebody else");
            return;
        };
        let own = UnixStream::connect(&path).await.unwrap();
        let (accepted, _) = listener.accept().await;
        assert_eq!(
            accepted.peer_cred().unwrap().uid(),
            own.peer_cred().unwrap().uid()
        );
        // The other one is closed.
        foreign.set_nonblocking(false).unwrap();
        assert_eq!(std::io::Read::read(&mut &foreign, &mut [0]).unwrap(), 0);
    }
}
