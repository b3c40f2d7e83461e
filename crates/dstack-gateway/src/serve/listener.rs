//! Accepts connections, with and without TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::Scheme;
use dstack_system::task;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::connection::{self, Protocol};
use super::placed::Placed;
use super::{Front, Peer};

/// Time to agree on keys.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// After the system had no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;
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
    listeners: TaskTracker,
    connections: TaskTracker,
}

impl Listening {
    /// With so many connections at a time.
    pub fn new(front: Arc<Front>, most: usize) -> Self {
        Self {
            front,
            places: Arc::new(Semaphore::new(most)),
            stopping: CancellationToken::new(),
            listeners: TaskTracker::new(),
            connections: TaskTracker::new(),
        }
    }

    /// Accepts connections until [`Self::stop`].
    pub fn listen(&self, listener: TcpListener, tls: Option<Arc<ServerConfig>>) {
        let this = self.clone();
        let acceptor = tls.map(TlsAcceptor::from);
        let listening = async move {
            let stopping = this.stopping.clone();
            tokio::select! {
                // First: those that are accepted from then on are the last.
                biased;
                () = stopping.cancelled() => {}
                () = this.accept(&listener, &acceptor) => {}
            }
            if let Err(error) = this.accept_last(listener, &acceptor) {
                tracing::warn!(%error, "the last connections were not accepted");
            }
        };
        task::spawn("listener", self.listeners.track_future(listening));
    }

    async fn accept(&self, listener: &TcpListener, acceptor: &Option<TlsAcceptor>) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return;
            };
            let accepted = accepted(listener).await;
            self.begin(accepted, acceptor.clone(), Some(place));
        }
    }

    /// Those that have been connected by the system already get one answer. Accepted by the system's own call: whether there are any
    /// may not have been heard of yet.
    fn accept_last(&self, listener: TcpListener, acceptor: &Option<TlsAcceptor>) -> io::Result<()> {
        let listener = listener.into_std()?;
        while let Ok((stream, address)) = listener.accept() {
            stream.set_nonblocking(true)?;
            self.begin((TcpStream::from_std(stream)?, address), acceptor.clone(), None);
        }
        Ok(())
    }

    fn begin(
        &self,
        (stream, address): (TcpStream, SocketAddr),
        acceptor: Option<TlsAcceptor>,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let _ = stream.set_nodelay(true);
        let stream = Placed {
            stream,
            _place: place,
        };
        let serving = self.clone().serve(stream, address, acceptor);
        task::spawn("connection", self.connections.track_future(serving));
    }

    async fn serve(self, stream: Placed, address: SocketAddr, acceptor: Option<TlsAcceptor>) {
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
        self.listeners.close();
        self.connections.close();
        let ended = async {
            // What they accept at last is counted as well.
            self.listeners.wait().await;
            self.connections.wait().await;
        };
        let _ = timeout(limit, ended).await;
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
