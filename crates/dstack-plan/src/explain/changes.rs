//! Which change of the configuration would let something in.

use std::fmt::{self, Display};

use dstack_model::explanations::{ChangeSet, FieldChange};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_units::{Memory, Range};

use super::obstacles::Obstacles;
use crate::matching::Mismatch;
use crate::offers::{Query, Unwanted};

/// Changes that would let one offer or instance in.
#[derive(Debug)]
pub(super) struct Suggestion<'a> {
    pub(super) obstacles: &'a Obstacles,
    pub(super) price: f64,
    pub(super) gives: Gives<'a>,
}

/// What the changes let in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gives<'a> {
    Instance(&'a str),
    Offer(&'a Offer),
}

impl Display for Gives<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(name) => write!(f, "instance {name}"),
            Self::Offer(offer) => write!(f, "{} {} in {}", offer.backend, offer.instance.name, offer.region),
        }
    }
}

impl<'a> Suggestion<'a> {
    /// `None` when no change of the configuration helps, or none is needed.
    pub(super) fn new(obstacles: &'a Obstacles, gives: Gives<'a>, price: f64) -> Option<Self> {
        let unwanted = || obstacles.unwanted.iter().map(field_of_unwanted);
        let mismatches = || obstacles.mismatches.iter().map(of_mismatch);
        let is_changeable =
            unwanted().all(|field| field.is_some()) && mismatches().all(|change| change.is_some());
        (is_changeable && obstacles.count() > 0).then_some(Self {
            obstacles,
            price,
            gives,
        })
    }

    /// Names of the fields to change.
    pub(super) fn fields(&self) -> Vec<&'static str> {
        let mismatches = self.obstacles.mismatches.iter().map(field_of_mismatch);
        let unwanted = self.obstacles.unwanted.iter().filter_map(field_of_unwanted);
        mismatches.chain(unwanted).collect()
    }

    pub(super) fn to_set(&self, query: &Query) -> ChangeSet {
        let mismatches = self.obstacles.mismatches.iter().filter_map(of_mismatch);
        let unwanted = self.obstacles.unwanted.iter();
        ChangeSet {
            fields: mismatches
                .chain(unwanted.filter_map(|one| of_unwanted(query, one)))
                .collect(),
            gives: self.gives.to_string(),
            price: self.price,
        }
    }
}

const fn field_of_mismatch(mismatch: &Mismatch) -> &'static str {
    match mismatch {
        Mismatch::Price { .. } => "max_price",
        Mismatch::Spot { .. } => "spot_policy",
        Mismatch::Architecture { .. } => "resources.cpu.arch",
        Mismatch::Cpus { .. } => "resources.cpu.count",
        Mismatch::Memory { .. } => "resources.memory",
        Mismatch::NoGpu { .. } => "resources.gpu",
        Mismatch::GpuVendor { .. } => "resources.gpu.vendor",
        Mismatch::GpuCount { .. } => "resources.gpu.count",
        Mismatch::GpuName { .. } => "resources.gpu.name",
        Mismatch::ComputeCapability { .. } => "resources.gpu.compute_capability",
        Mismatch::GpuMemory { .. } => "resources.gpu.memory",
        Mismatch::GpuTotalMemory { .. } => "resources.gpu.total_memory",
        Mismatch::Disk { .. } => "resources.disk",
    }
}

/// `None`: no value of the field would do.
fn of_mismatch(mismatch: &Mismatch) -> Option<FieldChange> {
    let (from, to) = match mismatch {
        Mismatch::Price { price, max } => (max.to_string(), dollars_up(*price).to_string()),
        Mismatch::Spot { is_spot } => {
            let now = if *is_spot { "on-demand" } else { "spot" };
            (now.to_owned(), "auto".to_owned())
        }
        Mismatch::Architecture { has, wanted } => (wanted.to_string(), has.to_string()),
        Mismatch::Cpus { has, wanted } | Mismatch::GpuCount { has, wanted } => widened(wanted, *has, *has),
        Mismatch::Memory { has, wanted }
        | Mismatch::GpuMemory { has, wanted }
        | Mismatch::GpuTotalMemory { has, wanted }
        | Mismatch::Disk { has, wanted } => widened(wanted, rounded_down(*has), rounded_up(*has)),
        Mismatch::NoGpu { wanted } => (wanted.to_string(), "0".to_owned()),
        Mismatch::GpuVendor { has, wanted } => (wanted.to_string(), (*has)?.to_string()),
        Mismatch::GpuName { has, wanted } => added(wanted, has),
        Mismatch::ComputeCapability { has, wanted } => {
            let text = |version: &(i64, i64)| format!("{}.{}", version.0, version.1);
            (text(wanted), text(has.as_ref()?))
        }
    };
    Some(change(field_of_mismatch(mismatch), from, to))
}

fn change(field: &str, from: String, to: String) -> FieldChange {
    FieldChange {
        field: field.to_owned(),
        from: Some(from),
        to,
    }
}

/// A range, and the range widened as far as these values, which lie close around what it is to have in it.
fn widened<T: PartialOrd + Copy>(range: &Range<T>, low: T, high: T) -> (String, String)
where
    Range<T>: Display,
{
    let wide = Range {
        min: range.min.map(|min| if low < min { low } else { min }),
        max: range.max.map(|max| if high > max { high } else { max }),
    };
    (range.to_string(), wide.to_string())
}

/// A size that people would write: whole gigabytes, below one of them whole megabytes.
fn rounded_down(size: Memory) -> Memory {
    match size.gb() {
        gigabytes if gigabytes >= 1.0 => Memory::from_gb(gigabytes.floor()),
        _ => Memory::from_mib(size.mib().floor()),
    }
}

fn rounded_up(size: Memory) -> Memory {
    match size.gb() {
        gigabytes if gigabytes >= 1.0 => Memory::from_gb(gigabytes.ceil()),
        _ => Memory::from_mib(size.mib().ceil()),
    }
}

/// With four decimals at most, and not less.
fn dollars_up(price: f64) -> f64 {
    let rounded = (price * 1e4).round() / 1e4;
    match rounded < price {
        true => ((price * 1e4).floor() + 1.0) / 1e4,
        false => rounded,
    }
}

/// A list, and the list with this name in it.
fn added(names: &[String], more: &str) -> (String, String) {
    let now = names.join(", ");
    let then = [names, &[more.to_owned()]].concat().join(", ");
    (now, then)
}

/// `None`: no field would help.
const fn field_of_unwanted(unwanted: &Unwanted) -> Option<&'static str> {
    match unwanted {
        Unwanted::Backend(_) => Some("backends"),
        Unwanted::Region(_) => Some("regions"),
        Unwanted::InstanceType(_) => Some("instance_types"),
        Unwanted::Zone => Some("availability_zones"),
        Unwanted::Volume | Unwanted::Blocks | Unwanted::Nodes(_) => None,
    }
}

fn of_unwanted(query: &Query, unwanted: &Unwanted) -> Option<FieldChange> {
    let (from, to) = match unwanted {
        Unwanted::Backend(backend) => {
            let names: Vec<String> = query.backends().iter().map(ToString::to_string).collect();
            added(&names, backend.as_str())
        }
        Unwanted::Region(region) => added(query.regions(), region),
        Unwanted::InstanceType(name) => added(query.instance_types(), name),
        Unwanted::Zone => (query.zones().join(", "), "unset".to_owned()),
        Unwanted::Volume | Unwanted::Blocks | Unwanted::Nodes(_) => return None,
    };
    Some(change(field_of_unwanted(unwanted)?, from, to))
}
