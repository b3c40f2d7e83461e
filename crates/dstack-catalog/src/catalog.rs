//! The catalogue of a process: what queries see, and how it is kept fresh.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use dstack_system::{SystemClock, clock::SharedClock, env, task};
use futures_util::{StreamExt, stream::FuturesUnordered};

use crate::http::Http;
use crate::{
    Cache, CollectError, DirectoryError, Filter, FilterError, Item, Offer, Offers, OnlineProvider, Origin,
    Provider, Snapshot, Table, TableInfo, builtin, read_some,
};

mod refresh;

pub use refresh::{RefreshError, RefreshReport};

/// Where the published catalogue lies.
pub const PUBLISHED_URL: &str = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3";

/// How often a server looks for newer versions.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// Where offers come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Base of the published layout, without a trailing `/`.
    pub url: String,
    /// Read files from here instead of downloading.
    pub dir: Option<PathBuf>,
    /// Keep downloads here.
    pub cache: Option<PathBuf>,
}

impl Settings {
    /// From `GPUHUNT_CATALOG_URL` and `GPUHUNT_CATALOG_DIR`; downloads are kept in `cache`.
    pub fn from_env(cache: Option<PathBuf>) -> Self {
        let url = env::var("GPUHUNT_CATALOG_URL").unwrap_or_else(|| PUBLISHED_URL.to_owned());
        Self {
            url: url.trim_end_matches('/').to_owned(),
            dir: env::var("GPUHUNT_CATALOG_DIR").map(PathBuf::from),
            cache,
        }
    }
}

/// The catalogue of a process.
///
/// Queries look at one unchanging [`Snapshot`] and never wait: a refresh puts new tables in place with one atomic
/// swap, and the old ones go away with the last query that looks at them.
pub struct Catalog {
    settings: Settings,
    current: ArcSwap<Snapshot>,
    online: RwLock<Vec<Arc<dyn OnlineProvider>>>,
    http: Http,
    clock: SharedClock,
    refreshing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Catalog {
    /// The compiled-in catalogue, to be refreshed from where the settings say. No I/O happens here.
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, builtin(), Http::default(), Arc::new(SystemClock))
    }

    /// All parts given.
    pub fn with(settings: Settings, snapshot: Arc<Snapshot>, http: Http, clock: SharedClock) -> Self {
        Self {
            settings,
            current: ArcSwap::new(snapshot),
            online: RwLock::default(),
            http,
            clock,
            refreshing: tokio::sync::Mutex::new(()),
        }
    }

    /// The best catalogue that needs no network: the directory of the settings if there is one, else the compiled-in
    /// snapshot overlaid with what the cache holds. Reads files: call it off the async threads.
    pub fn open(settings: Settings) -> Result<Self, DirectoryError> {
        if let Some(dir) = &settings.dir {
            let found = read_some(dir, Provider::in_folders())?;
            found.warnings.log();
            if let Some((_, error)) = found.failed.into_iter().next() {
                return Err(error);
            }
            return Ok(Self::with(
                settings,
                Arc::new(found.snapshot),
                Http::default(),
                Arc::new(SystemClock),
            ));
        }
        let catalog = Self::new(settings);
        if let Some(cache) = catalog.cache() {
            catalog.read_cache(&cache);
        }
        Ok(catalog)
    }

    fn read_cache(&self, cache: &Cache) {
        for provider in Provider::offline() {
            match cache.load(provider) {
                Ok(Some(table)) => self.put(table),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        catalog.provider = %provider,
                        error = &error as &dyn std::error::Error,
                        "A cached catalog is left out"
                    );
                }
            }
        }
    }

    fn cache(&self) -> Option<Cache> {
        self.settings.cache.as_ref().map(Cache::new)
    }

    /// Where the offers come from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What queries see now. Stays as it is for as long as it is held.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Runs a query on the tables at hand and gives the first offers to `read`. No I/O; microseconds.
    pub fn query<T>(&self, filter: &Filter, read: impl FnOnce(Offers<'_>) -> T) -> Result<T, FilterError> {
        let snapshot = self.current.load();
        Ok(read(snapshot.query(filter)?))
    }

    /// The matching offers as standalone items, at most `limit` of them.
    pub fn items(&self, filter: &Filter, limit: usize) -> Result<Vec<Item>, FilterError> {
        self.query(filter, |offers| {
            offers.take(limit).map(|offer| offer.to_item()).collect()
        })
    }

    /// Puts one table in place of its provider's.
    fn put(&self, table: Table) {
        let table = Arc::new(table);
        self.current.rcu(|snapshot| {
            let mut next = Snapshot::clone(snapshot);
            next.insert(table.clone());
            next
        });
    }

    /// Registers a collector that is asked when a query wants live offers.
    pub fn register(&self, provider: Arc<dyn OnlineProvider>) {
        self.online
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(provider);
    }

    /// Registered collectors, in the order of equal prices.
    fn registered(&self, filter: &Filter) -> Result<Vec<Arc<dyn OnlineProvider>>, FilterError> {
        let chosen = filter.providers()?;
        let mut asked = self.online.read().unwrap_or_else(PoisonError::into_inner).clone();
        asked.retain(|one| {
            chosen
                .as_ref()
                .is_none_or(|chosen| chosen.contains(&one.provider()))
        });
        asked.sort_by_key(|one| one.provider()); // stable: registration order within a provider
        let unregistered = |provider: &&Provider| {
            provider.is_online() && !asked.iter().any(|one| one.provider() == **provider)
        };
        match chosen.iter().flatten().find(unregistered) {
            Some(missing) => Err(FilterError::NotLoaded(missing.name().to_owned())),
            None => Ok(asked),
        }
    }

    /// Runs a query on the tables at hand and on what the registered collectors answer within `deadline`.
    ///
    /// All are asked at once. Those that fail or are late are named in the answer, and the rest is complete.
    pub async fn query_live(&self, filter: &Filter, options: LiveOptions) -> Result<Answer, FilterError> {
        let asked = self.registered(filter)?;
        let mut snapshot = Snapshot::clone(&self.snapshot());
        let mut waiting: FuturesUnordered<_> = asked
            .into_iter()
            .enumerate()
            .map(|(turn, one)| async move { (turn, one.provider(), ask(one, filter.clone(), options).await) })
            .collect();
        let mut collected: Vec<(usize, Provider, Vec<Item>)> = Vec::new();
        let mut problems = Vec::new();
        while let Some((turn, provider, outcome)) = waiting.next().await {
            match outcome {
                Ok(items) => collected.push((turn, provider, items)),
                Err(error) => {
                    tracing::warn!(
                        catalog.provider = %provider,
                        error = &error as &dyn std::error::Error,
                        "Offers of a provider are missing"
                    );
                    collected.push((turn, provider, Vec::new()));
                    problems.push(Problem { provider, error });
                }
            }
        }
        collected.sort_by_key(|(turn, ..)| *turn);
        problems.sort_by_key(|problem| problem.provider);
        self.insert_live(&mut snapshot, collected);
        snapshot.query(filter)?; // refuse now what offers() could not
        Ok(Answer {
            snapshot,
            filter: filter.clone(),
            problems,
        })
    }

    fn insert_live(&self, snapshot: &mut Snapshot, collected: Vec<(usize, Provider, Vec<Item>)>) {
        let mut by_provider: Vec<(Provider, Vec<Item>)> = Vec::new();
        for (_, provider, items) in collected {
            match by_provider.last_mut() {
                Some((last, known)) if *last == provider => known.extend(items),
                _ => by_provider.push((provider, items)),
            }
        }
        let as_of = Some(self.clock.now());
        for (provider, items) in by_provider {
            let info = TableInfo {
                provider,
                version: String::new(),
                origin: Origin::Live,
                as_of,
            };
            snapshot.insert(Arc::new(Table::from_items(info, &items)));
        }
    }
}

