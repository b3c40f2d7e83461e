//! The share of a node that a job gets: the least that it asked for.

use dstack_model::instances::{Disk, Gpu, Resources};
use dstack_model::runs::Requirements;
use dstack_units::Memory;

use crate::partitions::memory_of;

/// What a job has that asks for no memory.
const DEFAULT_MEMORY: Memory = Memory::from_gb(8.0);

/// How many GPUs a job asks for at least.
pub(crate) fn least_gpus(requirements: &Requirements) -> i64 {
    let spec = requirements.resources.gpu.as_ref();
    spec.and_then(|spec| spec.count.min).unwrap_or_default().max(0)
}

/// The share of a node with these resources; `None`: the node has less than that. The upper bounds of a range do not matter.
pub(crate) fn share(node: &Resources, requirements: &Requirements) -> Option<Resources> {
    let wanted = &requirements.resources;
    let cpus = wanted.cpu.count.min.unwrap_or(1).max(1);
    let memory = wanted.memory.min.unwrap_or_else(|| match wanted.memory.max {
        Some(most) if most < DEFAULT_MEMORY => most,
        _ => DEFAULT_MEMORY,
    });
    let memory_mib = mib(memory).max(1);
    let gpus = gpus(node, requirements)?;
    let fits = node.cpus >= cpus && node.memory_mib >= memory_mib;
    fits.then(|| Resources {
        cpus,
        memory_mib,
        gpus,
        spot: false,
        disk: Disk { size_mib: 0 },
        cpu_arch: node.cpu_arch,
        description: String::new(),
    })
}

fn gpus(node: &Resources, requirements: &Requirements) -> Option<Vec<Gpu>> {
    let least = least_gpus(requirements);
    let Some(gpu) = node.gpus.first().filter(|_| least > 0) else {
        return (least == 0).then(Vec::new);
    };
    let total = requirements
        .resources
        .gpu
        .as_ref()
        .and_then(|spec| spec.total_memory);
    let of_total = total
        .and_then(|total| total.min)
        .map_or(0, |total| count(total, memory_of(gpu)));
    let wanted = usize::try_from(least.max(of_total)).ok()?;
    (wanted <= node.gpus.len()).then(|| vec![gpu.clone(); wanted])
}

#[allow(clippy::cast_possible_truncation)] // numbers of GPUs
fn count(total: Memory, of_one: Memory) -> i64 {
    match of_one.gb() > 0.0 {
        true => (total.gb() / of_one.gb()).ceil() as i64,
        false => i64::MAX,
    }
}

#[allow(clippy::cast_possible_truncation)] // sizes of machines
fn mib(memory: Memory) -> i64 {
    memory.mib().ceil() as i64
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use dstack_units::AcceleratorVendor;
    use serde_json::{Value, json};

    use super::*;

    fn node(gpus: usize) -> Resources {
        let gpu = Gpu {
            name: "A100".to_owned(),
            memory_mib: 80 * 1024,
            vendor: Some(AcceleratorVendor::Nvidia),
        };
        Resources {
            cpus: 16,
            memory_mib: 64 * 1024,
            gpus: vec![gpu; gpus],
            spot: false,
            disk: Disk { size_mib: 0 },
            cpu_arch: None,
            description: String::new(),
        }
    }

    fn share_of(gpus: usize, resources: &Value) -> Option<(i64, i64, usize)> {
        let requirements = decode_strict(&json!({"resources": resources})).unwrap();
        let share = share(&node(gpus), &requirements)?;
        assert_eq!(
            super::share(&share, &requirements),
            Some(share.clone()),
            "a share of a share"
        );
        Some((share.cpus, share.memory_mib, share.gpus.len()))
    }

    #[test]
    fn a_job_gets_the_least_that_it_asked_for() {
        for (resources, expected) in [
            (json!({"cpu": "2..8", "memory": "16GB.."}), Some((2, 16_384, 0))),
            (json!({"cpu": "..4", "memory": "..4GB"}), Some((1, 4096, 0))),
            (json!({"cpu": "1..", "memory": "..400GB"}), Some((1, 8192, 0))),
            (json!({"cpu": "17.."}), None),
            (json!({"cpu": "1..", "memory": "65GB.."}), None),
            (json!({"cpu": "1..", "gpu": "2..8"}), Some((1, 8192, 2))),
            (
                json!({"cpu": "1..", "gpu": {"count": "1..", "total_memory": "200GB.."}}),
                Some((1, 8192, 3)),
            ),
            (json!({"cpu": "1..", "gpu": "5.."}), None),
            (json!({"cpu": "1..", "gpu": "0.."}), Some((1, 8192, 0))),
        ] {
            assert_eq!(share_of(4, &resources), expected, "{resources}");
        }
        assert_eq!(share_of(0, &json!({"cpu": "1..", "gpu": "1"})), None);
    }
}
