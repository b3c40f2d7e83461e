//! The query engine: which rows match, and in which order they come.
//!
//! Within a provider offers keep file order. Across providers they are merged by the price of each provider's next
//! offer, cheapest first; at equal prices the provider earlier in [`Provider::ALL`] goes first.

use std::ops::Range;

use crate::table::{Spec, Table};
use crate::{Filter, Offer, Vendor};

/// A filter made ready for judging specs: names in lower case.
pub(crate) struct Wanted<'a> {
    filter: &'a Filter,
    gpu_names: Option<Vec<String>>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(filter: &'a Filter) -> Self {
        let gpu_names = filter
            .gpu_name
            .as_ref()
            .map(|names| names.iter().map(|name| name.to_lowercase()).collect());
        Self { filter, gpu_names }
    }

    /// Everything but provider and price.
    fn accepts(&self, table: &Table, spec: &Spec) -> bool {
        let f = self.filter;
        f.spot.is_none_or(|spot| spot == spec.spot)
            && f.cpu_arch.is_none_or(|arch| arch == spec.cpu_arch)
            && between(spec.cpu, f.min_cpu, f.max_cpu)
            && between(spec.memory, f.min_memory, f.max_memory)
            && self.accepts_gpu(table, spec)
            && spec
                .disk_size
                .is_none_or(|disk| between(disk, f.min_disk_size, f.max_disk_size))
            && self.accepts_flags(table, spec)
    }

    fn accepts_gpu(&self, table: &Table, spec: &Spec) -> bool {
        let f = self.filter;
        if f.min_gpu_count == Some(0) && spec.gpu_count == 0 {
            return true;
        }
        let memory = if spec.gpu_count > 0 {
            spec.gpu_memory.unwrap_or(0.0)
        } else {
            0.0
        };
        f.gpu_vendor.is_none_or(|vendor| Some(vendor) == spec.gpu_vendor)
            && between(spec.gpu_count, f.min_gpu_count, f.max_gpu_count)
            && self.accepts_gpu_name(table, spec)
            && self.accepts_capability(spec)
            && between(memory, f.min_gpu_memory, f.max_gpu_memory)
            && between(
                // CPU offers count as 0, whatever memory they claim.
                if memory == 0.0 {
                    0.0
                } else {
                    spec.gpu_count as f64 * memory
                },
                f.min_total_gpu_memory,
                f.max_total_gpu_memory,
            )
    }

    fn accepts_gpu_name(&self, table: &Table, spec: &Spec) -> bool {
        let Some(wanted) = &self.gpu_names else {
            return true;
        };
        let Some(name) = spec.gpu_name.map(|id| table.text(id)) else {
            return false;
        };
        wanted.iter().any(|wanted| {
            wanted == name || wanted.eq_ignore_ascii_case(name) || *wanted == name.to_lowercase()
        })
    }

    fn accepts_capability(&self, spec: &Spec) -> bool {
        let f = self.filter;
        if f.min_compute_capability.is_none() && f.max_compute_capability.is_none() {
            return true;
        }
        spec.gpu_vendor == Some(Vendor::Nvidia)
            && spec
                .compute_capability
                .is_some_and(|known| between(known, f.min_compute_capability, f.max_compute_capability))
    }

    fn accepts_flags(&self, table: &Table, spec: &Spec) -> bool {
        let Some(allowed) = &self.filter.allowed_flags else {
            return true;
        };
        spec.flags
            .iter()
            .all(|id| allowed.iter().any(|flag| flag == table.text(*id)))
    }

    fn bounds_price(&self) -> bool {
        self.filter.min_price.is_some() || self.filter.max_price.is_some()
    }
}

/// Neither below the lower nor above the upper bound. (NaN is neither.)
fn between<T: PartialOrd + Copy>(value: T, min: Option<T>, max: Option<T>) -> bool {
    !min.is_some_and(|min| value < min) && !max.is_some_and(|max| value > max)
}

/// The matching rows of one table, found as they are asked for.
struct Rows<'a> {
    table: &'a Table,
    picked: Picked,
    /// Set when prices must be looked at row by row.
    price: Option<(Option<f64>, Option<f64>)>,
}

enum Picked {
    /// Every row of the range.
    All(Range<usize>),
    /// Rows of the range whose shape matches.
    Scan(Range<usize>, Vec<bool>),
    /// Few rows match: these.
    List(std::vec::IntoIter<u32>),
}

/// Below this share of matching rows (one in so many), they are listed instead of looked for.
const SELECTIVE: usize = 16;

