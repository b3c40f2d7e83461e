//! Client connections, through any chain of jump hosts.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use russh::client::{self, ChannelOpenHandle, Handle, Session};
use russh::keys::{Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate};
use russh::{ChannelId, Disconnect, Preferred, Sig, SshId};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::channel::{ChannelStream, ExecChannel, ExitStatus};
use crate::ciphers;
use crate::error::SshError;
use crate::inbox::{Event, Inbox};
use crate::key_limits::peer_renews_keys;

/// One SSH server on the way, and how to log in there.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Host name or address.
    pub host: String,
    /// TCP port of the SSH server.
    pub port: u16,
    /// Name of the user to log in as.
    pub user: String,
    /// Keys to offer, in this order.
    pub keys: Vec<Arc<PrivateKey>>,
    /// Expected fingerprint of the host key (`SHA256:...`); `None` accepts any, as dstack 0.22.5 does.
    pub host_key: Option<String>,
    /// The host's keys where they are known: it must have one of them, and is asked for them first. Empty: not known.
    pub known_keys: Vec<PublicKey>,
}

impl Endpoint {
    fn accepts(&self, key: &PublicKey) -> bool {
        let expected = self.host_key.as_ref();
        let fingerprint_fits = expected.is_none_or(|expected| *expected == fingerprint(key));
        let known = self
            .known_keys
            .iter()
            .any(|known| known.key_data() == key.key_data());
        fingerprint_fits && (known || self.known_keys.is_empty())
    }

    /// What a host key must be, for people; `None`: anything.
    fn wanted(&self) -> Option<String> {
        let known = || {
            self.known_keys
                .iter()
                .map(fingerprint)
                .collect::<Vec<_>>()
                .join(" or ")
        };
        let of_known = (!self.known_keys.is_empty()).then(known);
        self.host_key.clone().or(of_known)
    }

    /// Algorithms of host keys in the order in which they are asked for. A server shows one key only: it should be the one that
    /// is known.
    fn algorithms(&self) -> Vec<Algorithm> {
        // An RSA key may sign with several hashes, each an algorithm of its own.
        let of_kind = |known: &PublicKey, algorithm: &Algorithm| match (known.algorithm(), algorithm) {
            (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
            (known, algorithm) => known == *algorithm,
        };
        let is_known = |algorithm: &Algorithm| self.known_keys.iter().any(|known| of_kind(known, algorithm));
        let mut algorithms = Preferred::DEFAULT.key.to_vec();
        algorithms.sort_by_key(|algorithm| !is_known(algorithm));
        algorithms
    }
}

fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

/// Time limits of a connection.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Limit for each hop: TCP connection, handshake and authentication together.
    pub timeout: Duration,
    /// A silent peer is asked for a sign of life this often.
    pub keepalive_interval: Duration,
    /// After so many unanswered requests the connection counts as dead.
    pub keepalive_max: usize,
    /// Bytes a channel may have under way to us. Less keeps other channels quick when one's reader is slow; more is
    /// faster over long distances.
    pub window: u32,
    /// What servers are told that this client is, as `SSH-2.0-dstack-server`; `None`: the name of the library.
    pub name: Option<&'static str>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(10),
            keepalive_max: 3,
            window: 2 << 20,
            name: None,
        }
    }
}

/// As much output of a command is read into memory.
pub const MAX_OUTPUT_BYTES: usize = 1024 * 1024;

/// What a finished command left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What the command wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What the command wrote to its standard error.
    pub stderr: Vec<u8>,
}

/// So many connections at a socket of the other side wait to be taken; more are refused.
const MAX_WAITING: usize = 64;

/// Who takes connections at the Unix sockets that the other side listens on for us, by their paths.
#[derive(Debug, Clone, Default)]
struct Forwards(Arc<Mutex<HashMap<String, mpsc::Sender<ChannelStream>>>>);

