//! The server: its start, its connections, its end.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dstack_ssh::key_limits::peer_renews_keys;
use dstack_ssh::keys::KeyError;
use dstack_system::task;
use russh::keys::PrivateKey;
use russh::{MethodKind, MethodSet, SshId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::forward::{Target, accepted};
use crate::handler::Client;
use crate::host_keys::{make_host_keys, read_host_key};
use crate::keys::AcceptedKeys;
use crate::login::Login;
use crate::options::SshOptions;

/// A client that has not logged in by then is disconnected (sshd's `LoginGraceTime`).
const LOGIN_GRACE: Duration = Duration::from_secs(120);
/// A silent client is asked for a sign of life this often (dstack 0.22.5: `ClientAliveInterval 30`).
const ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// After so many unanswered questions it counts as gone (dstack 0.22.5: `ClientAliveCountMax 4`).
const ALIVE_MAX: usize = 4;

/// Why the server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener cannot be used.
    #[error("cannot listen for SSH connections")]
    Listen(#[source] io::Error),
    /// Host keys cannot be made or stored, or the one that was given cannot be used.
    #[error("cannot make or read the SSH host keys in {}", dir.display())]
    HostKeys {
        /// Where they were to be stored, or the file with the one that was given.
        dir: PathBuf,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A TCP connection that is open now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenConnection {
    /// The client's address.
    pub remote: SocketAddr,
    /// What the client says to be (`SSH-2.0-OpenSSH_9.9`), once it has logged in; empty before.
    pub client: String,
    /// When it was accepted.
    pub since: Instant,
}

/// A running SSH server. It stops when the handle is dropped.
#[derive(Debug)]
pub struct SshHandle {
    server: Arc<Server>,
    port: u16,
    accepting: JoinHandle<Option<()>>,
}

impl SshHandle {
    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets a key log in as any user from now on: one line `type base64 [comment]`.
    ///
    /// # Errors
    /// The line is no public key.
    pub fn add_key(&self, line: &str) -> Result<(), KeyError> {
        self.server.keys.add(line)
    }

    /// TCP connections open now, authenticated or not; connections through the server to itself are not among them.
    pub fn connections(&self) -> Vec<OpenConnection> {
        self.server.open().values().map(Entry::connection).collect()
    }

    /// Ends when [`Self::connections`] has none that counts.
    pub async fn until_no_connections(&self, counts: impl Fn(&OpenConnection) -> bool) {
        loop {
            let closed = self.server.closed.notified();
            if !self.connections().iter().any(&counts) {
                return;
            }
            closed.await;
        }
    }

    /// Stops accepting and ends all connections; their programs get SIGHUP.
    pub fn stop(&self) {
        self.accepting.abort();
        for (_, entry) in self.server.open().drain() {
            entry.serving.abort();
        }
        self.server.closed.notify_waiters();
    }
}

impl Drop for SshHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts serving. Must be called inside a tokio runtime.
///
/// # Errors
/// The listener cannot be used, or the host keys cannot be stored.
pub async fn serve(options: SshOptions) -> Result<SshHandle, ServeError> {
    let listener = options.listener.try_clone().map_err(ServeError::Listen)?;
    listener.set_nonblocking(true).map_err(ServeError::Listen)?;
    let listener = TcpListener::from_std(listener).map_err(ServeError::Listen)?;
    let port = listener.local_addr().map_err(ServeError::Listen)?.port();
    let (host_keys, dir) = match &options.host_key {
        Some(file) => (read_host_key(file), file),
        None => (make_host_keys(&options.dir), &options.dir),
    };
    let host_keys = host_keys.map_err(|source| ServeError::HostKeys {
        dir: dir.clone(),
        source,
    })?;
    let keys = AcceptedKeys::default();
    for line in &options.authorized_keys {
        // As sshd: one bad line does not lock the others out.
        if let Err(error) = keys.add(line) {
            tracing::warn!(%error, "an authorized key was skipped");
        }
    }
    let server = Arc::new(Server {
        options,
        port,
        keys,
        config: Arc::new(config(host_keys)),
        next: AtomicU64::new(0),
        open: Mutex::default(),
        closed: Notify::new(),
    });
    let accepting = task::spawn("ssh-accept", accept(Arc::clone(&server), listener));
    tracing::info!(ssh.port = port, "SSH server started");
    Ok(SshHandle {
        server,
        port,
        accepting,
    })
}

async fn accept(server: Arc<Server>, listener: TcpListener) {
    loop {
        let Some((stream, peer)) = accepted(listener.accept().await).await else {
            continue;
        };
        let local = stream.local_addr();
        if let (Ok(()), Ok(local)) = (stream.set_nodelay(true), local) {
            server.serve_tcp(stream, peer, local);
        }
    }
}

fn config(keys: Vec<PrivateKey>) -> russh::server::Config {
    russh::server::Config {
        server_id: SshId::Standard(concat!("SSH-2.0-dstack_", env!("CARGO_PKG_VERSION")).into()),
        methods: MethodSet::from([MethodKind::PublicKey].as_slice()),
        // Keys are no guessable secrets: an agent full of other keys should not have to wait for each.
        auth_rejection_time: Duration::ZERO,
        auth_rejection_time_initial: Some(Duration::ZERO),
        max_auth_attempts: 32,
        keys,
        inactivity_timeout: None,
        keepalive_interval: Some(ALIVE_INTERVAL),
        keepalive_max: ALIVE_MAX,
        nodelay: true,
        limits: peer_renews_keys(),
        ..russh::server::Config::default()
    }
}

/// What all connections share.
pub(crate) struct Server {
    pub(crate) options: SshOptions,
    port: u16,
    pub(crate) keys: AcceptedKeys,
    pub(crate) config: Arc<russh::server::Config>,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Entry>>,
    /// Told whenever one of them is gone.
    closed: Notify,
}

/// A connection being served.
struct Entry {
    remote: SocketAddr,
    since: Instant,
    client: ClientName,
    serving: JoinHandle<Option<()>>,
}

/// What a client says to be, once it has logged in.
pub(crate) type ClientName = Arc<OnceLock<String>>;

impl Entry {
    fn connection(&self) -> OpenConnection {
        OpenConnection {
            remote: self.remote,
            client: self.client.get().cloned().unwrap_or_default(),
            since: self.since,
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Server {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn login(&self, user: &str) -> Option<Login> {
        if self.options.switch_user {
            Login::find(&self.options.passwd, user)
        } else {
            Some(Login::own(&self.options.passwd, dstack_system::env::home()))
        }
    }

    pub(crate) fn target(&self, host: &str, port: u16) -> Target {
        Target::of(host, port, &self.options.services, self.port)
    }

    fn serve_tcp(self: &Arc<Self>, stream: tokio::net::TcpStream, remote: SocketAddr, local: SocketAddr) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let server = Arc::clone(self);
        let client = ClientName::default();
        let name = Arc::clone(&client);
        // The entry must be there before the task can remove it.
        let mut open = self.open();
        let serving = task::spawn("ssh-connection", async move {
            Arc::clone(&server)
                .serve_client(stream, remote, local, name)
                .await;
            server.open().remove(&id);
            server.closed.notify_waiters();
        });
        let since = Instant::now();
        open.insert(
            id,
            Entry {
                remote,
                since,
                client,
                serving,
            },
        );
    }

    /// Serves a client on a stream of this process; it lives as long as the stream.
    pub(crate) fn serve_stream<S>(self: &Arc<Self>, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        task::spawn(
            "ssh-connection",
            Arc::clone(self).serve_client(stream, peer, local, ClientName::default()),
        );
    }

    /// Serves one client until it is gone. Boxed, because a client may reach this server through itself.
    fn serve_client<S>(
        self: Arc<Self>,
        stream: S,
        peer: SocketAddr,
        local: SocketAddr,
        name: ClientName,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Box::pin(async move {
            let authenticated = Arc::new(AtomicBool::new(false));
            let config = Arc::clone(&self.config);
            let client = Client::new(self, peer, local, Arc::clone(&authenticated), name);
            let grace = tokio::time::sleep(LOGIN_GRACE);
            tokio::pin!(grace);
            let session = tokio::select! {
                started = russh::server::run_stream(config, stream, client) => match started {
                    Ok(session) => session,
                    Err(error) => return tracing::debug!(%peer, %error, "SSH connection not established"),
                },
                () = &mut grace => return,
            };
            let closing = CloseOnDrop(session.handle());
            tokio::pin!(session);
            let ended = tokio::select! {
                ended = &mut session => ended,
                () = &mut grace => {
                    if !authenticated.load(Ordering::Acquire) {
                        return;
                    }
                    session.await
                }
            };
            drop(closing);
            if let Err(error) = ended {
                tracing::debug!(%peer, %error, "SSH connection ended");
            }
        })
    }
}

/// Ends a connection whose serving task is dropped: russh runs it in a task of its own.
struct CloseOnDrop(russh::server::Handle);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let handle = self.0.clone();
        if tokio::runtime::Handle::try_current().is_ok() {
            task::spawn("ssh-disconnect", async move {
                // Fails when the connection has ended by itself.
                let _ = handle
                    .disconnect(russh::Disconnect::ByApplication, String::new(), "en".to_owned())
                    .await;
            });
        }
    }
}
