//! Port forwarding: to ports and sockets of this side, and from listeners of this side to the client.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use dstack_ssh::inbox::{Inbox, InboxReader};
use dstack_system::task;
use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{Channel, ChannelOpenFailure};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::login::Login;
use crate::options::{LocalService, ServeStream};
use crate::process::with_file_rights;
use crate::pump::{Sending, join};
use crate::server::Server;

/// Bytes of the pipe to a service of this process.
const LOCAL_BUFFER: usize = 256 * 1024;
/// The port on which every client expects this SSH server.
const SSH_PORT: u16 = 10022;

/// Where a local forwarding goes.
#[derive(Clone)]
pub(crate) enum Target {
    /// A service of this process.
    Service(ServeStream),
    /// This SSH server, in process.
    Own,
    /// A TCP port.
    Tcp(String, u16),
    /// A Unix socket.
    Socket(PathBuf),
}

impl Target {
    /// Ports of this side that clients know by convention are reached in process; everything else by the network.
    pub(crate) fn of(host: &str, port: u16, services: &[LocalService], ssh_port: u16) -> Self {
        let here = matches!(host, "localhost" | "127.0.0.1" | "::1");
        let service = services.iter().find(|service| service.ports.contains(&port));
        match (here, service) {
            (true, Some(service)) => Self::Service(Arc::clone(&service.serve)),
            (true, None) if port == SSH_PORT || port == ssh_port => Self::Own,
            _ => Self::Tcp(host.to_owned(), port),
        }
    }
}

/// Opens `target` and connects the channel with it.
pub(crate) async fn open(
    server: Arc<Server>,
    login: Login,
    target: Target,
    incoming: InboxReader,
    sending: Sending,
    reply: ChannelOpenHandle,
) {
    let failed = match target {
        Target::Service(serve) => {
            let (ours, theirs) = tokio::io::duplex(LOCAL_BUFFER);
            serve(Box::new(theirs));
            reply.accept().await;
            return join(incoming, &sending, ours).await;
        }
        Target::Own => {
            let (ours, theirs) = tokio::io::duplex(LOCAL_BUFFER);
            server.serve_stream(theirs, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            reply.accept().await;
            return join(incoming, &sending, ours).await;
        }
        Target::Tcp(host, port) => match connect(&host, port).await {
            Ok(stream) => {
                reply.accept().await;
                return join(incoming, &sending, stream).await;
            }
            Err(error) => error,
        },
        Target::Socket(path) => match connect_socket(login, path).await {
            Ok(stream) => {
                reply.accept().await;
                return join(incoming, &sending, stream).await;
            }
            Err(error) => error,
        },
    };
    tracing::debug!(error = %failed, "forwarding target cannot be reached");
    reply.reject(ChannelOpenFailure::ConnectFailed).await;
}

async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn connect_socket(login: Login, path: PathBuf) -> io::Result<UnixStream> {
    let connect = move || with_file_rights(&login, || std::os::unix::net::UnixStream::connect(path));
    let stream = task::blocking("ssh-connect-socket", connect)
        .await
        .map_err(io::Error::other)??;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Listeners a client asked for; they end with the connection.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    tcp: HashMap<(String, u32), Vec<Listening>>,
    sockets: HashMap<String, Listening>,
}

#[derive(Debug)]
struct Listening(JoinHandle<Option<()>>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How a listener reaches its client.
#[derive(Debug, Clone)]
pub(crate) struct Back {
    /// The client's connection.
    pub(crate) handle: Handle,
    /// Queues of what arrives on the channels of the connection.
    pub(crate) inbox: Inbox,
}

impl Listeners {
    /// Listens on `port` (0: any) of the loopback addresses, whatever address was asked for, as sshd does with
    /// `GatewayPorts no`. Returns the port.
    pub(crate) async fn listen_tcp(
        &mut self,
        address: &str,
        port: u32,
        back: &Back,
        login: &Login,
    ) -> io::Result<u32> {
        let wanted = u16::try_from(port).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        if wanted != 0 && wanted < 1024 && login.switch && login.uid != 0 {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).await?;
        let actual = first.local_addr()?.port();
        let mut listening = vec![accept_tcp(first, address.to_owned(), actual, back.clone())];
        // The other loopback is a convenience: not every container has IPv6.
        if let Ok(second) = TcpListener::bind((Ipv6Addr::LOCALHOST, actual)).await {
            listening.push(accept_tcp(second, address.to_owned(), actual, back.clone()));
        }
        self.tcp.insert((address.to_owned(), actual.into()), listening);
        Ok(actual.into())
    }

    /// Ends a listener; whether there was one.
    pub(crate) fn cancel_tcp(&mut self, address: &str, port: u32) -> bool {
        self.tcp.remove(&(address.to_owned(), port)).is_some()
    }

    /// Listens on a Unix socket, made with the rights of the user and open to the user only.
    pub(crate) async fn listen_socket(&mut self, path: &str, back: &Back, login: &Login) -> io::Result<()> {
        let socket = OwnedSocket::bind(PathBuf::from(path), login.clone()).await?;
        let path = path.to_owned();
        let task = accept_socket(socket, path.clone(), back.clone());
        self.sockets.insert(path, task);
        Ok(())
    }

    /// Ends a listener; whether there was one.
    pub(crate) fn cancel_socket(&mut self, path: &str) -> bool {
        self.sockets.remove(path).is_some()
    }
}

fn accept_tcp(listener: TcpListener, address: String, port: u16, back: Back) -> Listening {
    Listening(task::spawn("ssh-remote-forward", async move {
        loop {
            let Some((stream, peer)) = accepted(listener.accept().await).await else {
                continue;
            };
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            let (back, address) = (back.clone(), address.clone());
            task::spawn("ssh-remote-forward-connection", async move {
                let (from, from_port) = (peer.ip().to_string(), peer.port().into());
                let opened = back
                    .handle
                    .channel_open_forwarded_tcpip(address, port.into(), from, from_port)
                    .await;
                forward_back(opened, &back.inbox, stream).await;
            });
        }
    }))
}

fn accept_socket(socket: OwnedSocket, path: String, back: Back) -> Listening {
    Listening(task::spawn("ssh-remote-forward", async move {
        loop {
            let Some((stream, _)) = accepted(socket.listener.accept().await).await else {
                continue;
            };
            let (back, path) = (back.clone(), path.clone());
            task::spawn("ssh-remote-forward-connection", async move {
                let opened = back.handle.channel_open_forwarded_streamlocal(path).await;
                forward_back(opened, &back.inbox, stream).await;
            });
        }
    }))
}

/// What was accepted; after an error (out of descriptors, say) pauses a little instead of spinning.
pub(crate) async fn accepted<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::debug!(%error, "accept failed");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            None
        }
    }
}

