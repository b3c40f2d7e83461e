//! A runner from start to exit.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing_subscriber::layer::SubscriberExt;

use dstack_agent_api::container::SERVER_CLIENT;
use dstack_agent_api::runner::RunnerState;
use dstack_agent_api::shim::RUNNER_HTTP_PORT;
use dstack_sshd::{LocalService, OpenConnection, SshHandle, SshOptions};
use dstack_system::accounts::Passwd;
use dstack_system::clock::SharedClock;
use dstack_system::{Secret, SystemClock, task};

use crate::api;
use crate::args::{RunnerArgs, RunnerCommand, StartArgs};
use crate::capabilities::Capabilities;
use crate::inactivity::Connections;
use crate::log::{Level, RunnerLog};
use crate::paths;
use crate::shared::{Core, JobSsh, Settings, chain};
use crate::users::Owner;

/// A runner to which nobody brings a job gives up after this time.
const JOB_WAIT: Duration = Duration::from_secs(300);
/// A runner whose job is over waits so long for its logs to be fetched.
const LOGS_WAIT: Duration = Duration::from_secs(300);
/// Clients that have read everything have so long to close their connections.
const CLIENTS_LEAVE: Duration = Duration::from_secs(5);
/// Answers under way at the exit have so long.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Why a runner exits with 1.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// Neither root nor told to leave the system alone.
    #[error("must be root")]
    NotRoot,
    /// A flag that cannot be used.
    #[error("{0}")]
    Flag(String),
    /// Temporary or state directory.
    #[error("cannot prepare {}", path.display())]
    Directory {
        /// The directory that was to be made.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A port cannot be bound.
    #[error("cannot listen on port {port}")]
    Listen {
        /// The port that was asked for.
        port: u16,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The SSH server.
    #[error("cannot start the SSH server")]
    Ssh(#[source] dstack_sshd::ServeError),
    /// Nobody came; the host agent shows this line.
    #[error("no job submitted")]
    NoJob,
    /// A signal came before a job.
    #[error("interrupted before a job was submitted")]
    Interrupted,
}

/// Runs a subcommand; what the process exits with.
///
/// The caller must end the process with it at once (or shut its runtime down in the background): after a stop, blocking
/// work such as a clone may still be winding down.
pub async fn run(args: RunnerArgs) -> ExitCode {
    let result = match args.command {
        RunnerCommand::Start(start) => run_job(args.log_level, &start)
            .await
            .map_err(|error| chain(&error)),
        RunnerCommand::SftpServer { .. } => {
            match task::blocking("sftp", dstack_sshd::sftp::serve_stdio).await {
                Ok(served) => served.map_err(|error| chain(&error)),
                Err(panicked) => Err(panicked.to_string()),
            }
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // The last line of the container's output becomes the job's termination message.
            let _ = writeln!(io::stderr(), "{message}");
            ExitCode::FAILURE
        }
    }
}

async fn run_job(level: Level, start: &StartArgs) -> Result<(), RunnerError> {
    let token = dstack_system::env::var(crate::TOKEN_VARIABLE).map(Secret::from);
    let runner = Runner::start(level, start, token, true).await?;
    let subscriber = tracing_subscriber::registry().with(runner.core.log.clone());
    // Only a test that runs several has one already.
    let _ = tracing::subscriber::set_global_default(subscriber);
    runner.finish(signals()).await
}

/// SIGINT, SIGTERM and SIGQUIT.
fn signals() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(1);
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::quit(),
    ] {
        let Ok(mut stream) = signal(kind) else { continue };
        let sender = sender.clone();
        task::spawn("signal", async move {
            while stream.recv().await.is_some() {
                // One that waits already is enough.
                let _ = sender.try_send(());
            }
        });
    }
    receiver
}

/// A runner that serves.
#[derive(Debug)]
pub struct Runner {
    core: Arc<Core>,
    started: Instant,
    http_port: u16,
    ssh: Arc<Ssh>,
    http: JoinHandle<Option<()>>,
    shutdown: watch::Sender<bool>,
}

