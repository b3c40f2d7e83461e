//! Builds a table row by row.

use rustc_hash::FxHashMap;

use super::{Shape, Spec, Table, TableInfo};
use crate::accelerators;
use crate::texts::{TextId, TextsBuilder};
use crate::{CpuArch, Item, Vendor};

/// One row, borrowed from wherever it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) instance_name: &'a str,
    pub(crate) location: &'a str,
    pub(crate) price: f64,
    pub(crate) cpu: i64,
    pub(crate) memory: f64,
    pub(crate) gpu_count: i64,
    pub(crate) gpu_name: Option<&'a str>,
    pub(crate) gpu_memory: Option<f64>,
    pub(crate) gpu_vendor: Option<Vendor>,
    pub(crate) spot: bool,
    pub(crate) disk_size: Option<f64>,
    pub(crate) cpu_arch: CpuArch,
    pub(crate) flags: &'a [&'a str],
    pub(crate) provider_data: &'a str,
}

/// A spec with its floats as bits, so that equal rows meet (also NaN).
type SpecKey = (
    i64,
    u64,
    i64,
    Option<TextId>,
    Option<u64>,
    Option<Vendor>,
    bool,
    Option<u64>,
    CpuArch,
    Box<[TextId]>,
);

#[derive(Debug, Default)]
pub(crate) struct TableBuilder {
    texts: TextsBuilder,
    specs: Vec<Spec>,
    spec_ids: FxHashMap<SpecKey, u32>,
    shapes: Vec<Shape>,
    shape_ids: FxHashMap<(TextId, TextId, u32), u32>,
    prices: Vec<f64>,
    row_shapes: Vec<u32>,
    row_locations: Vec<TextId>,
    gaps: Vec<u32>,
}

impl TableBuilder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Rows so far.
    pub(crate) fn len(&self) -> usize {
        self.prices.len()
    }

    /// Bytes of distinct texts so far.
    pub(crate) fn text_bytes(&self) -> usize {
        self.texts.bytes()
    }

    pub(crate) fn push_item(&mut self, item: &Item) {
        let flags: Vec<&str> = item.flags.iter().map(String::as_str).collect();
        self.push(Row {
            instance_name: &item.instance_name,
            location: &item.location,
            price: item.price,
            cpu: item.cpu,
            memory: item.memory,
            gpu_count: item.gpu_count,
            gpu_name: item.gpu_name.as_deref(),
            gpu_memory: item.gpu_memory,
            gpu_vendor: item.gpu_vendor,
            spot: item.spot,
            disk_size: item.disk_size,
            cpu_arch: item.cpu_arch,
            flags: &flags,
            provider_data: item.provider_data.text(),
        });
    }

    /// Adds a row; returns the number of its shape.
    pub(crate) fn push(&mut self, row: Row<'_>) -> u32 {
        let shape = self.shape(&row);
        self.push_known(shape, row.location, row.price);
        shape
    }

    /// Adds a row of a shape already seen.
    pub(crate) fn push_known(&mut self, shape: u32, location: &str, price: f64) {
        let location = self.texts.intern(location);
        self.prices.push(price);
        self.row_shapes.push(shape);
        self.row_locations.push(location);
    }

    /// Notes that a row of the file was left out here.
    pub(crate) fn skip_row(&mut self) {
        self.gaps.push(self.prices.len() as u32);
    }

    fn shape(&mut self, row: &Row<'_>) -> u32 {
        let spec = self.spec(row);
        let shape = Shape {
            instance_name: self.texts.intern(row.instance_name),
            provider_data: self.texts.intern(row.provider_data),
            spec,
        };
        let next = self.shapes.len() as u32;
        let id = *self
            .shape_ids
            .entry((shape.instance_name, shape.provider_data, spec))
            .or_insert(next);
        if id == next {
            self.shapes.push(shape);
        }
        id
    }

    fn spec(&mut self, row: &Row<'_>) -> u32 {
        let gpu_name = row.gpu_name.map(|name| self.texts.intern(name));
        let flags: Box<[TextId]> = row.flags.iter().map(|flag| self.texts.intern(flag)).collect();
        let key = (
            row.cpu,
            row.memory.to_bits(),
            row.gpu_count,
            gpu_name,
            row.gpu_memory.map(f64::to_bits),
            row.gpu_vendor,
            row.spot,
            row.disk_size.map(f64::to_bits),
            row.cpu_arch,
            flags.clone(),
        );
        let next = self.specs.len() as u32;
        let id = *self.spec_ids.entry(key).or_insert(next);
        if id == next {
            self.specs.push(Spec {
                cpu: row.cpu,
                memory: row.memory,
                gpu_count: row.gpu_count,
                gpu_name,
                gpu_memory: row.gpu_memory,
                gpu_vendor: row.gpu_vendor,
                spot: row.spot,
                disk_size: row.disk_size,
                cpu_arch: row.cpu_arch,
                flags,
                compute_capability: capability(row.gpu_vendor, row.gpu_name),
            });
        }
        id
    }

    pub(crate) fn finish(self, info: TableInfo) -> Table {
        let (starts, postings) = postings(&self.row_shapes, self.shapes.len());
        Table {
            info,
            texts: self.texts.finish(),
            specs: self.specs.into(),
            shapes: self.shapes.into(),
            sorted: ascending(&self.prices),
            prices: self.prices.into(),
            row_shapes: self.row_shapes.into(),
            row_locations: self.row_locations.into(),
            gaps: self.gaps.into(),
            starts,
            postings,
        }
    }
}

/// The compute capability filters compare: NVIDIA cards of a known name have one.
pub(super) fn capability(vendor: Option<Vendor>, name: Option<&str>) -> Option<(i64, i64)> {
    if vendor != Some(Vendor::Nvidia) {
        return None;
    }
    let (major, minor) = accelerators::compute_capability(name?)?;
    Some((major.into(), minor.into()))
}

pub(super) fn ascending(prices: &[f64]) -> bool {
    !prices.iter().any(|price| price.is_nan()) && prices.is_sorted()
}

/// Groups rows by shape (counting sort). Shape numbers must be below `shapes`.
pub(super) fn postings(row_shapes: &[u32], shapes: usize) -> (Box<[u32]>, Box<[u32]>) {
    let mut starts = vec![0u32; shapes + 1];
    for shape in row_shapes {
        if let Some(count) = starts.get_mut(*shape as usize + 1) {
            *count += 1;
        }
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    let mut next = starts.clone();
    let mut postings = vec![0u32; row_shapes.len()];
    for (row, shape) in row_shapes.iter().enumerate() {
        if let Some(slot) = next.get_mut(*shape as usize) {
            if let Some(posting) = postings.get_mut(*slot as usize) {
                *posting = row as u32;
            }
            *slot += 1;
        }
    }
    (starts.into(), postings.into())
}
