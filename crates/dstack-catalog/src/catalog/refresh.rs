//! Keeps the catalogue fresh: looks for newer versions and puts them in place.

use std::sync::Arc;
use std::time::Duration;

use dstack_system::task;
use futures_util::{StreamExt, stream};

use super::Catalog;
use crate::archive::{ArchiveError, MAX_ARCHIVE_BYTES, read_archive};
use crate::cache::is_version;
use crate::http::HttpError;
use crate::text::repr;
use crate::{DirectoryError, Origin, Provider, Snapshot, Table, TableInfo, Warnings, read_some};

/// Providers looked after at the same time.
const PARALLEL: usize = 8;

/// Bytes of a version text, at most (an error page is longer).
const MAX_VERSION_BYTES: u64 = 4096;

/// Why a provider's catalogue was not replaced. What was there before stays.
#[derive(Debug, thiserror::Error)]
pub enum RefreshError {
    /// A request failed.
    #[error("the published catalog cannot be downloaded")]
    Http(#[source] HttpError),
    /// The published version text is none.
    #[error("the published version is no version text: {0}")]
    Version(String),
    /// The downloaded archive cannot be used.
    #[error("the downloaded catalog {version} is not usable")]
    Archive {
        /// Version text of the publication.
        version: String,
        /// What is wrong with it.
        #[source]
        source: ArchiveError,
    },
    /// The downloaded archive holds no offer.
    #[error("the downloaded catalog {0} holds no offers")]
    NoOffers(String),
    /// The directory of the settings cannot be used.
    #[error("the catalog directory cannot be used")]
    Directory(#[source] Arc<DirectoryError>),
    /// The work itself failed; see the log.
    #[error("internal error (see the log)")]
    Panicked,
}

/// What a refresh did.
#[derive(Debug, Default)]
pub struct RefreshReport {
    /// Providers with a newer catalogue now.
    pub updated: Vec<Provider>,
    /// Providers whose catalogue was the newest already.
    pub unchanged: Vec<Provider>,
    /// Providers that keep what they had, and why.
    pub failed: Vec<(Provider, RefreshError)>,
    /// Rows that were left out.
    pub warnings: Warnings,
}

impl RefreshReport {
    /// Nothing could be loaded.
    pub fn all_failed(&self) -> bool {
        !self.failed.is_empty() && self.updated.is_empty() && self.unchanged.is_empty()
    }
}

enum Outcome {
    Unchanged,
    New(Box<Table>, Warnings),
}

impl Catalog {
    /// Looks for newer catalogues of all published providers and puts them in place, each as soon as it is there.
    ///
    /// A provider that fails keeps what it had. Queries go on meanwhile. A second call waits for the first.
    pub async fn refresh(&self) -> RefreshReport {
        let _one_at_a_time = self.refreshing.lock().await;
        let report = if self.settings.dir.is_some() {
            self.refresh_directory().await
        } else {
            self.refresh_published().await
        };
        report.warnings.log();
        for (provider, error) in &report.failed {
            tracing::error!(
                catalog.provider = %provider,
                error = error as &dyn std::error::Error,
                "Failed to load a catalog. Keeping the previously loaded catalog, if any"
            );
        }
        report
    }

    /// Loads one given version of every published provider; all or nothing.
    pub async fn load_version(&self, version: &str) -> Result<(), (Provider, RefreshError)> {
        let _one_at_a_time = self.refreshing.lock().await;
        let loads = stream::iter(Provider::offline()).map(|provider| async move {
            self.load_published(provider, Some(version))
                .await
                .map_err(|error| (provider, error))
        });
        let outcomes: Vec<_> = loads.buffer_unordered(PARALLEL).collect().await;
        let mut next = Snapshot::clone(&self.snapshot());
        for outcome in outcomes {
            if let Outcome::New(table, warnings) = outcome? {
                warnings.log();
                next.insert(Arc::from(table));
            }
        }
        self.current.store(Arc::new(next));
        Ok(())
    }

    /// Refreshes now and then every `interval`, for as long as the catalogue is in use elsewhere.
    pub fn start_refresh(self: &Arc<Self>, interval: Duration) -> tokio::task::JoinHandle<Option<()>> {
        let weak = Arc::downgrade(self);
        task::spawn("catalog.refresh", async move {
            while let Some(catalog) = weak.upgrade() {
                let report = catalog.refresh().await;
                tracing::debug!(
                    updated = report.updated.len(),
                    unchanged = report.unchanged.len(),
                    failed = report.failed.len(),
                    "Looked for newer catalogs"
                );
                drop(catalog);
                tokio::time::sleep(interval).await;
            }
        })
    }

    async fn refresh_directory(&self) -> RefreshReport {
        let mut report = RefreshReport::default();
        let Some(dir) = self.settings.dir.clone() else {
            return report;
        };
        match task::blocking("catalog.read", move || read_some(&dir, Provider::in_folders())).await {
            Ok(Ok(found)) => {
                report.warnings = found.warnings;
                report.failed.extend(
                    found
                        .failed
                        .into_iter()
                        .map(|(one, error)| (one, RefreshError::Directory(error.into()))),
                );
                report
                    .updated
                    .extend(found.snapshot.tables().map(|table| table.info().provider));
                self.current.rcu(|snapshot| {
                    let mut next = Snapshot::clone(snapshot);
                    for table in found.snapshot.tables() {
                        next.insert(table.clone());
                    }
                    next
                });
            }
            Ok(Err(error)) => {
                let error = Arc::new(error);
                let all = Provider::offline().map(|one| (one, RefreshError::Directory(error.clone())));
                report.failed.extend(all);
            }
            Err(_) => report
                .failed
                .extend(Provider::offline().map(|one| (one, RefreshError::Panicked))),
        }
        report
    }

    async fn refresh_published(&self) -> RefreshReport {
        let mut report = RefreshReport::default();
        let mut loads = stream::iter(Provider::offline())
            .map(|provider| async move { (provider, self.load_published(provider, None).await) })
            .buffer_unordered(PARALLEL);
        while let Some((provider, outcome)) = loads.next().await {
            match outcome {
                Ok(Outcome::Unchanged) => report.unchanged.push(provider),
                Ok(Outcome::New(table, warnings)) => {
                    report.warnings.extend(warnings);
                    report.updated.push(provider);
                    self.put(*table);
                }
                Err(error) => report.failed.push((provider, error)),
            }
        }
        report
    }

    async fn load_published(
        &self,
        provider: Provider,
        version: Option<&str>,
    ) -> Result<Outcome, RefreshError> {
        let base = format!("{}/{provider}", self.settings.url);
        let version = match version {
            Some(version) => version.to_owned(),
            None => self.published_version(&base).await?,
        };
        if !is_version(&version) {
            return Err(RefreshError::Version(repr(
                version.lines().next().unwrap_or_default(),
            )));
        }
        let loaded = self
            .snapshot()
            .table(provider)
            .map(|table| table.info().version.clone());
        if loaded.as_deref() == Some(version.as_str()) {
            return Ok(Outcome::Unchanged);
        }
        let url = format!("{base}/{version}/catalog.zip");
        let bytes = self
            .http
            .get(&url, MAX_ARCHIVE_BYTES)
            .await
            .map_err(RefreshError::Http)?;
        let info = TableInfo {
            provider,
            version: version.clone(),
            origin: Origin::Download,
            as_of: Some(self.clock.now()),
        };
        let cache = self.cache();
        let work = move || -> Result<Outcome, RefreshError> {
            let (table, warnings) = read_archive(&info, &bytes).map_err(|source| RefreshError::Archive {
                version: version.clone(),
                source,
            })?;
            if table.is_empty() {
                return Err(RefreshError::NoOffers(version));
            }
            if let Some(cache) = cache
                && let Err(error) = cache.store(provider, &version, &bytes)
            {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "A catalog cannot be kept on disk"
                );
            }
            Ok(Outcome::New(Box::new(table), warnings))
        };
        task::blocking("catalog.parse", work)
            .await
            .map_err(|_| RefreshError::Panicked)?
    }

    async fn published_version(&self, base: &str) -> Result<String, RefreshError> {
        let url = format!("{base}/version");
        let bytes = self
            .http
            .get(&url, MAX_VERSION_BYTES)
            .await
            .map_err(RefreshError::Http)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }
}
