//! A running gateway.

use std::future::IntoFuture as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use dstack_agent_api::proof::Gate;
use dstack_proxy::{Forwarder, Limits};
use dstack_system::clock::SharedClock;
use dstack_system::{Clock as _, Random, SystemClock, task};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::{self, Api};
use crate::auth::Auth;
use crate::models::Models;
use crate::only_one::OnlyOne;
use crate::prompts;
use crate::registry::{Parts, Registry};
use crate::serve::listener::{self, Listening};
use crate::serve::{Balancer, Front};
use crate::settings::Settings;
use crate::state::State;
use crate::state::import::{self, ImportError, Imported};
use crate::state::store::{Store, StoreError};
use crate::tls::{Certificates, TlsSettings, keep_renewed};

/// Where a gateway of dstack 0.22.5 keeps its state.
const STATE_BEFORE: &str = "/home/ubuntu/dstack/state-v2.json";

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its directory cannot be used.
    #[error("cannot use the directory {}", dir.display())]
    Dir {
        /// The directory, that of `--dir`.
        dir: PathBuf,
        /// What the system says about that.
        #[source]
        source: io::Error,
    },
    /// Another one runs in it.
    #[error("another gateway runs with the directory {}: end it, or give this one another --dir", .0.display())]
    Taken(PathBuf),
    /// What was registered is not understood.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is to be taken over is not understood.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A port cannot be listened on.
    #[error("cannot listen at {address} ({option}); ports below 1024 need root or CAP_NET_BIND_SERVICE")]
    Listen {
        /// The option that names it.
        option: &'static str,
        /// Address and port, as the option has them.
        address: SocketAddr,
        /// What the system says about that.
        #[source]
        source: io::Error,
    },
    /// There are no threads to run on.
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    /// The token of the API cannot be read.
    #[error("the token of the API cannot be read (--api-token)")]
    Token(#[source] io::Error),
    /// The file of the token of the API has none.
    #[error("there is no token in {} (--api-token)", .0.display())]
    NoToken(PathBuf),
    /// TLS cannot be spoken.
    #[error("cannot speak TLS")]
    Tls(#[from] rustls::Error),
}

/// A running gateway. When it is dropped, it ends without waiting for anything.
#[derive(Debug)]
pub struct Gateway {
    registry: Arc<Registry>,
    listening: Listening,
    api: Calls,
    addresses: Addresses,
    renewing: Task,
    // It ends with the gateway.
    _until_dropped: DropGuard,
    only_one: OnlyOne,
}

/// Where a gateway listens: with the ports that the system has chosen where an option says 0.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// Answers HTTP.
    pub http: SocketAddr,
    /// Answers HTTP over TLS.
    pub https: SocketAddr,
    /// Answers servers.
    pub api: SocketAddr,
}

struct Listeners {
    http: TcpListener,
    https: TcpListener,
    api: TcpListener,
    addresses: Addresses,
}

impl Gateway {
    /// Starts a gateway with these settings; it serves from then on.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(settings, Arc::new(SystemClock), Random::system()).await
    }

    /// As [`Self::start`], with another clock and other random numbers.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start_with(
        settings: Settings,
        clock: SharedClock,
        random: Random,
    ) -> Result<Self, StartError> {
        let gate = gate(settings.api_token.as_deref(), &random)?;
        let (only_one, listeners) = begin(&settings).await?;
        let store = Store::new(&settings.dir);
        let state = load(&store, settings.import.as_deref(), &random)?;
        let certificates = Arc::new(Certificates::new(
            tls(&settings),
            Arc::clone(&clock),
            random.clone(),
        ));
        certificates.take_over(state.https_domains()).await;
        let forwarder = Forwarder::new(random.clone())
            .with_limits(limits(&settings))
            .with_access_log(settings.access_log);
        let forwarder = Arc::new(forwarder);
        let parts = Parts {
            store,
            certificates: Arc::clone(&certificates),
            forwarder: Arc::clone(&forwarder),
            clock: Arc::clone(&clock),
            random: random.clone(),
        };
        let registry = Arc::new(Registry::start(state, parts).await);
        let auth = Arc::new(Auth::new(settings.server_connections.clone(), random.clone()));
        let stats = Arc::clone(forwarder.stats());
        let models = Models {
            forward: Arc::clone(&forwarder) as _,
            stats: Arc::clone(&stats),
            renderer: prompts::renderer(),
            clock,
            random: random.clone(),
            auth: Arc::clone(&auth),
            sites: Arc::clone(registry.sites()),
        };
        let addresses = listeners.addresses;
        let front = Front {
            sites: Arc::clone(registry.sites()),
            forward: forwarder,
            auth: Arc::clone(&auth),
            models: models.clone(),
            challenges: Arc::clone(certificates.challenges()),
            trusted: settings.trusted_proxies.clone(),
            balancer: settings.load_balancer_hops.map(|hops| Balancer::new(hops.into())),
            https_port: settings.public_https_port.unwrap_or(addresses.https.port()),
        };
        let tls = certificates.server_config()?;
        let listening = Listening::new(Arc::new(front), settings.max_connections);
        let until_dropped = listening.until_dropped();
        listening.listen(listeners.http, None);
        listening.listen(listeners.https, Some(tls));
        let api = Api {
            registry: Arc::clone(&registry),
            auth,
            models,
            stats,
        };
        let api = Calls::answer(listeners.api, api::router(Arc::new(api), gate));
        let (kept, of) = (Arc::clone(&certificates), Arc::clone(&registry));
        let renewing = task::spawn_restarted("renewal of certificates", move || {
            keep_renewed(Arc::clone(&kept), Arc::clone(&of))
        });
        tracing::info!(http = %addresses.http, https = %addresses.https, api = %addresses.api, "the gateway serves");
        Ok(Self {
            registry,
            listening,
            api,
            addresses,
            renewing: Task(renewing),
            _until_dropped: until_dropped,
            only_one,
        })
    }

    /// Where this gateway listens.
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// What is registered at this gateway.
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Accepts no connections any more, and waits for the requests under way, at most for so long. Another gateway may begin with the
    /// same directory at once.
    pub async fn stop(mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.api.take_no_more();
        drop(self.renewing);
        // Whoever takes over may begin, and nothing is written here any more.
        self.registry.freeze().await;
        drop(self.only_one);
        tokio::join!(self.listening.stop(limit), self.api.ended(limit));
        // Connections that have become WebSockets are none of HTTP any more.
        for replica in self.registry.replicas().await {
            let _ = timeout_at(deadline, replica.idle()).await;
        }
    }
}

