//! Whether an instance satisfies requirements (dstack 0.22.5: scheduling §7).

use dstack_model::instances::{Gpu, Resources};
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::Requirements;
use dstack_units::{AcceleratorVendor, CpuArchitecture, GpuSpec, Memory, Range};

/// How strict the unset parts of a request are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defaults {
    /// As asked for: every instance but this very machine.
    Enforced,
    /// Ranges equal to the configuration language's defaults (2 CPUs, 8 GB, 100 GB of disk) do not count: nobody
    /// asked for them, and the machine at hand is taken as it is.
    Relaxed,
}

/// Why an instance does not match: the first reason, in words.
pub type Mismatch = String;

/// Checks resources, price and spot policy.
pub fn check(
    requirements: &Requirements,
    resources: &Resources,
    price: f64,
    defaults: Defaults,
) -> Result<(), Mismatch> {
    if let Some(max) = requirements.max_price
        && price > max
    {
        return Err(format!("costs ${price}/h, more than max_price ${max}"));
    }
    if let Some(spot) = requirements.spot
        && spot != resources.spot
    {
        return Err(if spot {
            "is not a spot instance"
        } else {
            "is a spot instance"
        }
        .to_owned());
    }
    check_resources(&requirements.resources, resources, defaults)
}

/// Checks resources alone.
pub fn check_resources(wanted: &ResourcesSpec, has: &Resources, defaults: Defaults) -> Result<(), Mismatch> {
    let standard = ResourcesSpec::default();
    let relaxed = |is_default: bool| defaults == Defaults::Relaxed && is_default;
    if let Some(arch) = wanted.cpu.arch
        && arch != has.cpu_arch.unwrap_or(CpuArchitecture::X86)
    {
        return Err(format!("has another CPU architecture than {arch}"));
    }
    if !relaxed(wanted.cpu.count == standard.cpu.count) && !wanted.cpu.count.contains(has.cpus) {
        return Err(format!("has {} CPUs, wanted {}", has.cpus, wanted.cpu.count));
    }
    let memory = Memory::from_mib(to_f64(has.memory_mib));
    if !relaxed(wanted.memory == standard.memory) && !wanted.memory.contains(memory) {
        return Err(format!("has {memory} of memory, wanted {}", wanted.memory));
    }
    if let Some(gpu) = &wanted.gpu {
        check_gpus(gpu, &has.gpus)?;
    }
    if let Some(disk) = &wanted.disk
        && has.disk.size_mib > 0
        && !relaxed(
            standard
                .disk
                .as_ref()
                .is_some_and(|standard| standard.size == disk.size),
        )
    {
        let size = Memory::from_mib(to_f64(has.disk.size_mib));
        if !disk.size.contains(size) {
            return Err(format!("has {size} of disk, wanted {}", disk.size));
        }
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss)] // sizes of machines
const fn to_f64(value: i64) -> f64 {
    value as f64
}

fn check_gpus(wanted: &GpuSpec, has: &[Gpu]) -> Result<(), Mismatch> {
    let count = i64::try_from(has.len()).unwrap_or(i64::MAX);
    let Some(gpu) = has.first() else {
        let none_is_fine = wanted.count.min.unwrap_or(0) == 0;
        return if none_is_fine {
            Ok(())
        } else {
            Err(format!("has no GPU, wanted {}", wanted.count))
        };
    };
    if let Some(vendor) = wanted.vendor
        && gpu.vendor != Some(vendor)
    {
        return Err(format!("has a GPU of another vendor than {vendor}"));
    }
    if !wanted.count.contains(count) {
        return Err(format!("has {count} GPUs, wanted {}", wanted.count));
    }
    if let Some(names) = &wanted.name
        && !names.iter().any(|name| name.eq_ignore_ascii_case(&gpu.name))
    {
        return Err(format!("has {}, wanted {}", gpu.name, names.join(", ")));
    }
    check_capability(wanted, gpu)?;
    let each = Memory::from_mib(to_f64(gpu.memory_mib));
    let total = Memory::from_mib(to_f64(gpu.memory_mib.saturating_mul(count)));
    within(wanted.memory.as_ref(), each, "of GPU memory")?;
    within(wanted.total_memory.as_ref(), total, "of GPU memory in all")
}

fn within(wanted: Option<&Range<Memory>>, has: Memory, what: &str) -> Result<(), Mismatch> {
    match wanted {
        Some(range) if !range.contains(has) => Err(format!("has {has} {what}, wanted {range}")),
        _ => Ok(()),
    }
}

fn check_capability(wanted: &GpuSpec, gpu: &Gpu) -> Result<(), Mismatch> {
    let Some(minimum) = &wanted.compute_capability else {
        return Ok(());
    };
    let known = dstack_units::accelerators::find(&gpu.name).find_map(|known| known.compute_capability);
    match known {
        Some((major, minor)) if gpu.vendor == Some(AcceleratorVendor::Nvidia) => {
            let has = (i64::from(major), i64::from(minor));
            if has >= (minimum.0, minimum.1) {
                Ok(())
            } else {
                Err(format!("has compute capability {major}.{minor}"))
            }
        }
        _ => Err("has no known compute capability".to_owned()),
    }
}