impl Runner {
    /// Prepares the directories, then serves SSH and HTTP. `stdout`: log to standard output, too.
    pub async fn start(
        level: Level,
        start: &StartArgs,
        token: Option<Secret>,
        stdout: bool,
    ) -> Result<Self, RunnerError> {
        if !start.no_profile && !rustix::process::getuid().is_root() {
            return Err(RunnerError::NotRoot);
        }
        let clock: SharedClock = Arc::new(SystemClock);
        let temp_error = |source| RunnerError::Directory {
            path: start.temp_dir.clone(),
            source,
        };
        paths::create_dirs(&start.temp_dir, None).map_err(temp_error)?;
        let log =
            RunnerLog::create(&start.temp_dir, level, stdout, Arc::clone(&clock)).map_err(temp_error)?;
        prepare_state_dir(start).map_err(|source| RunnerError::Directory {
            path: start.state_dir.clone(),
            source,
        })?;
        let core = Arc::new(Core::create(settings(start, token), log, clock).map_err(temp_error)?);

        let addresses = start.addresses().map_err(RunnerError::Flag)?;
        let http = bind(&addresses, start.http_port)?;
        let http_port = port_of(&http, start.http_port)?;
        let (router_ready, router) = watch::channel(None);
        let ssh = Arc::new(serve_ssh(start, &core, &addresses, http_port, router).await?);
        let router = api::router(Arc::clone(&core), Arc::clone(&ssh) as Arc<dyn JobSsh>);
        router_ready.send_replace(Some(router.clone()));

        let (shutdown, stopped) = watch::channel(false);
        let http = task::spawn("http", serve_http(http, router, stopped));
        if let Some(path) = &start.port_file {
            let ports = serde_json::json!({"http": http_port, "ssh": ssh.handle.port()});
            write_atomically(path, format!("{ports}\n").as_bytes()).map_err(|source| {
                RunnerError::Directory {
                    path: path.clone(),
                    source,
                }
            })?;
        }
        core.log.info(format_args!(
            "serving HTTP on port {http_port} and SSH on port {}",
            ssh.handle.port()
        ));
        Ok(Self {
            core,
            started: Instant::now(),
            http_port,
            ssh,
            http,
            shutdown,
        })
    }

    /// The port HTTP is served on.
    pub const fn http_port(&self) -> u16 {
        self.http_port
    }

    /// The port SSH is served on.
    pub fn ssh_port(&self) -> u16 {
        self.ssh.handle.port()
    }

    /// Waits for the job, its end, and its logs to be fetched. A message on `signals` stops the job.
    pub async fn finish(self, mut signals: mpsc::Receiver<()>) -> Result<(), RunnerError> {
        let lived = self.live(&mut signals).await;
        if let Err(error) = &lived {
            self.core.log.error(chain(error));
        }
        // Streams that wait for clients end.
        self.core.clients_left();
        self.shutdown.send_replace(true);
        let _ = timeout(SHUTDOWN_GRACE, self.http).await;
        self.ssh.handle.stop();
        lived
    }

    async fn live(&self, signals: &mut mpsc::Receiver<()>) -> Result<(), RunnerError> {
        let mut state = self.core.watch_state();
        tokio::select! {
            _ = state.wait_for(|state| matches!(state, RunnerState::ServeLogs | RunnerState::WaitLogsFinished)) => {}
            () = sleep_until(self.started + JOB_WAIT) => return Err(RunnerError::NoJob),
            () = received(signals) => return Err(RunnerError::Interrupted),
        }
        loop {
            tokio::select! {
                _ = state.wait_for(|state| *state == RunnerState::WaitLogsFinished) => break,
                () = received(signals) => self.core.stop(),
            }
        }
        let mut served = self.core.watch_served();
        let fetched = async {
            // A job may end while its server is down: its output and its result wait for that server.
            if served.borrow().expected {
                let _ = served.wait_for(|served| served.server).await;
            }
            tokio::select! {
                _ = served.wait_for(|served| served.server && served.watcher) => {}
                () = sleep(LOGS_WAIT) => {}
            }
        };
        let done = async {
            fetched.await;
            self.wait_for_clients().await;
        };
        tokio::select! {
            () = done => {}
            () = self.tell_when_clients_left() => {}
            () = received(signals) => {}
        }
        Ok(())
    }

    /// Lets the server know when it need not keep the task for clients any more; does not end.
    async fn tell_when_clients_left(&self) {
        let mut served = self.core.watch_served();
        let _ = served.wait_for(|served| served.watcher).await;
        self.wait_for_clients().await;
        self.core.clients_left();
        std::future::pending::<()>().await;
    }

    /// Clients that have read everything close their connections: one that is cut off instead says that something went wrong.
    async fn wait_for_clients(&self) {
        let left = self.ssh.handle.until_no_connections(is_somebodys);
        timeout(CLIENTS_LEAVE, left).await.ok(); // those that stay are cut off
    }
}

