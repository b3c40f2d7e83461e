//! Whether an instance satisfies requirements (dstack 0.22.5: scheduling §7).

use dstack_model::instances::{Gpu, Resources};
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::Requirements;
use dstack_units::{AcceleratorVendor, CpuArchitecture, GpuSpec, Memory};

mod mismatch;

pub use mismatch::Mismatch;

/// How strict the unset parts of a request are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defaults {
    /// As asked for: every instance but this very machine.
    Enforced,
    /// Ranges equal to the configuration language's defaults (2 CPUs, 8 GB, 100 GB of disk) do not count: nobody
    /// asked for them, and the machine at hand is taken as it is.
    Relaxed,
}

/// What requirements are checked against: an instance, or a share of one.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Number of CPUs.
    pub cpus: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// GPUs, all alike.
    pub gpus: &'a [Gpu],
    /// Whether it can be taken away.
    pub spot: bool,
    /// Disk in MiB; 0 when unknown.
    pub disk_mib: i64,
    /// x86 when unknown.
    pub cpu_arch: Option<CpuArchitecture>,
    /// Dollars an hour.
    pub price: f64,
}

impl<'a> Machine<'a> {
    /// A whole instance.
    pub fn whole(resources: &'a Resources, price: f64) -> Self {
        Self::part(resources, price, 1, 1)
    }

    /// `blocks` out of `total`: CPUs, memory and GPUs are divided, disk and price are whole.
    pub fn part(resources: &'a Resources, price: f64, blocks: i64, total: i64) -> Self {
        let of = |value: i64| value / total.max(1) * blocks;
        let gpus = of(i64::try_from(resources.gpus.len()).unwrap_or(0));
        let gpus = usize::try_from(gpus).unwrap_or(0);
        Self {
            cpus: of(resources.cpus),
            memory_mib: of(resources.memory_mib),
            gpus: resources.gpus.get(..gpus).unwrap_or(&resources.gpus),
            spot: resources.spot,
            disk_mib: resources.disk.size_mib,
            cpu_arch: resources.cpu_arch,
            price,
        }
    }
}

/// Checks resources, price and spot policy: the first requirement that does not hold.
///
/// # Errors
/// The machine does not match.
pub fn check(requirements: &Requirements, machine: Machine<'_>, defaults: Defaults) -> Result<(), Mismatch> {
    mismatches(requirements, machine, defaults)
        .next()
        .map_or(Ok(()), Err)
}

/// Every requirement that does not hold.
pub fn mismatches<'a>(
    requirements: &'a Requirements,
    machine: Machine<'a>,
    defaults: Defaults,
) -> impl Iterator<Item = Mismatch> + 'a {
    let asked = Asked {
        requirements,
        machine,
        relaxed: (defaults == Defaults::Relaxed).then(ResourcesSpec::default),
    };
    CHECKS.iter().filter_map(move |check| check(&asked))
}

struct Asked<'a> {
    requirements: &'a Requirements,
    machine: Machine<'a>,
    /// Requirements that do not count when they are as here.
    relaxed: Option<ResourcesSpec>,
}

impl Asked<'_> {
    fn spec(&self) -> &ResourcesSpec {
        &self.requirements.resources
    }

    fn is_relaxed(&self, same: impl Fn(&ResourcesSpec) -> bool) -> bool {
        self.relaxed.as_ref().is_some_and(same)
    }

    /// The GPU requirements and the first GPU (all are alike), unless there is none and none is needed.
    fn gpu(&self) -> Option<(&GpuSpec, Option<&Gpu>)> {
        let wanted = self.spec().gpu.as_ref()?;
        let has = self.machine.gpus.first();
        if has.is_none() && wanted.count.min == Some(0) {
            return None;
        }
        Some((wanted, has))
    }

    fn gpus(&self) -> i64 {
        i64::try_from(self.machine.gpus.len()).unwrap_or(i64::MAX)
    }
}

