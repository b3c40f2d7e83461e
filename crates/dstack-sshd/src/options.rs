//! What the server is told when it starts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use dstack_system::accounts::Passwd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// A stream of bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Serves one connection in this process. Must not block.
pub type ServeStream = Arc<dyn Fn(Box<dyn ByteStream>) + Send + Sync>;

/// A service of this process: forwardings to its ports on a loopback address lead to it, whether or not something listens
/// there.
#[derive(Clone)]
pub struct LocalService {
    /// Ports that clients name.
    pub ports: Vec<u16>,
    /// Serves such a forwarding.
    pub serve: ServeStream,
}

impl std::fmt::Debug for LocalService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalService")
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

/// What sessions get besides the account of the login. Read when a session starts.
#[derive(Debug, Clone, Default)]
pub struct SessionDefaults {
    /// Environment variables; those of the account (HOME, USER, SHELL and the like) win over them.
    pub env: Vec<(String, String)>,
    /// Working directory; `None`: the account's home.
    pub working_dir: Option<PathBuf>,
}

/// How to serve SSH.
#[derive(Clone)]
pub struct SshOptions {
    /// Socket on which clients connect; bound already.
    pub listener: Arc<std::net::TcpListener>,
    /// Keys that may log in as any user, one `authorized_keys` line each.
    pub authorized_keys: Vec<String>,
    /// Where the server keeps its host keys (`conf/`); created when it is missing.
    pub dir: PathBuf,
    /// File with the private key by which clients know the server; `None`: new keys are made.
    pub host_key: Option<PathBuf>,
    /// Accounts that can log in: read at each login.
    pub passwd: Passwd,
    /// Whether sessions switch to the user of the login; `false`: every login is the user of this process.
    pub switch_user: bool,
    /// Environment and working directory of sessions.
    pub session: watch::Receiver<SessionDefaults>,
    /// Services of this process that clients reach by forwarding a port.
    pub services: Vec<LocalService>,
    /// Command that speaks SFTP on its standard input and output by calling
    /// [`sftp::serve_stdio`](crate::sftp::serve_stdio); it is started as the user of the login. Empty: no SFTP.
    pub sftp_server: Vec<OsString>,
}

impl std::fmt::Debug for SshOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshOptions")
            .field("dir", &self.dir)
            .field("services", &self.services)
            .finish_non_exhaustive()
    }
}
