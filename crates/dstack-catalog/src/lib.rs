//! Offers and prices of every cloud: collect, store, query.

mod archive;
mod builtin;
mod cache;
mod catalog;
mod check;
pub mod cli;
mod collect;
pub mod collectors;
mod diff;
mod directory;
mod download;
mod filter;
pub mod http;
mod item;
mod not_offered;
mod provider;
mod query;
mod read;
mod records;
mod snapshot;
mod table;
mod text;
mod texts;
mod write;

pub use archive::{
    ArchiveError, MAX_ARCHIVE_BYTES, read_archive, read_single_archive, write_archive, write_single_archive,
};
pub use builtin::{builtin, pack};
pub use cache::{Cache, CacheError};
pub use catalog::{
    Answer, Catalog, LiveOptions, PUBLISHED_URL, Problem, REFRESH_INTERVAL, RefreshError, RefreshReport,
    Settings,
};
pub use check::{Violation, check_file, check_table};
pub use collect::{CollectContext, CollectError, LogProgress, OfflineProvider, OnlineProvider, Progress};
pub use diff::{Difference, PriceChange, diff};
pub use directory::{Directory, DirectoryError, read_directory, read_provider, read_some};
pub use download::{DownloadError, download};
pub use dstack_units::{AcceleratorVendor as Vendor, CpuArchitecture as CpuArch, accelerators};
pub use filter::{Filter, FilterError, parse_compute_capability};
pub use item::{Item, ProviderData};
pub use not_offered::tell_not_offered;
pub use provider::Provider;
pub use query::Offers;
pub use read::{MAX_FILE_BYTES, ReadError, Warning, Warnings, read_csv};
pub use snapshot::Snapshot;
pub use table::{BinaryError, Offer, Origin, Table, TableInfo};
pub use write::write_csv;
