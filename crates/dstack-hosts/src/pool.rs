//! One SSH connection for each host, shared by everything that talks to it.
//!
//! * [`error`] — why a host is not reached, for people.
//! * [`endpoints`] — a [`Reach`] with its keys, as the SSH client takes it.
//! * [`connector`] — streams to ports of a host, for the clients of agents.

pub mod connector;
mod endpoints;
pub mod error;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::container::SERVER_CLIENT;
use dstack_agent_api::http::Connector;
use dstack_model::reach::{KeyRef, Reach};
use dstack_ssh::{ConnectOptions, Connection};
use dstack_system::{Secret, task};
use tokio::sync::watch;
use tokio::time::Instant;

use connector::PortConnector;
pub use error::ReachError;

/// Limit for each hop: TCP connection, handshake and authentication together.
const HOP_LIMIT: Duration = Duration::from_secs(10);
/// A silent host is asked for a sign of life this often, and is gone after [`SILENCES`] of them.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const SILENCES: usize = 3;
/// After a failure nobody tries again for so long; each failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A failure that nobody asked about for so long is forgotten.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Looks up the private keys that a [`Reach`] names.
#[async_trait]
pub trait Keyring: Send + Sync + Debug {
    /// The key in OpenSSH, PKCS#1 or PKCS#8 text; `None`: there is none (any more).
    ///
    /// # Errors
    /// Keys cannot be read now; the text is for people.
    async fn private_key(&self, key: &KeyRef) -> Result<Option<Secret>, String>;
}

/// Connections to hosts, made when they are first needed and kept.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keyring: Arc<dyn Keyring>,
    hosts: Mutex<HashMap<Reach, State>>,
}

/// What is known of the connection to a host.
#[derive(Debug, Clone)]
enum State {
    /// One attempt is made; all that need the connection wait for it.
    Connecting {
        outcome: watch::Receiver<Option<Attempt>>,
        pause: Duration,
    },
    Live(Arc<Connection>),
    Failed {
        error: ReachError,
        /// Until then nobody tries again.
        until: Instant,
        /// As long as the next failure would make them wait.
        pause: Duration,
    },
}

type Attempt = Result<Arc<Connection>, ReachError>;

/// What one who needs a connection does.
enum Turn {
    Has(Attempt),
    Waits(watch::Receiver<Option<Attempt>>),
    Tries(watch::Sender<Option<Attempt>>, watch::Receiver<Option<Attempt>>),
}

impl Pool {
    /// No connections yet.
    pub fn new(keyring: Arc<dyn Keyring>) -> Self {
        Self(Arc::new(Inner {
            keyring,
            hosts: Mutex::default(),
        }))
    }

    /// The live connection to a host, made if there is none.
    ///
    /// # Errors
    /// It cannot be made; asked again soon after a failure, the same error is returned without trying.
    pub async fn connection(&self, reach: &Reach) -> Result<Arc<Connection>, ReachError> {
        let mut outcome = match self.0.turn(reach) {
            Turn::Has(attempt) => return attempt,
            Turn::Waits(outcome) => outcome,
            Turn::Tries(tell, outcome) => {
                // A task of its own: whoever asked first may go away, and the others still wait.
                let (inner, reach) = (Arc::clone(&self.0), reach.clone());
                task::spawn("ssh-connect", async move { inner.connect(reach, tell).await });
                outcome
            }
        };
        let told = outcome.wait_for(Option::is_some).await;
        let told = told.ok().and_then(|told| told.clone());
        told.unwrap_or(Err(ReachError::Interrupted))
    }

    /// Connects to a port of the host's loopback interface, each time over a channel of its own.
    pub fn connector(&self, reach: Reach, port: u16) -> Arc<dyn Connector> {
        Arc::new(PortConnector::new(self.clone(), reach, port))
    }