/// Ends when it is dropped.
#[derive(Debug)]
struct Task(JoinHandle<Option<()>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What answers servers.
#[derive(Debug)]
struct Calls {
    serving: Task,
    stopping: CancellationToken,
}

impl Calls {
    fn answer(listener: TcpListener, router: Router) -> Self {
        let stopping = CancellationToken::new();
        let serving = axum::serve(listener, router)
            .with_graceful_shutdown(stopping.clone().cancelled_owned())
            .into_future();
        let serving = task::spawn("API of the gateway", async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the API of the gateway is not served any more");
            }
        });
        Self {
            serving: Task(serving),
            stopping,
        }
    }

    fn take_no_more(&self) {
        self.stopping.cancel();
    }

    /// Waits for the calls under way, at most for so long.
    async fn ended(&mut self, limit: Duration) {
        let _ = timeout(limit, &mut self.serving.0).await;
    }
}

/// The directory and the ports. Whoever takes over listens before the one before does not any more: connections wait for a moment,
/// and none is refused.
async fn begin(settings: &Settings) -> Result<(OnlyOne, Listeners), StartError> {
    if settings.take_over {
        check(settings)?;
        let listeners = Listeners::open(settings)?;
        return Ok((OnlyOne::take_over(&settings.dir).await?, listeners));
    }
    let only_one = OnlyOne::new(&settings.dir)?;
    Ok((only_one, Listeners::open(settings)?))
}

/// What lets calls in; `None`: whoever reaches the API may call.
fn gate(file: Option<&Path>, random: &Random) -> Result<Option<Gate>, StartError> {
    let Some(file) = file else {
        return Ok(None);
    };
    let text = fs_err::read_to_string(file).map_err(StartError::Token)?;
    match text.trim() {
        "" => Err(StartError::NoToken(file.to_owned())),
        token => Ok(Some(Gate::new(token.into(), random.clone()))),
    }
}

/// What this gateway cannot read it does not take over: the one that runs goes on.
fn check(settings: &Settings) -> Result<(), StartError> {
    if Store::new(&settings.dir).load()?.is_none() {
        imported(settings.import.as_deref(), &Random::system())?;
    }
    Ok(())
}

/// A connection of HTTP/2 may have many requests under way, and all together no more than as many connections have one.
fn limits(settings: &Settings) -> Limits {
    Limits {
        requests: settings.max_connections,
        tunnels: settings.max_connections,
    }
}

fn tls(settings: &Settings) -> TlsSettings {
    TlsSettings {
        dir: settings.dir.clone(),
        certbot: settings.certbot.clone(),
        authority: settings.acme_server.clone(),
        authority_root: settings.acme_root.clone(),
    }
}

/// What was registered here, or else at a gateway of dstack 0.22.5.
fn load(store: &Store, named: Option<&Path>, random: &Random) -> Result<State, StartError> {
    if let Some(state) = store.load()? {
        return Ok(state);
    }
    let Some(imported) = imported(named, random)? else {
        return Ok(State::default());
    };
    for problem in &imported.left_out {
        tracing::warn!(problem, "something is not taken over of the gateway before");
    }
    let services = imported.state.services().count();
    tracing::info!(
        services,
        "what was registered at the gateway before is taken over"
    );
    store.save(&imported.state)?;
    Ok(imported.state)
}

/// What was registered at a gateway of dstack 0.22.5; only a file that was named must be there, and understood.
fn imported(named: Option<&Path>, random: &Random) -> Result<Option<Imported>, StartError> {
    let now = SystemClock.now().to_jiff().as_second();
    match import::import(named.unwrap_or(Path::new(STATE_BEFORE)), now, random) {
        Ok(imported) => Ok(Some(imported)),
        Err(ImportError::Missing(_)) if named.is_none() => Ok(None),
        Err(error) if named.is_none() => {
            // Not written in one step there: better to serve what the server registers than nothing.
            let error = dstack_system::chain(&error).to_string();
            tracing::error!(error, "nothing is taken over of the gateway before");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

impl Listeners {
    fn open(settings: &Settings) -> Result<Self, StartError> {
        let shared = settings.take_over;
        let (http, at_http) = open("--http", settings.http, shared)?;
        let (https, at_https) = open("--https", settings.https, shared)?;
        let (api, at_api) = open("--api", settings.api, shared)?;
        Ok(Self {
            http,
            https,
            api,
            addresses: Addresses {
                http: at_http,
                https: at_https,
                api: at_api,
            },
        })
    }
}

fn open(
    option: &'static str,
    address: SocketAddr,
    shared: bool,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let opened = listener::bind(address, shared);
    let opened = opened.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (at, listener) = opened.map_err(|source| StartError::Listen {
        option,
        address,
        source,
    })?;
    Ok((listener, at))
}