async fn received(signals: &mut mpsc::Receiver<()>) {
    if signals.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

fn settings(start: &StartArgs, token: Option<Secret>) -> Settings {
    Settings {
        temp_dir: start.temp_dir.clone(),
        state_dir: start.state_dir.clone(),
        touch_system: !start.no_profile,
        notices: start.notices.clone(),
        token,
        spool_limit: start.spool_limit,
        own_network: start.own_network,
        passwd: Passwd::system(),
        inherited_env: dstack_system::env::all(),
    }
}

fn prepare_state_dir(start: &StartArgs) -> io::Result<()> {
    paths::create_dirs(&start.state_dir, None)?;
    if !start.no_profile {
        // sshd's rules for the keys below it: root's own, writable by nobody else.
        paths::chown(&start.state_dir, Some(Owner { uid: 0, gid: 0 }))?;
        paths::set_mode(&start.state_dir, 0o755)?;
    }
    match fs_err::remove_dir_all(start.state_dir.join("ssh")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

async fn serve_ssh(
    start: &StartArgs,
    core: &Arc<Core>,
    http_addresses: &[IpAddr],
    api_port: u16,
    router: watch::Receiver<Option<axum::Router>>,
) -> Result<Ssh, RunnerError> {
    // All interfaces, also where HTTP is for this machine only: clients log in from outside. A port that is asked for by
    // 0 is for whoever reads the port file.
    let everywhere = [IpAddr::from([0u16; 8]), IpAddr::from([0u8; 4])];
    let listener = bind(
        if start.ssh_port == 0 {
            http_addresses
        } else {
            &everywhere
        },
        start.ssh_port,
    )?;
    // The API, whether it listens there or not.
    let api = LocalService {
        ports: vec![RUNNER_HTTP_PORT, api_port],
        serve: Arc::new(move |stream| {
            if let Some(router) = router.borrow().clone() {
                task::spawn("http over ssh", api::serve_through_ssh(router, stream));
            }
        }),
    };
    let handle = dstack_sshd::serve(SshOptions {
        listener: Arc::new(listener),
        authorized_keys: Vec::new(),
        dir: start.state_dir.join("ssh"),
        host_key: start.ssh_host_key.clone(),
        passwd: core.settings.passwd.clone(),
        switch_user: Capabilities::effective().can_switch_user(),
        session: core.session.subscribe(),
        services: vec![api],
        sftp_server: ["/proc/self/exe", "runner", "sftp-server"].map(Into::into).into(),
    })
    .await
    .map_err(RunnerError::Ssh)?;
    let ssh = Ssh {
        handle,
        log: core.log.clone(),
    };
    for key in &start.ssh_authorized_keys {
        ssh.add_key(key);
    }
    Ok(ssh)
}

/// Whether somebody is connected, and not the server, which reaches the runners of containers in clouds this way.
fn is_somebodys(open: &OpenConnection) -> bool {
    open.client != SERVER_CLIENT
}

/// The SSH server as the executor sees it.
#[derive(Debug)]
struct Ssh {
    handle: SshHandle,
    log: RunnerLog,
}

impl Connections for Ssh {
    fn ages(&self) -> Vec<Duration> {
        self.handle
            .connections()
            .iter()
            .filter(|open| is_somebodys(open))
            .map(|open| open.since.elapsed())
            .collect()
    }
}

impl JobSsh for Ssh {
    fn port(&self) -> u16 {
        self.handle.port()
    }

    fn add_key(&self, line: &str) {
        if let Err(error) = self.handle.add_key(line) {
            self.log
                .warn(format_args!("a key cannot log in: {}", chain(&error)));
        }
    }
}

fn bind(addresses: &[IpAddr], port: u16) -> Result<std::net::TcpListener, RunnerError> {
    let addresses: Vec<SocketAddr> = addresses.iter().map(|&ip| SocketAddr::new(ip, port)).collect();
    // The first that is available; std sets SO_REUSEADDR.
    std::net::TcpListener::bind(addresses.as_slice()).map_err(|source| RunnerError::Listen { port, source })
}

fn port_of(listener: &std::net::TcpListener, port: u16) -> Result<u16, RunnerError> {
    let address = listener
        .local_addr()
        .map_err(|source| RunnerError::Listen { port, source })?;
    Ok(address.port())
}

async fn serve_http(listener: std::net::TcpListener, router: axum::Router, stopped: watch::Receiver<bool>) {
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| TcpListener::from_std(listener));
    let Ok(listener) = listener else { return };
    // Small answers and log lines must not wait for acknowledgements.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let _ = axum::serve(listener, router)
        .with_graceful_shutdown(told(stopped))
        .await;
}

async fn told(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    fs_err::write(&temporary, content)?;
    fs_err::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_nobody_at_the_job() {
        let open = |client: &str| OpenConnection {
            remote: SocketAddr::from(([127, 0, 0, 1], 1)),
            client: client.to_owned(),
            since: Instant::now(),
        };
        assert!(!is_somebodys(&open(SERVER_CLIENT)));
        for client in ["SSH-2.0-OpenSSH_9.9", ""] {
            assert!(is_somebodys(&open(client)), "{client}");
        }
    }
}