    /// Ends the connection to a host, if there is one.
    pub fn forget(&self, reach: &Reach) {
        let state = self.0.hosts().remove(reach);
        if let Some(State::Live(connection)) = state
            && tokio::runtime::Handle::try_current().is_ok()
        {
            task::spawn("ssh-forget", async move { connection.close().await });
        }
    }

    /// How many connections are open.
    pub fn live(&self) -> usize {
        let is_live = |state: &&State| matches!(state, State::Live(connection) if !connection.is_closed());
        self.0.hosts().values().filter(is_live).count()
    }

    /// The connection to `before` is the one to `after` from now on: the same way, of which more is known.
    pub fn pin(&self, before: &Reach, after: &Reach) {
        if before == after {
            return;
        }
        let mut hosts = self.0.hosts();
        if let Some(state @ State::Live(_)) = hosts.remove(before) {
            hosts.entry(after.clone()).or_insert(state);
        }
    }

    /// A connection that was found dead is not handed out again.
    fn drop_dead(&self, reach: &Reach, dead: &Arc<Connection>) {
        let mut hosts = self.0.hosts();
        if matches!(hosts.get(reach), Some(State::Live(connection)) if Arc::ptr_eq(connection, dead)) {
            hosts.remove(reach);
        }
    }
}

impl Inner {
    fn hosts(&self) -> MutexGuard<'_, HashMap<Reach, State>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, reach: &Reach) -> Turn {
        let mut hosts = self.hosts();
        let now = Instant::now();
        let pause = match hosts.get(reach) {
            Some(State::Live(connection)) if !connection.is_closed() => {
                return Turn::Has(Ok(Arc::clone(connection)));
            }
            Some(State::Failed { error, until, .. }) if now < *until => return Turn::Has(Err(error.clone())),
            // Without a sender and without a result the attempt has panicked.
            Some(State::Connecting { outcome, .. }) if outcome.has_changed().is_ok() => {
                return Turn::Waits(outcome.clone());
            }
            Some(State::Failed { pause, .. } | State::Connecting { pause, .. }) => *pause,
            Some(State::Live(_)) | None => FIRST_PAUSE,
        };
        hosts.retain(|_, state| match state {
            State::Live(connection) => !connection.is_closed(),
            State::Failed { until, .. } => now < *until + REMEMBERED,
            State::Connecting { .. } => true,
        });
        let (tell, outcome) = watch::channel(None);
        let connecting = State::Connecting {
            outcome: outcome.clone(),
            pause,
        };
        hosts.insert(reach.clone(), connecting);
        Turn::Tries(tell, outcome)
    }

    async fn connect(self: Arc<Self>, reach: Reach, tell: watch::Sender<Option<Attempt>>) {
        let attempt = self.open(&reach).await.map(Arc::new);
        let mut hosts = self.hosts();
        // Forgotten meanwhile: those that wait get it, nobody else.
        if let Some(State::Connecting { outcome, pause }) = hosts.get(&reach)
            && outcome.same_channel(&tell.subscribe())
        {
            let state = match &attempt {
                Ok(connection) => State::Live(Arc::clone(connection)),
                Err(error) => State::Failed {
                    error: error.clone(),
                    until: Instant::now() + *pause,
                    pause: (*pause * 2).min(LONGEST_PAUSE),
                },
            };
            hosts.insert(reach, state);
        }
        drop(hosts);
        tell.send_replace(Some(attempt));
    }

    async fn open(&self, reach: &Reach) -> Result<Connection, ReachError> {
        let mut endpoints = endpoints::of(reach, self.keyring.as_ref()).await?;
        let Some(host) = endpoints.pop() else {
            return Err(ReachError::Interrupted);
        };
        let options = ConnectOptions {
            timeout: HOP_LIMIT,
            keepalive_interval: ALIVE_INTERVAL,
            keepalive_max: SILENCES,
            name: Some(SERVER_CLIENT),
            ..ConnectOptions::default()
        };
        let opened = Connection::open(&host, &endpoints, &options).await;
        opened.map_err(|error| error::explain(error, reach))
    }
}