impl<'a> Rows<'a> {
    fn new(table: &'a Table, wanted: &Wanted<'_>) -> Self {
        let specs: Vec<bool> = table
            .specs
            .iter()
            .map(|spec| wanted.accepts(table, spec))
            .collect();
        let accepted = |spec: u32| specs.get(spec as usize).copied().unwrap_or(false);
        let shapes: Vec<bool> = table.shapes.iter().map(|shape| accepted(shape.spec)).collect();
        let mut price = wanted
            .bounds_price()
            .then_some((wanted.filter.min_price, wanted.filter.max_price));
        let mut range = 0..table.len();
        if table.sorted && price.is_some() {
            range = price_range(table, wanted);
            price = None;
        }
        let picked = pick(table, shapes, range);
        Self { table, picked, price }
    }

    fn next(&mut self) -> Option<Offer<'a>> {
        loop {
            let row = match &mut self.picked {
                Picked::All(range) => range.next()?,
                Picked::Scan(range, shapes) => next_of(self.table, range, shapes)?,
                Picked::List(rows) => rows.next()? as usize,
            };
            let offer = self.table.offer(row)?;
            if self
                .price
                .is_none_or(|(min, max)| between(offer.price(), min, max))
            {
                return Some(offer);
            }
        }
    }
}

/// The rows within the price bounds, of a table sorted by price.
fn price_range(table: &Table, wanted: &Wanted<'_>) -> Range<usize> {
    let start = table
        .prices
        .partition_point(|price| wanted.filter.min_price.is_some_and(|min| *price < min));
    let end = table
        .prices
        .partition_point(|price| !wanted.filter.max_price.is_some_and(|max| *price > max));
    start..end.max(start)
}

fn pick(table: &Table, shapes: Vec<bool>, range: Range<usize>) -> Picked {
    if shapes.iter().all(|matches| *matches) {
        return Picked::All(range);
    }
    let of = |shape: usize| -> &[u32] {
        let start = table.starts.get(shape).copied().unwrap_or(0) as usize;
        let end = table.starts.get(shape + 1).copied().unwrap_or(0) as usize;
        table.postings.get(start..end).unwrap_or(&[])
    };
    let matching = || {
        shapes
            .iter()
            .enumerate()
            .filter(|(_, matches)| **matches)
            .map(|(shape, _)| of(shape))
    };
    let (mut count, mut first, mut last) = (0, usize::MAX, 0);
    for rows in matching() {
        count += rows.len();
        first = first.min(rows.first().map_or(usize::MAX, |row| *row as usize));
        last = last.max(rows.last().map_or(0, |row| *row as usize + 1));
    }
    let range = range.start.max(first)..range.end.min(last);
    if count * SELECTIVE > table.len() {
        return Picked::Scan(range, shapes);
    }
    let mut rows: Vec<u32> = Vec::with_capacity(count);
    for found in matching() {
        rows.extend(found.iter().filter(|row| range.contains(&(**row as usize))));
    }
    rows.sort_unstable();
    Picked::List(rows.into_iter())
}

/// The next row of the range whose shape matches.
fn next_of(table: &Table, range: &mut Range<usize>, shapes: &[bool]) -> Option<usize> {
    let ahead = table.row_shapes.get(range.clone())?;
    let steps = ahead
        .iter()
        .position(|shape| shapes.get(*shape as usize).copied().unwrap_or(false))?;
    let row = range.start + steps;
    range.start = row + 1;
    Some(row)
}

/// The offers that match a filter, in order, found as they are asked for.
pub struct Offers<'a> {
    lanes: Vec<Lane<'a>>,
}

struct Lane<'a> {
    head: Offer<'a>,
    rest: Rows<'a>,
}

impl<'a> Offers<'a> {
    /// Merges the matches of the given tables, which must be in the order of equal prices.
    pub(crate) fn new(tables: impl Iterator<Item = &'a Table>, wanted: &Wanted<'_>) -> Self {
        let lanes = tables
            .filter_map(|table| {
                let mut rest = Rows::new(table, wanted);
                rest.next().map(|head| Lane { head, rest })
            })
            .collect();
        Self { lanes }
    }
}

impl<'a> Iterator for Offers<'a> {
    type Item = Offer<'a>;

    fn next(&mut self) -> Option<Offer<'a>> {
        let mut cheapest = 0;
        let mut price = self.lanes.first()?.head.price();
        for (at, lane) in self.lanes.iter().enumerate().skip(1) {
            if lane.head.price() < price {
                (cheapest, price) = (at, lane.head.price());
            }
        }
        let lane = self.lanes.get_mut(cheapest)?;
        match lane.rest.next() {
            Some(next) => Some(std::mem::replace(&mut lane.head, next)),
            None => Some(self.lanes.remove(cheapest).head),
        }
    }
}
