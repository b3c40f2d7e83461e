//! The contracts of collectors: those behind published files, and those asked when a query runs.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::http::HttpError;
use crate::{Filter, Item, Provider};

/// Why the offers of a provider could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A request failed.
    #[error("{provider}: a request failed")]
    Http {
        /// Who was asked.
        provider: Provider,
        /// How it failed.
        #[source]
        source: HttpError,
    },
    /// The answer is not what the provider is known to send.
    #[error("{provider}: unexpected answer: {what}")]
    Unexpected {
        /// Who was asked.
        provider: Provider,
        /// What differs from what is known.
        what: String,
    },
    /// A large file could not be downloaded.
    #[error("{provider}: a download failed")]
    Download {
        /// Provider whose file it is.
        provider: Provider,
        /// How the download failed.
        #[source]
        source: crate::DownloadError,
    },
    /// A credential is needed and not given.
    #[error("Set the {0} environment variable")]
    MissingCreds(&'static str),
    /// We have no collector for this provider.
    #[error("{0} cannot be collected here: its collector comes with the {0} backend")]
    NoCollector(Provider),
    /// A local file cannot be used.
    #[error("cannot use `{}`", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// There was no answer before the deadline.
    #[error("{0}: no answer in time")]
    Late(Provider),
    /// The collector itself failed; see the log.
    #[error("{0}: internal error (see the log)")]
    Panicked(Provider),
}

impl CollectError {
    /// For `map_err` on requests.
    pub fn http(provider: Provider) -> impl Fn(HttpError) -> Self {
        move |source| Self::Http { provider, source }
    }

    /// An answer that differs from what the provider is known to send.
    pub fn unexpected(provider: Provider, what: impl Into<String>) -> Self {
        Self::Unexpected {
            provider,
            what: what.into(),
        }
    }
}

/// Told how far a long collection is.
pub trait Progress: Send + Sync {
    /// A step begins.
    fn step(&self, what: &str);
    /// Bytes of a download so far, and of all when known.
    fn bytes(&self, done: u64, total: Option<u64>);
    /// Something that had to be left out.
    fn warn(&self, what: &str);
}

/// Tells the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogProgress;

impl Progress for LogProgress {
    fn step(&self, what: &str) {
        tracing::info!("{what}");
    }

    fn bytes(&self, _done: u64, _total: Option<u64>) {}

    fn warn(&self, what: &str) {
        tracing::warn!("{what}");
    }
}

/// Shared by the collectors of one run.
#[derive(Clone)]
pub struct CollectContext {
    /// Told how far the collection is.
    pub progress: Arc<dyn Progress>,
    /// Skip work for offers that are not published anyway.
    pub published_only: bool,
}

/// Collects all offers of a provider for its published file.
#[async_trait]
pub trait OfflineProvider: Send + Sync {
    /// Returns the provider whose offers are collected.
    fn provider(&self) -> Provider;

    /// All offers, in the order of their price.
    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError>;

    /// Whether an offer belongs into the published file.
    fn publishes(&self, _item: &Item) -> bool {
        true
    }
}

/// Asks a provider for its offers when a query runs.
#[async_trait]
pub trait OnlineProvider: Send + Sync {
    /// Returns the provider whose offers are asked for.
    fn provider(&self) -> Provider;

    /// The offers, best first (mostly by price). The filter is a hint: what comes back is filtered again.
    ///
    /// `balance_resources`: fit CPU, RAM and disk to the accelerator where the provider sells them apart.
    async fn offers(&self, filter: &Filter, balance_resources: bool) -> Result<Vec<Item>, CollectError>;
}

/// Sorts by price, keeping the order of equal prices.
pub(crate) fn sort_by_price(items: &mut [Item]) {
    items.sort_by(|a, b| a.price.total_cmp(&b.price));
}

/// Rounds to so many decimals, exact halves of the binary value to even (as Python's `round`).
pub(crate) fn round_to(value: f64, decimals: usize) -> f64 {
    // The decimal expansion printed by `format!` is exact, so this rounds the number itself.
    format!("{value:.decimals$}").parse().unwrap_or(value)
}
