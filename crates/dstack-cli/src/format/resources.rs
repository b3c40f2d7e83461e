//! What an instance has, and what a run asks for.

use std::fmt::Display;

use dstack_model::instances::Resources;
use dstack_model::resources::ResourcesSpec;
use dstack_units::Range;
use dstack_units::human::mib_as_gb;

/// `cpu=8 mem=32GB disk=100GB gpu=H100:80GB:1`; parts that are zero are left out.
pub fn instance(resources: &Resources) -> String {
    let mut parts = Vec::new();
    if resources.cpus > 0 {
        let arch = resources
            .cpu_arch
            .map(|arch| format!("{arch}:"))
            .unwrap_or_default();
        parts.push(format!("cpu={arch}{}", resources.cpus));
    }
    if resources.memory_mib > 0 {
        parts.push(format!("mem={}", mib_as_gb(resources.memory_mib)));
    }
    if resources.disk.size_mib > 0 {
        parts.push(format!("disk={}", mib_as_gb(resources.disk.size_mib)));
    }
    parts.extend(gpus(resources));
    parts.join(" ")
}

/// As [`instance`], with ` (spot)` for spot instances.
pub fn instance_with_spot(resources: &Resources) -> String {
    let text = instance(resources);
    if resources.spot {
        format!("{text} (spot)")
    } else {
        text
    }
}

/// `gpu=H100:80GB:1`, or `-`.
pub fn gpu(resources: &Resources) -> String {
    gpus(resources).unwrap_or_else(|| "-".to_owned())
}

fn gpus(resources: &Resources) -> Option<String> {
    let first = resources.gpus.first()?;
    let memory = if first.memory_mib > 0 {
        format!("{}:", mib_as_gb(first.memory_mib))
    } else {
        String::new()
    };
    let name = if first.name.is_empty() {
        String::new()
    } else {
        format!("{}:", first.name)
    };
    Some(format!("gpu={name}{memory}{}", resources.gpus.len()))
}

/// `cpu=2.. mem=8GB.. disk=100GB.. gpu=H100:80GB:1..8`.
pub fn requirements(resources: &ResourcesSpec) -> String {
    let arch = resources
        .cpu
        .arch
        .map(|arch| format!("{arch}:"))
        .unwrap_or_default();
    let mut parts = vec![
        format!("cpu={arch}{}", resources.cpu.count),
        format!("mem={}", resources.memory),
    ];
    if let Some(disk) = &resources.disk {
        parts.push(format!("disk={}", disk.size));
    }
    if let Some(gpu) = &resources.gpu {
        let name = gpu
            .name
            .as_ref()
            .filter(|names| !names.is_empty())
            .map(|names| names.join(","));
        let head = name.or_else(|| gpu.vendor.map(|vendor| vendor.to_string()));
        let tail = [
            gpu.memory.as_ref().map(ToString::to_string),
            Some(gpu.count.to_string()),
            gpu.total_memory.as_ref().map(ToString::to_string),
            gpu.compute_capability.as_ref().map(ToString::to_string),
        ];
        let words: Vec<String> = head.into_iter().chain(tail.into_iter().flatten()).collect();
        parts.push(format!("gpu={}", words.join(":")));
    }
    parts.join(" ")
}

/// A range; empty when it is open on both sides.
pub fn range<T: Display + PartialEq>(range: &Range<T>) -> String {
    if range.min.is_none() && range.max.is_none() {
        String::new()
    } else {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resources(value: serde_json::Value) -> Resources {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn instances() {
        let shown = resources(json!({
            "cpus": 8, "memory_mib": 32_768, "gpus": [{"name": "H100", "memory_mib": 81_920}], "spot": true,
            "disk": {"size_mib": 102_400}, "cpu_arch": "arm",
        }));
        assert_eq!(
            instance_with_spot(&shown),
            "cpu=arm:8 mem=32GB disk=100GB gpu=H100:80GB:1 (spot)"
        );
        assert_eq!(gpu(&shown), "gpu=H100:80GB:1");
        let bare = resources(
            json!({"cpus": 0, "memory_mib": 512, "gpus": [], "spot": false, "disk": {"size_mib": 0}}),
        );
        assert_eq!(instance(&bare), "mem=0.5GB");
        assert_eq!(gpu(&bare), "-");
    }

    #[test]
    fn what_is_asked_for() {
        for (value, shown) in [
            (json!({}), "cpu=2.. mem=8GB.. disk=100GB.. gpu=0.."),
            (
                json!({"gpu": "nvidia:24GB", "cpu": "x86:2.."}),
                "cpu=x86:2.. mem=8GB.. disk=100GB.. gpu=nvidia:24GB:1..",
            ),
            (
                json!({"gpu": {"name": ["A100", "H100"], "count": "1..8", "total_memory": "160GB..", "compute_capability": 8.0}}),
                "cpu=2.. mem=8GB.. disk=100GB.. gpu=A100,H100:1..8:160GB..:8.0",
            ),
            (
                json!({"disk": null, "gpu": null, "memory": "0.5GB"}),
                "cpu=2.. mem=0.5GB",
            ),
        ] {
            let spec: ResourcesSpec = serde_json::from_value(value).unwrap();
            assert_eq!(requirements(&spec), shown);
        }
    }
}