type Check = fn(&Asked<'_>) -> Option<Mismatch>;

const CHECKS: &[Check] = &[
    price,
    spot,
    architecture,
    cpus,
    memory,
    no_gpu,
    gpu_vendor,
    gpu_count,
    gpu_name,
    compute_capability,
    gpu_memory,
    gpu_total_memory,
    disk,
];

fn price(asked: &Asked<'_>) -> Option<Mismatch> {
    let max = asked.requirements.max_price?;
    (asked.machine.price > max).then_some(Mismatch::Price {
        price: asked.machine.price,
        max,
    })
}

fn spot(asked: &Asked<'_>) -> Option<Mismatch> {
    let is_spot = asked.machine.spot;
    (asked.requirements.spot? != is_spot).then_some(Mismatch::Spot { is_spot })
}

fn architecture(asked: &Asked<'_>) -> Option<Mismatch> {
    let wanted = asked.spec().cpu.arch?;
    let has = asked.machine.cpu_arch.unwrap_or(CpuArchitecture::X86);
    (wanted != has).then_some(Mismatch::Architecture { has, wanted })
}

fn cpus(asked: &Asked<'_>) -> Option<Mismatch> {
    let wanted = asked.spec().cpu.count;
    let has = asked.machine.cpus;
    if wanted.contains(has) || asked.is_relaxed(|standard| standard.cpu.count == wanted) {
        return None;
    }
    Some(Mismatch::Cpus { has, wanted })
}

fn memory(asked: &Asked<'_>) -> Option<Mismatch> {
    let wanted = asked.spec().memory;
    let has = from_mib(asked.machine.memory_mib);
    if wanted.contains(has) || asked.is_relaxed(|standard| standard.memory == wanted) {
        return None;
    }
    Some(Mismatch::Memory { has, wanted })
}

fn no_gpu(asked: &Asked<'_>) -> Option<Mismatch> {
    let (wanted, has) = asked.gpu()?;
    if has.is_some() {
        return None;
    }
    // Without a lower bound, none is a number like any other; whatever else is said of GPUs, none has it.
    let says_more = wanted.vendor.is_some() || wanted.name.is_some() || wanted.compute_capability.is_some();
    let none = Memory::from_gb(0.0);
    let counts = wanted.count.contains(0)
        && wanted.memory.is_none_or(|range| range.contains(none))
        && wanted.total_memory.is_none_or(|range| range.contains(none));
    (says_more || !counts).then(|| Mismatch::NoGpu {
        wanted: Box::new(wanted.clone()),
    })
}

fn gpu_vendor(asked: &Asked<'_>) -> Option<Mismatch> {
    let (spec, Some(gpu)) = asked.gpu()? else {
        return None;
    };
    let wanted = spec.vendor?;
    (gpu.vendor != Some(wanted)).then_some(Mismatch::GpuVendor {
        has: gpu.vendor,
        wanted,
    })
}

fn gpu_count(asked: &Asked<'_>) -> Option<Mismatch> {
    let (spec, Some(_)) = asked.gpu()? else {
        return None;
    };
    let has = asked.gpus();
    (!spec.count.contains(has)).then_some(Mismatch::GpuCount {
        has,
        wanted: spec.count,
    })
}

fn gpu_name(asked: &Asked<'_>) -> Option<Mismatch> {
    let (spec, Some(gpu)) = asked.gpu()? else {
        return None;
    };
    let wanted = spec.name.as_ref()?;
    if wanted.iter().any(|name| name.eq_ignore_ascii_case(&gpu.name)) {
        return None;
    }
    Some(Mismatch::GpuName {
        has: gpu.name.clone(),
        wanted: wanted.clone(),
    })
}

fn compute_capability(asked: &Asked<'_>) -> Option<Mismatch> {
    let (spec, Some(gpu)) = asked.gpu()? else {
        return None;
    };
    let minimum = spec.compute_capability.as_ref()?;
    let wanted = (minimum.0, minimum.1);
    let has = capability(gpu);
    if has.is_some_and(|has| has >= wanted) {
        return None;
    }
    Some(Mismatch::ComputeCapability { has, wanted })
}

/// Known for NVIDIA's GPUs only.
fn capability(gpu: &Gpu) -> Option<(i64, i64)> {
    if gpu.vendor != Some(AcceleratorVendor::Nvidia) {
        return None;
    }
    let known = dstack_units::accelerators::find(&gpu.name).find_map(|known| known.compute_capability);
    known.map(|(major, minor)| (i64::from(major), i64::from(minor)))
}

fn gpu_memory(asked: &Asked<'_>) -> Option<Mismatch> {
    let (spec, Some(gpu)) = asked.gpu()? else {
        return None;
    };
    let wanted = spec.memory?;
    let has = from_mib(gpu.memory_mib);
    (!wanted.contains(has)).then_some(Mismatch::GpuMemory { has, wanted })
}

fn gpu_total_memory(asked: &Asked<'_>) -> Option<Mismatch> {
    let (spec, Some(gpu)) = asked.gpu()? else {
        return None;
    };
    let wanted = spec.total_memory?;
    let has = from_mib(gpu.memory_mib.saturating_mul(asked.gpus()));
    (!wanted.contains(has)).then_some(Mismatch::GpuTotalMemory { has, wanted })
}

fn disk(asked: &Asked<'_>) -> Option<Mismatch> {
    let wanted = asked.spec().disk.as_ref()?.size;
    let has = asked.machine.disk_mib;
    let standard = |standard: &ResourcesSpec| standard.disk.is_some_and(|disk| disk.size == wanted);
    // 0 = nobody knows.
    if has == 0 || wanted.contains(from_mib(has)) || asked.is_relaxed(standard) {
        return None;
    }
    Some(Mismatch::Disk {
        has: from_mib(has),
        wanted,
    })
}

#[allow(clippy::cast_precision_loss)] // sizes of machines
fn from_mib(mib: i64) -> Memory {
    Memory::from_mib(mib as f64)
}

#[cfg(test)]
mod tests {
    use dstack_model::instances::Disk;

    use super::*;

    fn wanted(resources: &serde_json::Value) -> Requirements {
        serde_json::from_value(serde_json::json!({"resources": resources})).unwrap()
    }

    fn machine(gpus: usize) -> Resources {
        Resources {
            cpus: 4,
            memory_mib: 16 * 1024,
            gpus: vec![
                Gpu {
                    name: "A100".to_owned(),
                    memory_mib: 40 * 1024,
                    vendor: Some(AcceleratorVendor::Nvidia),
                };
                gpus
            ],
            spot: false,
            disk: Disk::default(),
            cpu_arch: None,
            description: String::new(),
        }
    }

    fn verdict(resources: &serde_json::Value, gpus: usize) -> String {
        match check(
            &wanted(resources),
            Machine::whole(&machine(gpus), 1.0),
            Defaults::Enforced,
        ) {
            Ok(()) => "fits".to_owned(),
            Err(mismatch) => mismatch.to_string(),
        }
    }

    #[test]
    fn requirements_hold_or_are_named() {
        for (resources, gpus, expected) in [
            (serde_json::json!({}), 0, "fits"),
            (
                serde_json::json!({"cpu": "arm:2"}),
                0,
                "has the CPU architecture x86, wanted arm",
            ),
            (serde_json::json!({"cpu": "8.."}), 0, "has 4 CPUs, wanted 8.."),
            (
                serde_json::json!({"memory": "32GB.."}),
                0,
                "has 16GB of memory, wanted 32GB..",
            ),
            (
                serde_json::json!({"disk": "200GB.."}),
                0,
                "has 100GB of disk, wanted 200GB..",
            ),
            (serde_json::json!({"gpu": 1}), 0, "has no GPU, wanted 1"),
            (
                serde_json::json!({"gpu": {"name": "H100", "count": "0.."}}),
                0,
                "fits",
            ),
            (
                serde_json::json!({"gpu": {"name": "H100", "count": "0.."}}),
                1,
                "has A100, wanted H100",
            ),
            (
                serde_json::json!({"gpu": {"name": "H100", "count": "..2"}}),
                0,
                "has no GPU, wanted H100:..2",
            ),
            (serde_json::json!({"gpu": "..2"}), 0, "fits"),
            (serde_json::json!({"gpu": "a100:40GB:2"}), 2, "fits"),
            (
                serde_json::json!({"gpu": "amd"}),
                2,
                "has a GPU of another vendor than amd",
            ),
            (
                serde_json::json!({"gpu": "A100:80GB"}),
                1,
                "has 40GB of GPU memory, wanted 80GB",
            ),
            (
                serde_json::json!({"gpu": {"total_memory": "100GB.."}}),
                2,
                "has 80GB of GPU memory in all, wanted 100GB..",
            ),
            (
                serde_json::json!({"gpu": {"compute_capability": 9.0}}),
                1,
                "has compute capability 8.0",
            ),
        ] {
            assert_eq!(verdict(&resources, gpus), expected, "{resources}");
        }
    }

    #[test]
    fn all_mismatches_are_found() {
        let wanted = wanted(&serde_json::json!({"cpu": 16, "memory": "64GB", "gpu": "H100:4"}));
        let wanted = Requirements {
            max_price: Some(0.5),
            spot: Some(true),
            ..wanted
        };
        let found = mismatches(&wanted, Machine::whole(&machine(1), 1.0), Defaults::Enforced).count();
        assert_eq!(found, 6);
    }

    #[test]
    fn the_machine_at_hand_is_taken_as_it_is() {
        let small = Resources {
            cpus: 1,
            memory_mib: 2048,
            ..machine(0)
        };
        let small = Machine::whole(&small, 0.0);
        let nothing = wanted(&serde_json::json!({}));
        assert!(check(&nothing, small, Defaults::Enforced).is_err());
        assert_eq!(check(&nothing, small, Defaults::Relaxed), Ok(()));
        let asked = wanted(&serde_json::json!({"memory": "4GB.."}));
        assert!(check(&asked, small, Defaults::Relaxed).is_err());
    }
}
