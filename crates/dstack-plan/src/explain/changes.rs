//! Which change of the configuration would let something in.

use std::fmt::Display;

use dstack_model::explanations::{ChangeSet, FieldChange};
use dstack_units::Range;

use super::distance;
use crate::matching::Mismatch;
use crate::offers::{Query, Unwanted};

/// Changes that would let one offer or instance in.
#[derive(Debug)]
pub(super) struct Suggestion {
    pub(super) fields: Vec<FieldChange>,
    pub(super) price: f64,
    /// How far it is from what was asked for.
    pub(super) distance: f64,
    gives: String,
}

impl Suggestion {
    /// `None` when no change of the configuration helps, or none is needed.
    pub(super) fn new(
        query: &Query,
        mismatches: &[Mismatch],
        unwanted: Option<&Unwanted>,
        gives: String,
        price: f64,
    ) -> Option<Self> {
        let mut fields: Vec<FieldChange> = mismatches.iter().map(of_mismatch).collect();
        if let Some(unwanted) = unwanted {
            fields.push(of_unwanted(query, unwanted)?);
        }
        let distance = mismatches.iter().map(distance::of_mismatch).sum::<f64>()
            + unwanted.map_or(0.0, distance::of_unwanted);
        (!fields.is_empty()).then_some(Self {
            fields,
            price,
            distance,
            gives,
        })
    }

    pub(super) fn into_set(self) -> ChangeSet {
        ChangeSet {
            fields: self.fields,
            gives: self.gives,
            price: self.price,
        }
    }
}

fn change(field: &str, from: impl Display, to: impl Display) -> FieldChange {
    FieldChange {
        field: field.to_owned(),
        from: Some(from.to_string()),
        to: to.to_string(),
    }
}

fn of_mismatch(mismatch: &Mismatch) -> FieldChange {
    match mismatch {
        Mismatch::Price { price, max } => change("max_price", max, price),
        Mismatch::Spot { is_spot } => {
            let now = if *is_spot { "on-demand" } else { "spot" };
            change("spot_policy", now, "auto")
        }
        Mismatch::Architecture { has, wanted } => change("resources.cpu.arch", wanted, has),
        Mismatch::Cpus { has, wanted } => change("resources.cpu", wanted, widened(wanted, *has)),
        Mismatch::Memory { has, wanted } => change("resources.memory", wanted, widened(wanted, *has)),
        Mismatch::NoGpu { wanted } => change("resources.gpu", wanted, 0),
        Mismatch::GpuVendor { has, wanted } => {
            let has = has.map_or_else(|| "any".to_owned(), |vendor| vendor.to_string());
            change("resources.gpu.vendor", wanted, has)
        }
        Mismatch::GpuCount { has, wanted } => change("resources.gpu.count", wanted, widened(wanted, *has)),
        Mismatch::GpuName { has, wanted } => {
            let mut names = wanted.clone();
            names.push(has.clone());
            change("resources.gpu.name", wanted.join(", "), names.join(", "))
        }
        Mismatch::ComputeCapability { has, wanted } => {
            let text = |version: &(i64, i64)| format!("{}.{}", version.0, version.1);
            let to = has.as_ref().map_or_else(|| "none".to_owned(), text);
            change("resources.gpu.compute_capability", text(wanted), to)
        }
        Mismatch::GpuMemory { has, wanted } => change("resources.gpu.memory", wanted, widened(wanted, *has)),
        Mismatch::GpuTotalMemory { has, wanted } => {
            change("resources.gpu.total_memory", wanted, widened(wanted, *has))
        }
        Mismatch::Disk { has, wanted } => change("resources.disk", wanted, widened(wanted, *has)),
    }
}

/// The range with this value in it.
fn widened<T: PartialOrd + Copy>(range: &Range<T>, value: T) -> Range<T> {
    Range {
        min: range.min.map(|min| if value < min { value } else { min }),
        max: range.max.map(|max| if value > max { value } else { max }),
    }
}

fn of_unwanted(query: &Query, unwanted: &Unwanted) -> Option<FieldChange> {
    let added = |field: &str, names: Vec<String>, more: &str| {
        let mut all = names.clone();
        all.push(more.to_owned());
        change(field, names.join(", "), all.join(", "))
    };
    match unwanted {
        Unwanted::Backend(backend) => {
            let names = query.backends().iter().map(ToString::to_string).collect();
            Some(added("backends", names, backend.as_str()))
        }
        Unwanted::Region(region) => Some(added("regions", query.regions().to_vec(), region)),
        Unwanted::InstanceType(name) => Some(added("instance_types", query.instance_types().to_vec(), name)),
        Unwanted::Zone => Some(FieldChange {
            field: "availability_zones".to_owned(),
            from: Some(query.zones().join(", ")),
            to: "unset".to_owned(),
        }),
        Unwanted::Volume | Unwanted::Blocks => None,
    }
}
