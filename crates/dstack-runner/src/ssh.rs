//! The runner's own SSH server: exec, shell with PTY, SFTP, port forwarding, in any image.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use dstack_agent_api::http::Wire;

use crate::users::Passwd;

/// Serves one connection of the runner's HTTP API in this process.
pub type ServeApi = Arc<dyn Fn(Box<dyn Wire>) + Send + Sync>;

/// What a login gets besides its own account: set by the executor before the job's commands start.
#[derive(Debug, Clone, Default)]
pub struct SessionDefaults {
    /// The job's environment without HOME, USER, SHELL and the like.
    pub env: Vec<(String, String)>,
    /// The job's working directory; `None`: the account's home.
    pub working_dir: Option<PathBuf>,
}

/// How to serve SSH.
#[derive(Clone)]
pub struct SshOptions {
    /// Bound already.
    pub listener: Arc<std::net::TcpListener>,
    /// Keys that may log in as any user, one `authorized_keys` line each.
    pub authorized_keys: Vec<String>,
    /// Where the server may keep its files (`<state dir>/ssh`).
    pub dir: PathBuf,
    /// Accounts of the image: read when somebody logs in.
    pub passwd: Passwd,
    /// Whether sessions switch to the user of the login; `false`: every login is the runner's own user.
    pub switch_user: bool,
    /// Environment and working directory of sessions.
    pub session: watch::Receiver<SessionDefaults>,
    /// Port of the runner's HTTP API: a forwarding to it on a loopback address goes to `serve_api` instead.
    pub api_port: u16,
    /// Serves such a forwarding.
    pub serve_api: ServeApi,
    /// Command that speaks SFTP on its standard input and output by calling [`sftp::serve_stdio`]; it is started as the
    /// user of the login. In the agent: `/proc/self/exe runner sftp-server`. Empty: no SFTP.
    pub sftp_server: Vec<OsString>,
}

impl std::fmt::Debug for SshOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshOptions").field("dir", &self.dir).field("api_port", &self.api_port).finish_non_exhaustive()
    }
}
