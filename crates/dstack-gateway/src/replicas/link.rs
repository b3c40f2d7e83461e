//! The SSH connection to a replica, opened anew whenever it breaks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::http::{Connector, Wire};
use dstack_ssh::{ConnectOptions, Connection, Refusal, SshError};
use dstack_system::{Random, chain, task};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::chain::Chain;
use crate::registry::turns::Turns;

/// Time to open a connection, all servers on the way together.
pub const OPEN_LIMIT: Duration = Duration::from_secs(15);
/// As long as a request waits for a connection that is being opened: then another replica may be asked.
const WAIT_LIMIT: Duration = Duration::from_secs(2);
/// A silent server is asked for a sign of life this often, and is gone after three times.
const ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Pauses between attempts double between these.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A connection that has lived for so long was a good one.
const LONG_LIFE: Duration = Duration::from_secs(30);
/// So many links to the same host are opened at the same time: its SSH server refuses more. One that is not reached holds up no other.
const MOST_AT_ONCE: usize = 8;
/// As the replica's host sees itself.
const LOOPBACK: &str = "localhost";

/// What the reconnections of all links share.
#[derive(Debug, Clone)]
pub struct Reconnects {
    /// By host.
    turns: Arc<Turns>,
    random: Random,
}

impl Reconnects {
    /// Pauses vary by these random numbers.
    pub fn new(random: Random) -> Self {
        Self {
            turns: Arc::new(Turns::at_a_time(MOST_AT_ONCE)),
            random,
        }
    }

    /// Between the half and the whole of a pause, so that not all come back at the same moment.
    fn varied(&self, pause: Duration) -> Duration {
        pause.mul_f64(0.5 + self.random.fraction() / 2.0)
    }
}

/// Connects to a port of a replica's host over a connection that is kept.
#[derive(Debug)]
pub struct Link {
    app_port: u16,
    live: watch::Receiver<Option<Arc<Connection>>>,
    ended: CancellationToken,
}

/// Keeps one connection open.
struct Keeper {
    /// For the log.
    name: String,
    chain: Chain,
    reconnects: Reconnects,
    live: watch::Sender<Option<Arc<Connection>>>,
    ended: CancellationToken,
}

/// Opens a connection.
///
/// # Errors
/// It cannot be opened, or not within [`OPEN_LIMIT`]; the text is for people.
pub async fn open(chain: &Chain) -> Result<Connection, String> {
    let options = ConnectOptions {
        timeout: OPEN_LIMIT,
        keepalive_interval: ALIVE_INTERVAL,
        ..ConnectOptions::default()
    };
    match timeout(OPEN_LIMIT, chain.open(&options)).await {
        Ok(opened) => opened.map_err(|error| dstack_system::chain(&error).to_string()),
        Err(_) => Err(format!("no connection within {} s", OPEN_LIMIT.as_secs())),
    }
}

impl Link {
    /// Keeps a connection of this way open, beginning with `first`, until [`Self::end`].
    pub fn new(
        name: String,
        app_port: u16,
        chain: Chain,
        first: Option<Connection>,
        reconnects: Reconnects,
    ) -> Self {
        let ended = CancellationToken::new();
        let (sender, live) = watch::channel(first.map(Arc::new));
        let keeper = Keeper {
            name,
            chain,
            reconnects,
            live: sender,
            ended: ended.clone(),
        };
        task::spawn("replica link", keeper.keep());
        Self {
            app_port,
            live,
            ended,
        }
    }

    /// Closes the connection, and opens no other.
    pub fn end(&self) {
        self.ended.cancel();
    }

    /// Whether there is a connection now.
    pub fn is_live(&self) -> bool {
        let live = self.live.borrow();
        live.as_ref().is_some_and(|connection| !connection.is_closed())
    }

    /// The connection; one that is being opened is waited for a moment.
    async fn connection(&self) -> io::Result<Arc<Connection>> {
        let mut live = self.live.clone();
        let is_live = |live: &Option<Arc<Connection>>| live.as_ref().is_some_and(|one| !one.is_closed());
        let found = timeout(WAIT_LIMIT, live.wait_for(is_live)).await;
        let found = found.ok().and_then(Result::ok).and_then(|live| live.clone());
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "there is no SSH connection"))
    }
}

#[async_trait]
impl Connector for Link {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        let connection = self.connection().await?;
        let opened = connection.direct_tcpip(LOOPBACK, self.app_port).await;
        opened
            .map(|stream| Box::new(stream) as Box<dyn Wire>)
            .map_err(|error| refused(&error))
    }
}

fn refused(error: &SshError) -> io::Error {
    let kind = match error.refusal() {
        Some(Refusal::NotConnected) => io::ErrorKind::ConnectionRefused,
        Some(Refusal::Forbidden) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::NotConnected,
    };
    io::Error::new(kind, chain(error).to_string())
}

impl Keeper {
    async fn keep(self) {
        let ended = self.ended.clone();
        tokio::select! {
            () = ended.cancelled() => {}
            () = self.reopen() => {}
        }
        if let Some(connection) = self.live.send_replace(None) {
            connection.close().await;
        }
    }

    async fn reopen(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let connection = self.live.borrow().clone();
            if let Some(connection) = connection {
                let since = Instant::now();
                connection.closed().await;
                self.live.send_replace(None);
                tracing::warn!(replica = self.name, "the SSH connection to a replica broke");
                if since.elapsed() >= LONG_LIFE {
                    pause = FIRST_PAUSE;
                } else {
                    pause = self.wait(pause).await;
                }
            }
            match self.try_once().await {
                Ok(connection) => {
                    tracing::info!(replica = self.name, "there is an SSH connection to a replica");
                    self.live.send_replace(Some(Arc::new(connection)));
                }
                Err(problem) => {
                    tracing::warn!(replica = self.name, problem, "a replica cannot be reached");
                    pause = self.wait(pause).await;
                }
            }
        }
    }

    async fn try_once(&self) -> Result<Connection, String> {
        let turn = self.reconnects.turns.take(&self.chain.first_host()).await;
        let opened = open(&self.chain).await;
        drop(turn);
        opened
    }

    /// Waits, and returns how long the next pause is.
    async fn wait(&self, pause: Duration) -> Duration {
        sleep(self.reconnects.varied(pause)).await;
        (pause * 2).min(LONGEST_PAUSE)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}