impl Forwards {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<ChannelStream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections of others at a Unix socket of the other side. The socket is left where it is when this is dropped: whoever
/// connects is refused.
#[derive(Debug)]
pub struct RemoteSocket {
    path: String,
    forwards: Forwards,
    connections: mpsc::Receiver<ChannelStream>,
}

impl RemoteSocket {
    /// The next one; `None`: the connection to the other side is gone.
    pub async fn accept(&mut self) -> Option<ChannelStream> {
        self.connections.recv().await
    }
}

impl Drop for RemoteSocket {
    fn drop(&mut self) {
        self.forwards.lock().remove(&self.path);
    }
}

/// A live, authenticated connection. Any number of commands and streams share it.
pub struct Connection {
    handle: Handle<Events>,
    inbox: Inbox,
    host_key: Presented,
    closed: watch::Receiver<bool>,
    forwards: Forwards,
    // The connection this one runs through lives as long as this one.
    via: Option<Box<Connection>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("host_key", &self.host_key.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to `target` through `jumps` (nearest first) and authenticates at each of them.
    pub async fn open(
        target: &Endpoint,
        jumps: &[Endpoint],
        options: &ConnectOptions,
    ) -> Result<Self, SshError> {
        let mut via: Option<Box<Connection>> = None;
        for hop in jumps.iter().chain(std::iter::once(target)) {
            let next = Self::open_hop(hop, via.take(), options);
            let next =
                tokio::time::timeout(options.timeout, next)
                    .await
                    .map_err(|_| SshError::Timeout {
                        host: hop.host.clone(),
                        port: hop.port,
                        limit: options.timeout,
                    })??;
            via = Some(Box::new(next));
        }
        via.map(|connection| *connection).ok_or(SshError::Closed)
    }

    async fn open_hop(
        hop: &Endpoint,
        via: Option<Box<Self>>,
        options: &ConnectOptions,
    ) -> Result<Self, SshError> {
        if let Some(via) = via {
            let stream = via.direct_tcpip(&hop.host, hop.port).await?;
            let mut connection = Self::over(stream, hop, options).await?;
            connection.via = Some(via);
            return Ok(connection);
        }
        let connect_error = |source| SshError::Connect {
            host: hop.host.clone(),
            port: hop.port,
            source,
        };
        let found = tokio::net::lookup_host((hop.host.as_str(), hop.port)).await;
        let addresses: Vec<_> = found
            .map_err(|source| SshError::Resolve {
                host: hop.host.clone(),
                source,
            })?
            .collect();
        let stream = TcpStream::connect(addresses.as_slice())
            .await
            .map_err(connect_error)?;
        stream.set_nodelay(true).map_err(connect_error)?;
        Self::over(stream, hop, options).await
    }

    /// Speaks SSH with `hop` over an existing stream. Has no time limit of its own.
    pub async fn over<S>(stream: S, hop: &Endpoint, options: &ConnectOptions) -> Result<Self, SshError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut config = client::Config {
            keepalive_interval: Some(options.keepalive_interval),
            keepalive_max: options.keepalive_max,
            window_size: options.window,
            nodelay: true,
            preferred: Preferred {
                key: hop.algorithms().into(),
                cipher: ciphers::preferred(),
                ..Preferred::DEFAULT
            },
            limits: peer_renews_keys(),
            ..client::Config::default()
        };
        if let Some(name) = options.name {
            config.client_id = SshId::Standard(name.into());
        }
        let inbox = Inbox::new();
        let (alive, closed) = watch::channel(false);
        let (host_key_sent, host_key) = watch::channel(Presented::default());
        let forwards = Forwards::default();
        let events = Events {
            inbox: inbox.clone(),
            forwards: forwards.clone(),
            endpoint: hop.clone(),
            host_key: host_key_sent,
            alive,
        };
        let connected = client::connect_stream(Arc::new(config), stream, events).await;
        let presented = host_key.borrow().clone();
        let mut handle = connected.map_err(|source| handshake_error(hop, &presented, source))?;
        authenticate(&mut handle, hop).await?;
        Ok(Self {
            handle,
            inbox,
            host_key: presented,
            closed,
            forwards,
            via: None,
        })
    }

