//! Offers and prices of every cloud: collect, store, query.

pub mod accelerators;
mod filter;
mod item;
mod provider;
mod query;
mod read;
mod records;
mod snapshot;
mod table;
mod text;
mod texts;
mod write;

pub use filter::{Filter, FilterError, parse_compute_capability};
pub use item::{CpuArch, Item, ProviderData, Vendor};
pub use provider::Provider;
pub use query::Offers;
pub use read::{MAX_FILE_BYTES, ReadError, Warning, Warnings, read_csv};
pub use snapshot::Snapshot;
pub use table::{BinaryError, Offer, Origin, Table, TableInfo};
pub use write::write_csv;
