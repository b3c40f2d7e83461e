//! How far an offer is from what was asked for: what could nearly have been taken is shown first.

use dstack_units::{Memory, Range};

use crate::matching::Mismatch;
use crate::offers::Unwanted;

/// Something that would do, were it to be had: a matter of waiting.
pub(super) const NOT_TO_BE_HAD: f64 = 0.5;
/// Left out by choice: a region, a backend.
const CHOICE: f64 = 1.0;
/// Another thing of the same kind.
const OTHER_KIND: f64 = 4.0;
/// Of no use for what was asked.
const OTHER_PURPOSE: f64 = 16.0;

/// Of one requirement: for quantities the number of doublings, for the rest how much of a change it is.
pub(super) fn of_mismatch(mismatch: &Mismatch) -> f64 {
    match mismatch {
        Mismatch::Price { price, max } => doublings(*price, *max),
        Mismatch::Spot { .. } => CHOICE,
        Mismatch::Cpus { has, wanted } | Mismatch::GpuCount { has, wanted } => of_range(*has, wanted, number),
        Mismatch::Memory { has, wanted }
        | Mismatch::GpuMemory { has, wanted }
        | Mismatch::GpuTotalMemory { has, wanted }
        | Mismatch::Disk { has, wanted } => of_range(*has, wanted, gigabytes),
        Mismatch::GpuName { .. } | Mismatch::ComputeCapability { .. } => OTHER_KIND / 2.0,
        Mismatch::GpuVendor { .. } | Mismatch::Architecture { .. } => OTHER_KIND,
        Mismatch::NoGpu { .. } => OTHER_PURPOSE,
    }
}

/// Of what leaves an offer out besides its resources.
pub(super) const fn of_unwanted(unwanted: &Unwanted) -> f64 {
    match unwanted {
        Unwanted::Backend(_) | Unwanted::Region(_) | Unwanted::InstanceType(_) | Unwanted::Zone => CHOICE,
        Unwanted::Volume | Unwanted::Blocks | Unwanted::Nodes(_) => OTHER_KIND,
    }
}

/// To the nearer end of the range.
fn of_range<T: PartialOrd + Copy>(has: T, wanted: &Range<T>, number: impl Fn(T) -> f64) -> f64 {
    let below = wanted.min.filter(|min| has < *min);
    let above = wanted.max.filter(|max| has > *max);
    let end = below.or(above);
    end.map_or(0.0, |end| doublings(number(has), number(end)))
}

fn doublings(a: f64, b: f64) -> f64 {
    // Nothing is one halving below the smallest amount that counts.
    let least = 0.5;
    (a.max(least) / b.max(least)).log2().abs()
}

#[allow(clippy::cast_precision_loss)] // counts of CPUs and GPUs
const fn number(count: i64) -> f64 {
    count as f64
}

const fn gigabytes(memory: Memory) -> f64 {
    memory.gb()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(has: i64, min: i64) -> f64 {
        of_mismatch(&Mismatch::GpuCount {
            has,
            wanted: Range {
                min: Some(min),
                max: None,
            },
        })
    }

    #[test]
    fn half_as_much_is_nearer_than_an_eighth() {
        assert!(gpus(4, 8) < gpus(1, 8));
        assert!((gpus(4, 8) - 1.0).abs() < 1e-9);
        assert!((gpus(0, 1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn another_gpu_is_nearer_than_none() {
        let other = of_mismatch(&Mismatch::GpuName {
            has: "A100".to_owned(),
            wanted: vec!["H100".to_owned()],
        });
        let none = of_mismatch(&Mismatch::NoGpu {
            wanted: Box::default(),
        });
        assert!(other < none);
        assert!(NOT_TO_BE_HAD < other);
    }
}