    /// Fingerprint of the host key the server presented (`SHA256:...`).
    pub fn host_key(&self) -> &str {
        &self.host_key.fingerprint
    }

    /// The host key the server presented, a line `type base64`.
    pub fn host_key_line(&self) -> &str {
        &self.host_key.line
    }

    /// As [`Self::host_key_line`], of every server on the way, the nearest first and this one last.
    pub fn host_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = std::iter::successors(Some(self), |connection| connection.via.as_deref())
            .map(|connection| connection.host_key.line.clone())
            .collect();
        keys.reverse();
        keys
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow() || self.handle.is_closed()
    }

    /// Waits until the connection is gone.
    pub async fn closed(&self) {
        // An error means that the sending side is gone, and the connection with it.
        let _ = self.closed.clone().wait_for(|closed| *closed).await;
    }

    /// Ends the connection and everything on it.
    pub async fn close(&self) {
        // Failing means that it is closed already.
        let _ = self.handle.disconnect(Disconnect::ByApplication, "", "en").await;
    }

    /// Opens a stream to `host:port` as seen from the remote side.
    pub async fn direct_tcpip(&self, host: &str, port: u16) -> Result<ChannelStream, SshError> {
        let opened = self
            .handle
            .channel_open_direct_tcpip(host, port.into(), "127.0.0.1", 0)
            .await;
        self.stream(opened, || format!("{host}:{port}"))
    }

    /// Opens a stream to a Unix socket of the remote side.
    pub async fn direct_streamlocal(&self, path: &str) -> Result<ChannelStream, SshError> {
        let opened = self.handle.channel_open_direct_streamlocal(path).await;
        self.stream(opened, || path.to_owned())
    }

    /// Has the other side listen on a Unix socket, which must not be there.
    ///
    /// # Errors
    /// It refuses, or the path is listened on for us already.
    pub async fn listen_streamlocal(&self, path: &str) -> Result<RemoteSocket, SshError> {
        let (send, connections) = mpsc::channel(MAX_WAITING);
        self.forwards.lock().insert(path.to_owned(), send);
        let socket = RemoteSocket {
            path: path.to_owned(),
            forwards: self.forwards.clone(),
            connections,
        };
        let listening = self.handle.streamlocal_forward(path).await;
        listening.map_err(|source| self.channel_error(path.to_owned(), source))?;
        Ok(socket)
    }

    fn stream(
        &self,
        opened: Result<russh::Channel<client::Msg>, russh::Error>,
        target: impl FnOnce() -> String,
    ) -> Result<ChannelStream, SshError> {
        let channel = opened.map_err(|source| self.channel_error(target(), source))?;
        // The receiving half is replaced by our own queue, which never blocks the protocol task.
        let (_, sending) = channel.split();
        Ok(ChannelStream::new(self.inbox.reader(sending.id()), sending))
    }

    fn channel_error(&self, target: String, source: russh::Error) -> SshError {
        if self.is_closed() {
            SshError::Closed
        } else {
            SshError::ChannelRefused { target, source }
        }
    }

    /// Starts a command in the remote user's shell.
    pub async fn start(&self, command: &str) -> Result<ExecChannel, SshError> {
        self.request(command, Request::Exec).await
    }

    /// Starts a subsystem, such as `sftp`.
    pub async fn subsystem(&self, name: &str) -> Result<ChannelStream, SshError> {
        Ok(self.request(name, Request::Subsystem).await?.into_stream())
    }

    async fn request(&self, text: &str, request: Request) -> Result<ExecChannel, SshError> {
        let opened = self.handle.channel_open_session().await;
        let channel = opened.map_err(|source| self.channel_error("session".to_owned(), source))?;
        let (_, sending) = channel.split();
        let reader = self.inbox.reader(sending.id());
        let sent = match request {
            Request::Exec => sending.exec(true, text).await,
            Request::Subsystem => sending.request_subsystem(true, text).await,
        };
        sent.map_err(|_| SshError::Closed)?;
        let mut exec = ExecChannel::new(ChannelStream::new(reader, sending));
        match exec.next().await {
            Some(Event::Reply(true)) => Ok(exec),
            Some(_) => Err(SshError::ExecRefused {
                command: text.to_owned(),
            }),
            None => Err(SshError::Closed),
        }
    }

