//! The offers of one provider, column by column.
//!
//! Few instance types are sold in many places, so a row is three numbers: a price, a place and a *shape* (name,
//! provider data and everything a filter looks at except the price). A filter is judged once per distinct set of
//! resources (*spec*), and rows are then picked by shape alone.

use std::fmt;

use dstack_units::Time;

use crate::texts::{TextId, Texts};
use crate::{CpuArch, Item, Provider, ProviderData, Vendor};

mod binary;
mod builder;

pub use binary::BinaryError;
pub(crate) use builder::{Row, TableBuilder};

/// Where a table came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Compiled into the program.
    Builtin,
    /// Kept on disk by an earlier download.
    Cache,
    /// Downloaded by this process.
    Download,
    /// Read from a directory of files.
    Directory,
    /// Collected from the provider just now.
    Live,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Builtin => "built in",
            Self::Cache => "cache",
            Self::Download => "download",
            Self::Directory => "directory",
            Self::Live => "live",
        })
    }
}

/// What is known about a table besides its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Provider whose offers they are.
    pub provider: Provider,
    /// Version text of the publication; empty when there is none. Compared for equality only.
    pub version: String,
    /// Where the rows came from.
    pub origin: Origin,
    /// When the rows were collected, as far as known.
    pub as_of: Option<Time>,
}

impl TableInfo {
    /// Of a file that says nothing about itself.
    pub fn unversioned(provider: Provider) -> Self {
        Self {
            provider,
            version: String::new(),
            origin: Origin::Directory,
            as_of: None,
        }
    }
}

/// What filters look at, except the price.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spec {
    pub(crate) cpu: i64,
    pub(crate) memory: f64,
    pub(crate) gpu_count: i64,
    pub(crate) gpu_name: Option<TextId>,
    pub(crate) gpu_memory: Option<f64>,
    pub(crate) gpu_vendor: Option<Vendor>,
    pub(crate) spot: bool,
    pub(crate) disk_size: Option<f64>,
    pub(crate) cpu_arch: CpuArch,
    pub(crate) flags: Box<[TextId]>,
    /// Of `gpu_name`, when the vendor is NVIDIA and the name is known.
    pub(crate) compute_capability: Option<(i64, i64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) instance_name: TextId,
    pub(crate) provider_data: TextId,
    pub(crate) spec: u32,
}

/// The offers of one provider, in file order.
#[derive(Debug)]
pub struct Table {
    pub(crate) info: TableInfo,
    pub(crate) texts: Texts,
    pub(crate) specs: Box<[Spec]>,
    pub(crate) shapes: Box<[Shape]>,
    /// One entry per row.
    pub(crate) prices: Box<[f64]>,
    pub(crate) row_shapes: Box<[u32]>,
    pub(crate) row_locations: Box<[TextId]>,
    /// Rows that were left out while reading, as the number of rows kept before each; ascending.
    pub(crate) gaps: Box<[u32]>,
    /// Prices ascend and none is NaN.
    pub(crate) sorted: bool,
    /// Rows by shape: those of shape `s` are `postings[starts[s]..starts[s + 1]]`, ascending.
    pub(crate) starts: Box<[u32]>,
    pub(crate) postings: Box<[u32]>,
}

impl Table {
    /// What is known about the table besides its rows.
    pub fn info(&self) -> &TableInfo {
        &self.info
    }

    /// How many offers it holds.
    pub fn len(&self) -> usize {
        self.prices.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.prices.is_empty()
    }

    /// The same rows under other particulars.
    #[must_use]
    pub fn with_info(mut self, info: TableInfo) -> Self {
        self.info = info;
        self
    }

    /// From collected offers, keeping their order.
    pub fn from_items(info: TableInfo, items: &[Item]) -> Self {
        let mut builder = TableBuilder::new();
        for item in items {
            builder.push_item(item);
        }
        builder.finish(info)
    }