/// Connects a channel that was opened towards the client with the accepted stream.
pub(crate) async fn forward_back<S>(opened: Result<Channel<Msg>, russh::Error>, inbox: &Inbox, stream: S)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    match opened {
        Ok(channel) => {
            let (_, sending) = channel.split();
            join(inbox.reader(sending.id()), &sending, stream).await;
        }
        Err(error) => tracing::debug!(%error, "the client refused a forwarded connection"),
    }
}

/// A listening socket that removes its file when it ends, unless the file has become another one.
#[derive(Debug)]
pub(crate) struct OwnedSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
    login: Login,
}

impl OwnedSocket {
    /// Binds with the rights of `login`, mode 0600.
    pub(crate) async fn bind(path: PathBuf, login: Login) -> io::Result<Self> {
        let (bind_path, bind_login) = (path.clone(), login.clone());
        let bind = move || {
            with_file_rights(&bind_login, || {
                let listener = std::os::unix::net::UnixListener::bind(&bind_path)?;
                fs_err::set_permissions(&bind_path, std::fs::Permissions::from_mode(0o600))?;
                let found = fs_err::symlink_metadata(&bind_path)?;
                Ok((listener, (found.dev(), found.ino())))
            })
        };
        let (listener, identity) = task::blocking("ssh-bind-socket", bind)
            .await
            .map_err(io::Error::other)??;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            path,
            identity,
            login,
        })
    }
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        // Leaving the file behind would only make the next bind fail: nothing worth reporting.
        let _ = with_file_rights(&self.login, || {
            let found = fs_err::symlink_metadata(&self.path)?;
            if (found.dev(), found.ino()) == self.identity {
                fs_err::remove_file(&self.path)?;
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(target: Target) -> String {
        match target {
            Target::Service(_) => "service".to_owned(),
            Target::Own => "own".to_owned(),
            Target::Tcp(host, port) => format!("{host} {port}"),
            Target::Socket(path) => path.display().to_string(),
        }
    }

    #[test]
    fn services_and_the_server_itself_are_reached_in_process() {
        let service = LocalService {
            ports: vec![10999, 4001],
            serve: Arc::new(|_| {}),
        };
        let of = |host, port| shown(Target::of(host, port, std::slice::from_ref(&service), 4002));
        for host in ["localhost", "127.0.0.1", "::1"] {
            assert_eq!(of(host, 10999), "service");
            assert_eq!(of(host, 4001), "service");
            assert_eq!(of(host, 10022), "own");
            assert_eq!(of(host, 4002), "own");
            assert_eq!(of(host, 8000), format!("{host} 8000"));
        }
        assert_eq!(of("10.0.0.7", 10999), "10.0.0.7 10999");
    }
}