    /// Runs a command with this standard input and waits for its end.
    ///
    /// # Errors
    /// It was not started, or it says more than [`MAX_OUTPUT_BYTES`].
    pub async fn exec(&self, command: &str, stdin: &[u8]) -> Result<Output, SshError> {
        let mut exec = self.start(command).await?;
        let mut output = Output {
            status: ExitStatus::Unknown,
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let (events, mut input) = exec.split();
        let feed = async {
            // A command that does not read its input closes the channel early: its status says enough.
            let _ = input.write_all(stdin).await;
            let _ = input.shutdown().await;
            std::future::pending::<()>().await;
        };
        let collect = async {
            while let Some(event) = events.next().await {
                let said = output.stdout.len() + output.stderr.len();
                if said > MAX_OUTPUT_BYTES {
                    return false;
                }
                match event {
                    Event::Data(data) => output.stdout.extend_from_slice(&data),
                    Event::Stderr(data) => output.stderr.extend_from_slice(&data),
                    Event::Exit(code) => output.status = ExitStatus::Code(code),
                    Event::Killed(signal) => output.status = ExitStatus::Signal(signal),
                    Event::Reply(_) | Event::Eof => {}
                }
            }
            true
        };
        let is_whole = tokio::select! {
            () = feed => true,
            whole = collect => whole,
        };
        match is_whole {
            true => Ok(output),
            false => Err(SshError::OutputTooLong {
                limit: MAX_OUTPUT_BYTES,
            }),
        }
    }
}

enum Request {
    Exec,
    Subsystem,
}

fn handshake_error(hop: &Endpoint, presented: &Presented, source: russh::Error) -> SshError {
    match hop.wanted() {
        Some(expected) if presented.refused => SshError::HostKey {
            host: hop.host.clone(),
            port: hop.port,
            expected,
            found: presented.fingerprint.clone(),
        },
        _ => SshError::Handshake {
            host: hop.host.clone(),
            port: hop.port,
            source,
        },
    }
}

async fn authenticate(handle: &mut Handle<Events>, hop: &Endpoint) -> Result<(), SshError> {
    let handshake = |source| SshError::Handshake {
        host: hop.host.clone(),
        port: hop.port,
        source,
    };
    // A server that names no algorithms is an old one: SHA-256 is what every server still running accepts.
    let rsa_hash = handle.best_supported_rsa_hash().await.map_err(handshake)?;
    let rsa_hash = rsa_hash.unwrap_or(Some(HashAlg::Sha256));
    for key in &hop.keys {
        let key = PrivateKeyWithHashAlg::new(Arc::clone(key), rsa_hash);
        let result = handle
            .authenticate_publickey(&hop.user, key)
            .await
            .map_err(handshake)?;
        if result.success() {
            return Ok(());
        }
    }
    Err(SshError::Denied {
        user: hop.user.clone(),
        host: hop.host.clone(),
        port: hop.port,
    })
}

/// The host key that a server has shown.
#[derive(Debug, Clone, Default)]
struct Presented {
    fingerprint: String,
    line: String,
    refused: bool,
}

/// Receives what the protocol task reads and sorts it into the inbox.
struct Events {
    inbox: Inbox,
    forwards: Forwards,
    endpoint: Endpoint,
    host_key: watch::Sender<Presented>,
    alive: watch::Sender<bool>,
}

impl Drop for Events {
    fn drop(&mut self) {
        self.inbox.close_all();
        // Nobody connects any more.
        self.forwards.lock().clear();
        self.alive.send_replace(true);
    }
}

impl client::Handler for Events {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let of_certificate;
        let key = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => key,
            PublicKeyOrCertificate::Certificate(certificate) => {
                of_certificate = PublicKey::from(certificate.public_key().clone());
                &of_certificate
            }
        };
        let accepted = self.endpoint.accepts(key);
        self.host_key.send_replace(Presented {
            fingerprint: fingerprint(key),
            line: key.to_openssh()?,
            refused: !accepted,
        });
        Ok(accepted)
    }

    async fn channel_open_confirmation(
        &mut self,
        id: ChannelId,
        _max_packet_size: u32,
        _window_size: u32,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.inbox.expect(id);
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        channel: russh::Channel<client::Msg>,
        socket_path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let waiting = self.forwards.lock().get(socket_path).cloned();
        // Dropping the reply refuses the connection.
        let Some(place) = waiting.and_then(|waiting| waiting.try_reserve_owned().ok()) else {
            return Ok(());
        };
        self.inbox.expect(channel.id());
        let (_, sending) = channel.split();
        reply.accept().await;
        place.send(ChannelStream::new(self.inbox.reader(sending.id()), sending));
        Ok(())
    }

    async fn data(&mut self, id: ChannelId, data: &[u8], _session: &mut Session) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Data(Bytes::copy_from_slice(data)));
        self.inbox.throttle().await;
        Ok(())
    }

    async fn extended_data(
        &mut self,
        id: ChannelId,
        _code: u32,
        data: &[u8],
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Stderr(Bytes::copy_from_slice(data)));
        self.inbox.throttle().await;
        Ok(())
    }

    async fn channel_success(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Reply(true));
        Ok(())
    }

    async fn channel_failure(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Reply(false));
        Ok(())
    }

    async fn channel_eof(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Eof);
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.inbox.close(id);
        Ok(())
    }

    async fn exit_status(
        &mut self,
        id: ChannelId,
        status: u32,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Exit(status));
        Ok(())
    }

    async fn exit_signal(
        &mut self,
        id: ChannelId,
        signal: Sig,
        _core_dumped: bool,
        _message: &str,
        _language: &str,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let name = match signal {
            Sig::Custom(name) => name,
            known => format!("{known:?}"),
        };
        self.inbox.push(id, Event::Killed(name));
        Ok(())
    }
}