async fn ask(
    one: Arc<dyn OnlineProvider>,
    filter: Filter,
    options: LiveOptions,
) -> Result<Vec<Item>, CollectError> {
    let provider = one.provider();
    // A task of its own, so that a collector that computes or panics harms no other.
    let task = AbortOnDrop(task::spawn("catalog.ask", async move {
        one.offers(&filter, options.balance_resources).await
    }));
    match tokio::time::timeout(options.deadline, task).await {
        Ok(Ok(Some(outcome))) => outcome,
        Ok(_) => Err(CollectError::Panicked(provider)),
        Err(_) => Err(CollectError::Late(provider)),
    }
}

/// Ends a task when nobody waits for it any more.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How to ask live providers.
#[derive(Debug, Clone, Copy)]
pub struct LiveOptions {
    /// How long to wait for all of them.
    pub deadline: Duration,
    /// Fit CPU, RAM and disk to the accelerator where they are sold apart.
    pub balance_resources: bool,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(20),
            balance_resources: true,
        }
    }
}

/// A provider whose offers are missing from an answer.
#[derive(Debug)]
pub struct Problem {
    /// Provider whose offers are missing.
    pub provider: Provider,
    /// Why they are missing.
    pub error: CollectError,
}

/// The answer to a query that also asked live providers.
#[derive(Debug)]
pub struct Answer {
    snapshot: Snapshot,
    filter: Filter,
    /// Providers whose offers are missing; empty when the answer is complete.
    pub problems: Vec<Problem>,
}

impl Answer {
    /// The matching offers, in order.
    pub fn offers(&self) -> impl Iterator<Item = Offer<'_>> {
        self.snapshot.query(&self.filter).into_iter().flatten()
    }

    /// Whether every provider answered.
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }

    /// The tables behind the answer.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}
