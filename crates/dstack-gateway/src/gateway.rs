//! A running gateway.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::Forwarder;
use dstack_proxy::models::{ModelApi, NoAccounting};
use dstack_system::clock::SharedClock;
use dstack_system::{Clock as _, Random, SystemClock, file, task};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api};
use crate::auth::Auth;
use crate::models::Models;
use crate::registry::{Parts, Registry};
use crate::serve::Front;
use crate::serve::listener::{self, Listening};
use crate::settings::Settings;
use crate::state::State;
use crate::state::import::{self, ImportError};
use crate::state::store::{Store, StoreError};
use crate::tls::{Certificates, TlsSettings, keep_renewed};

/// Where a gateway of dstack 0.22.5 keeps its state.
const STATE_BEFORE: &str = "/home/ubuntu/dstack/state-v2.json";
/// Keys are below.
const DIR_MODE: u32 = 0o700;

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its directory cannot be used.
    #[error("cannot use the directory {}", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// Why not.
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
        /// Address and port.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There are no threads to run on.
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    /// TLS cannot be spoken.
    #[error("cannot speak TLS")]
    Tls(#[from] rustls::Error),
}

/// A running gateway. It goes on serving while it is not dropped.
#[derive(Debug)]
pub struct Gateway {
    registry: Arc<Registry>,
    listening: Listening,
    api_stopping: CancellationToken,
    addresses: Addresses,
    tasks: Vec<tokio::task::JoinHandle<Option<()>>>,
    // Held as long as it runs.
    _only_one: fs_err::File,
}

/// Where it listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// HTTP.
    pub http: SocketAddr,
    /// HTTPS.
    pub https: SocketAddr,
    /// What servers call.
    pub api: SocketAddr,
}

struct Listeners {
    http: TcpListener,
    https: TcpListener,
    api: TcpListener,
    addresses: Addresses,
}

impl Gateway {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(settings, Arc::new(SystemClock), Random::system()).await
    }

    /// Starts it with another clock and other random numbers.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start_with(
        settings: Settings,
        clock: SharedClock,
        random: Random,
    ) -> Result<Self, StartError> {
        let only_one = lock(&settings.dir)?;
        let store = Store::new(&settings.dir);
        let state = load(&store, settings.import.as_deref(), &random)?;
        let listeners = Listeners::open(&settings).await?;
        let certificates = Arc::new(Certificates::new(
            tls(&settings),
            Arc::clone(&clock),
            random.clone(),
        ));
        let parts = Parts {
            store,
            certificates: Arc::clone(&certificates),
            clock: Arc::clone(&clock),
            random: random.clone(),
        };
        let registry = Arc::new(Registry::start(state, parts).await);
        let auth = Arc::new(Auth::new(settings.server_connections.clone(), random.clone()));
        let forwarder = Arc::new(Forwarder::new(random.clone()));
        let stats = Arc::clone(forwarder.stats());
        let models = Models {
            api: ModelApi::new(Arc::clone(&forwarder) as _, Arc::new(NoAccounting), clock, random),
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
            https_port: settings.public_https_port.unwrap_or(addresses.https.port()),
        };
        let tls = certificates.server_config()?;
        let listening = Listening::new(Arc::new(front), settings.max_connections);
        listening.listen(listeners.http, None);
        listening.listen(listeners.https, Some(tls));
        let api = Api {
            registry: Arc::clone(&registry),
            auth,
            models,
            stats,
        };
        let api_stopping = CancellationToken::new();
        let serving = serve_api(listeners.api, Arc::new(api), api_stopping.clone());
        let (kept, of) = (Arc::clone(&certificates), Arc::clone(&registry));
        let renewing = task::spawn_restarted("renewal of certificates", move || {
            keep_renewed(Arc::clone(&kept), Arc::clone(&of))
        });
        tracing::info!(http = %addresses.http, https = %addresses.https, api = %addresses.api, "the gateway serves");
        Ok(Self {
            registry,
            listening,
            api_stopping,
            addresses,
            tasks: vec![serving, renewing],
            _only_one: only_one,
        })
    }

    /// Where it listens.
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// What is registered.
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Accepts no connections any more, and waits for the requests under way, at most for so long.
    pub async fn stop(self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.api_stopping.cancel();
        self.listening.stop(limit).await;
        // Connections that have become WebSockets are none of HTTP any more.
        for replica in self.registry.replicas().await {
            let _ = timeout_at(deadline, replica.idle()).await;
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
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

/// Of two gateways with one directory the second does not start.
fn lock(dir: &Path) -> Result<fs_err::File, StartError> {
    let unusable = |source| StartError::Dir {
        dir: dir.to_owned(),
        source,
    };
    file::create_dir(dir, DIR_MODE).map_err(unusable)?;
    let file = fs_err::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join("lock"))
        .map_err(unusable)?;
    match file.file().try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(StartError::Taken(dir.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(unusable(source)),
    }
}

/// What was registered here, or else at a gateway of dstack 0.22.5.
fn load(store: &Store, named: Option<&Path>, random: &Random) -> Result<State, StartError> {
    if let Some(state) = store.load()? {
        return Ok(state);
    }
    let now = SystemClock.now().to_jiff().as_second();
    let found = import::import(named.unwrap_or(Path::new(STATE_BEFORE)), now, random);
    let imported = match found {
        Ok(imported) => imported,
        Err(ImportError::Missing(_)) if named.is_none() => return Ok(State::default()),
        Err(error) if named.is_none() => {
            // Not written in one step there: better to serve what the server registers than nothing.
            let error = dstack_system::chain(&error).to_string();
            tracing::error!(error, "nothing is taken over of the gateway before");
            return Ok(State::default());
        }
        Err(error) => return Err(error.into()),
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

impl Listeners {
    async fn open(settings: &Settings) -> Result<Self, StartError> {
        let (http, at_http) = open("--http", settings.http).await?;
        let (https, at_https) = open("--https", settings.https).await?;
        let (api, at_api) = open("--api", settings.api).await?;
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

async fn open(option: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let opened = listener::bind(address).await;
    let opened = opened.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (at, listener) = opened.map_err(|source| StartError::Listen {
        option,
        address,
        source,
    })?;
    Ok((listener, at))
}

fn serve_api(
    listener: TcpListener,
    api: Arc<Api>,
    stopping: CancellationToken,
) -> tokio::task::JoinHandle<Option<()>> {
    task::spawn("API of the gateway", async move {
        let serving = axum::serve(listener, api::router(api));
        let serving = serving.with_graceful_shutdown(async move { stopping.cancelled().await });
        if let Err(error) = serving.await {
            tracing::error!(%error, "the API of the gateway is not served any more");
        }
    })
}