    /// One offer; `None` past the end.
    pub fn offer(&self, row: usize) -> Option<Offer<'_>> {
        let at = u32::try_from(row).ok()?;
        let price = *self.prices.get(row)?;
        let shape = self
            .shapes
            .get(usize::try_from(*self.row_shapes.get(row)?).ok()?)?;
        let spec = self.specs.get(usize::try_from(shape.spec).ok()?)?;
        let location = *self.row_locations.get(row)?;
        Some(Offer {
            table: self,
            row: at,
            price,
            location,
            shape,
            spec,
        })
    }

    /// The offer that was in the given data row of the file.
    pub fn offer_of_row(&self, row: usize) -> Option<Offer<'_>> {
        // The number of rows left out before a kept row grows with it, so at most all gaps need to be tried.
        let earliest = row.saturating_sub(self.gaps.len());
        (earliest..=row)
            .filter_map(|kept| self.offer(kept))
            .find(|offer| offer.row() == row)
    }

    /// All offers in file order.
    pub fn offers(&self) -> impl Iterator<Item = Offer<'_>> {
        (0..self.len()).filter_map(|row| self.offer(row))
    }

    /// Bytes held by the table, without the allocator's overhead.
    pub fn size_bytes(&self) -> usize {
        self.texts.size_bytes()
            + size_of_val::<[Spec]>(&self.specs)
            + size_of_val::<[Shape]>(&self.shapes)
            + size_of_val::<[f64]>(&self.prices)
            + 4 * (self.row_shapes.len()
                + self.row_locations.len()
                + self.gaps.len()
                + self.starts.len()
                + self.postings.len())
    }

    pub(crate) fn text(&self, id: TextId) -> &str {
        self.texts.get(id)
    }
}

/// One offer inside a table: cheap to copy, valid as long as the catalogue it points into.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    table: &'a Table,
    row: u32,
    price: f64,
    location: TextId,
    shape: &'a Shape,
    spec: &'a Spec,
}

impl<'a> Offer<'a> {
    /// Who sells it.
    pub fn provider(&self) -> Provider {
        self.table.info.provider
    }

    /// Zero-based data row of the provider's file, counting rows that could not be read.
    pub fn row(&self) -> usize {
        let kept = self.row as usize;
        kept + self.table.gaps.partition_point(|gap| *gap <= self.row)
    }

    /// `provider:row`: names the offer within one version of the catalogue.
    pub fn reference(&self) -> String {
        format!("{}:{}", self.provider(), self.row())
    }

    /// Number of its shape: offers of one table with the same number differ in price and place only.
    pub fn shape(&self) -> u32 {
        let row = self.row as usize;
        self.table.row_shapes.get(row).copied().unwrap_or_default()
    }

    /// What the provider's create call needs.
    pub fn instance_name(&self) -> &'a str {
        self.table.text(self.shape.instance_name)
    }

    /// Region or zone.
    pub fn location(&self) -> &'a str {
        self.table.text(self.location)
    }

    /// USD per hour.
    pub fn price(&self) -> f64 {
        self.price
    }

    /// Returns the number of vCPUs.
    pub fn cpu(&self) -> i64 {
        self.spec.cpu
    }

    /// GiB of RAM.
    pub fn memory(&self) -> f64 {
        self.spec.memory
    }

    /// Returns the number of accelerators.
    pub fn gpu_count(&self) -> i64 {
        self.spec.gpu_count
    }

    /// Normalised accelerator name.
    pub fn gpu_name(&self) -> Option<&'a str> {
        self.spec.gpu_name.map(|id| self.table.text(id))
    }

    /// GiB per accelerator.
    pub fn gpu_memory(&self) -> Option<f64> {
        self.spec.gpu_memory
    }

    /// Returns the vendor of the accelerators; `None` without any.
    pub fn gpu_vendor(&self) -> Option<Vendor> {
        self.spec.gpu_vendor
    }

    /// Returns whether the price is that of an interruptible instance.
    pub fn spot(&self) -> bool {
        self.spec.spot
    }

    /// GB of the fixed disk, if it is fixed.
    pub fn disk_size(&self) -> Option<f64> {
        self.spec.disk_size
    }

    /// Returns the instruction set of the CPU.
    pub fn cpu_arch(&self) -> CpuArch {
        self.spec.cpu_arch
    }

    /// Returns the markers that hide the offer from callers who did not ask for them.
    pub fn flags(&self) -> impl ExactSizeIterator<Item = &'a str> {
        let table = self.table;
        self.spec.flags.iter().map(move |id| table.text(*id))
    }

    /// JSON text for the create call.
    pub fn provider_data(&self) -> &'a str {
        self.table.text(self.shape.provider_data)
    }

    /// A copy that stands alone.
    pub fn to_item(&self) -> Item {
        Item {
            provider: self.provider(),
            instance_name: self.instance_name().to_owned(),
            location: self.location().to_owned(),
            price: self.price,
            cpu: self.cpu(),
            memory: self.memory(),
            gpu_count: self.gpu_count(),
            gpu_name: self.gpu_name().map(str::to_owned),
            gpu_memory: self.gpu_memory(),
            gpu_vendor: self.gpu_vendor(),
            spot: self.spot(),
            disk_size: self.disk_size(),
            cpu_arch: self.cpu_arch(),
            flags: self.flags().map(str::to_owned).collect(),
            provider_data: ProviderData::from_checked(self.provider_data()),
        }
    }
}

impl fmt::Debug for Offer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {}",
            self.reference(),
            self.instance_name(),
            self.location(),
            self.price
        )
    }
}