impl From<SshError> for io::Error {
    fn from(error: SshError) -> Self {
        io::Error::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfxm8ZIR9ypxoW+l1MoWlHVHfHHIhcUtRwIMqOb0Dt";
    const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfxm8ZIR9ypxoW+l1MoWlHVHfHHIhcUtRwIMqOb0Du";

    fn key(text: &str) -> PublicKey {
        PublicKey::from_openssh(text).unwrap()
    }

    fn endpoint(host_key: Option<String>, known: &[&str]) -> Endpoint {
        Endpoint {
            host: "h".to_owned(),
            port: 22,
            user: "u".to_owned(),
            keys: Vec::new(),
            host_key,
            known_keys: known.iter().map(|text| key(text)).collect(),
        }
    }

    #[test]
    fn a_known_host_needs_a_known_key() {
        let accepts = |endpoint: &Endpoint, text| endpoint.accepts(&key(text));
        assert!(accepts(&endpoint(None, &[]), ED25519));
        assert!(accepts(&endpoint(None, &[OTHER, ED25519]), ED25519));
        assert!(!accepts(&endpoint(None, &[OTHER]), ED25519));
        let seen = fingerprint(&key(ED25519));
        assert!(accepts(&endpoint(Some(seen.clone()), &[]), ED25519));
        assert!(!accepts(&endpoint(Some(seen), &[]), OTHER));
    }

    #[test]
    fn the_kind_of_key_that_is_known_is_asked_for_first() {
        let random = dstack_system::Random::seeded(1);
        let rsa = crate::keys::generate_rsa(&random, "").unwrap().public;
        let algorithms = endpoint(None, &[rsa.as_str()]).algorithms();
        let is_rsa = |algorithm: &Algorithm| matches!(algorithm, Algorithm::Rsa { .. });
        assert!(algorithms[..2].iter().all(is_rsa), "{algorithms:?}");
        assert_eq!(algorithms.len(), Preferred::DEFAULT.key.len());
        assert_eq!(endpoint(None, &[]).algorithms(), Preferred::DEFAULT.key.to_vec());
    }
}
