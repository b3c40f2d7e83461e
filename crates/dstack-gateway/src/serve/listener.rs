//! Accepts connections, with and without TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::Scheme;
use dstack_system::task;
use futures_util::FutureExt as _;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::connection::{self, Protocol};
use super::{Front, Peer};

/// Time to agree on keys.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// After the system had no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;
/// As long as the last clients have to ask.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// What HTTP/2 is called when keys are agreed on.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// And HTTP/1.1.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// What all listeners share.
#[derive(Debug, Clone)]
pub struct Listening {
    front: Arc<Front>,
    places: Arc<Semaphore>,
    stopping: CancellationToken,
    connections: TaskTracker,
}

impl Listening {
    /// With so many connections at a time.
    pub fn new(front: Arc<Front>, most: usize) -> Self {
        Self {
            front,
            places: Arc::new(Semaphore::new(most)),
            stopping: CancellationToken::new(),
            connections: TaskTracker::new(),
        }
    }

    /// Accepts connections until [`Self::stop`].
    pub fn listen(&self, listener: TcpListener, tls: Option<Arc<ServerConfig>>) {
        let this = self.clone();
        let acceptor = tls.map(TlsAcceptor::from);
        task::spawn("listener", async move {
            let stopping = this.stopping.clone();
            tokio::select! {
                () = stopping.cancelled() => {}
                () = this.accept(&listener, &acceptor) => {}
            }
            this.accept_last(&listener, &acceptor);
        });
    }

    async fn accept(&self, listener: &TcpListener, acceptor: &Option<TlsAcceptor>) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return;
            };
            let accepted = accepted(listener).await;
            let stopping = self.stopping.clone();
            self.begin(accepted, acceptor.clone(), stopping, Some(place));
        }
    }

    /// Those that have been connected by the system already get one answer.
    fn accept_last(&self, listener: &TcpListener, acceptor: &Option<TlsAcceptor>) {
        let stopping = CancellationToken::new();
        while let Some(Ok(accepted)) = listener.accept().now_or_never() {
            self.begin(accepted, acceptor.clone(), stopping.clone(), None);
        }
        task::spawn("last connections", async move {
            sleep(LAST_PATIENCE).await;
            stopping.cancel();
        });
    }

    fn begin(
        &self,
        (stream, address): (TcpStream, SocketAddr),
        acceptor: Option<TlsAcceptor>,
        stopping: CancellationToken,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let this = Self {
            stopping,
            ..self.clone()
        };
        let serving = self.connections.track_future(async move {
            this.serve(stream, address, acceptor).await;
            drop(place);
        });
        task::spawn("connection", serving);
    }

    async fn serve(self, stream: TcpStream, address: SocketAddr, acceptor: Option<TlsAcceptor>) {
        let _ = stream.set_nodelay(true);
        let peer = |scheme| Peer {
            address: address.ip(),
            scheme,
        };
        let Some(acceptor) = acceptor else {
            let peer = peer(Scheme::Http);
            return connection::serve(self.front, stream, peer, Protocol::Http1, self.stopping).await;
        };
        let Ok(Ok(stream)) = timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await else {
            return tracing::debug!(peer = %address, "no keys were agreed on");
        };
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(protocol) if protocol == ALPN_HTTP2 => Protocol::Http2,
            _ => Protocol::Http1,
        };
        connection::serve(self.front, stream, peer(Scheme::Https), protocol, self.stopping).await;
    }

    /// Accepts no more when what is returned is dropped.
    pub fn until_dropped(&self) -> DropGuard {
        self.stopping.clone().drop_guard()
    }

    /// Accepts no more, and waits for the requests under way, at most for so long.
    pub async fn stop(&self, limit: Duration) {
        self.stopping.cancel();
        self.connections.close();
        let _ = timeout(limit, self.connections.wait()).await;
    }
}

async fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Listens at this address; with `shared`, also where a gateway of the same user listens.
///
/// # Errors
/// It is taken, or is not this machine's.
pub fn bind(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    if !shared {
        // A socket that may be shared would not find out that the address is taken.
        let alone = socket(address)?;
        alone.bind(address)?;
        drop(alone.listen(1)?);
    }
    let socket = socket(address)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A gateway that is started again must not wait for the connections of the one before.
    socket.set_reuseaddr(true)?;
    Ok(socket)
}
