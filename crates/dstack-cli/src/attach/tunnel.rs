//! The SSH connection to a job, and local ports that lead through it.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dstack_ssh::keys::parse_private;
use dstack_ssh::{ChannelStream, ConnectOptions, Connection, Endpoint, SshError};
use dstack_system::{Random, task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::ports::Reserved;
use crate::error::{CliError, ErrorKind};
use crate::ssh::hosts::{Hop, Route};

/// How often a job is tried that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// Until its SSH server is up: that of a container may start a little after the job.
    Patient,
    /// A few times: it is most likely not there.
    Few,
}

impl Attempts {
    const fn number(self) -> u32 {
        match self {
            Self::Patient => 10,
            Self::Few => 3,
        }
    }
}

const PAUSE: Duration = Duration::from_millis(300);
/// Limit for finding out whether the job is on this machine's network.
const PROBE: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(15);

/// An open connection and its forwarded ports; both end when it is dropped.
#[derive(Debug)]
pub struct Tunnel {
    connection: Arc<Connection>,
    forwards: Vec<JoinHandle<Option<()>>>,
}

impl Tunnel {
    /// Connects; nothing is forwarded yet.
    ///
    /// # Errors
    /// A key is unusable, or the job cannot be reached.
    pub async fn open(route: &Route, home: &Path, attempts: Attempts) -> Result<Self, CliError> {
        let endpoints = route
            .hops
            .iter()
            .map(|hop| endpoint(hop, home))
            .collect::<Result<Vec<_>, _>>()?;
        let connection = connect(&endpoints, attempts)
            .await
            .map_err(|error| CliError::from_error(ErrorKind::AttachFailed, error))?;
        Ok(Self {
            connection: Arc::new(connection),
            forwards: Vec::new(),
        })
    }

    /// Forwards local ports to the job's until the tunnel is dropped.
    pub fn forward(&mut self, reserved: Reserved) {
        let listeners = reserved.into_listeners().into_iter();
        let start =
            |(port, listener)| task::spawn("port-forward", accept(self.connection.clone(), listener, port));
        self.forwards = listeners.map(start).collect();
    }

    /// Whether `localhost` is the same for the job and for us: what is sent to a listener of ours through the tunnel
    /// arrives there.
    pub async fn shares_network(&self) -> bool {
        matches!(tokio::time::timeout(PROBE, self.probe()).await, Ok(Ok(true)))
    }

    async fn probe(&self) -> io::Result<bool> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let sent: [u8; 16] = Random::system().bytes();
        let mut through = self
            .connection
            .direct_tcpip("127.0.0.1", listener.local_addr()?.port())
            .await?;
        through.write_all(&sent).await?;
        through.flush().await?;
        let mut received = [0; 16];
        listener.accept().await?.0.read_exact(&mut received).await?;
        Ok(received == sent)
    }

    /// A stream to a port of the job.
    ///
    /// # Errors
    /// The connection is gone, or nothing listens there.
    pub async fn stream(&self, port: u16) -> Result<ChannelStream, SshError> {
        self.connection.direct_tcpip("localhost", port).await
    }

    /// Waits until the connection is gone.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for forward in &self.forwards {
            forward.abort();
        }
    }
}

async fn connect(endpoints: &[Endpoint], attempts: Attempts) -> Result<Connection, SshError> {
    let Some((target, jumps)) = endpoints.split_last() else {
        return Err(SshError::Closed);
    };
    let options = ConnectOptions {
        timeout: TIMEOUT,
        ..ConnectOptions::default()
    };
    let mut tries = 1;
    loop {
        match Connection::open(target, jumps, &options).await {
            Ok(connection) => return Ok(connection),
            // Waiting again for as long would help nobody.
            Err(error @ SshError::Timeout { .. }) => return Err(error),
            Err(error) if tries >= attempts.number() => return Err(error),
            Err(_) => tries += 1,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn endpoint(hop: &Hop, home: &Path) -> Result<Endpoint, CliError> {
    let own = ["id_ed25519", "id_ecdsa", "id_rsa"].map(|name| home.join(".ssh").join(name));
    let paths = match &hop.identity {
        Some(path) => vec![path.clone()],
        None => own.into_iter().filter(|path| path.exists()).collect(),
    };
    let keys = paths.iter().map(|path| {
        let text =
            fs_err::read_to_string(path).map_err(|error| CliError::from_error(ErrorKind::SshKey, error))?;
        let key = parse_private(&text)
            .map_err(|error| CliError::caused_by(ErrorKind::SshKey, path.display().to_string(), error))?;
        Ok(Arc::new(key))
    });
    Ok(Endpoint {
        host: hop.host.to_string(),
        port: hop.port,
        user: hop.user.to_string(),
        keys: keys.collect::<Result<_, CliError>>()?,
        host_key: None,
        known_keys: Vec::new(),
    })
}

async fn accept(connection: Arc<Connection>, listener: TcpListener, port: u16) {
    while let Ok((local, _)) = listener.accept().await {
        task::spawn(
            "forwarded-connection",
            forward_one(connection.clone(), local, port),
        );
    }
}

async fn forward_one(connection: Arc<Connection>, mut local: TcpStream, port: u16) {
    if copy(&connection, &mut local, port).await.is_err() {
        // The user's program sees a broken connection, as it would without a tunnel: what was cut off must not pass for whole.
        let _ = local.set_zero_linger();
    }
}

async fn copy(connection: &Connection, local: &mut TcpStream, port: u16) -> io::Result<()> {
    local.set_nodelay(true)?;
    let mut remote = connection.direct_tcpip("localhost", port).await?;
    tokio::io::copy_bidirectional(local, &mut remote).await?;
    Ok(())
}
