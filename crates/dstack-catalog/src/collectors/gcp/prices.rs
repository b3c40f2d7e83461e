//! Prices of machines, put together from what cores, memory, GPUs and local disks cost in a region.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::super::json::Json;
use super::machines::Machine;

/// How capacity is sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Capacity {
    OnDemand,
    Spot,
    Calendar,
}

/// USD per hour by family, region and capacity.
type PriceList = HashMap<(String, String, Capacity), f64>;

/// The prices of the parts.
#[derive(Debug, Default)]
pub(super) struct Prices {
    core: PriceList,
    memory: PriceList,
    gpu: PriceList,
    /// Of a whole instance, per GPU.
    slice: PriceList,
    /// Per GiB; the family is empty.
    disk: PriceList,
}

const HOURS_A_MONTH: f64 = 730.0;

/// USD of the first tier of a SKU.
pub(super) fn unit_price(sku: &Value) -> Option<f64> {
    let info = sku.list("pricingInfo").first()?;
    let rate = info
        .at("pricingExpression")
        .list("tieredRates")
        .first()?
        .at("unitPrice");
    // 64-bit numbers are texts in JSON.
    let units = match rate.at("units") {
        Value::String(text) => text.parse().ok()?,
        Value::Null => 0.0,
        number => number.as_f64()?,
    };
    Some(units + rate.number("nanos").unwrap_or(0.0) / 1e9)
}

#[allow(clippy::expect_used)] // fixed patterns
static COMPUTE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)^(?:spot preemptible )?(.+) (gpu|ram|core)").expect("well formed"));

#[allow(clippy::expect_used)]
static FAMILY: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^([a-z]\d.?) ").expect("well formed"));

impl Prices {
    pub(super) fn read(skus: &[Value]) -> Self {
        let mut prices = Self::default();
        for sku in skus {
            prices.add(sku);
        }
        prices
    }

    fn add(&mut self, sku: &Value) -> Option<()> {
        let category = sku.at("category");
        let description = sku.text("description")?;
        let spot = match category.text("usageType")? {
            "OnDemand" => false,
            "Preemptible" => true,
            _ => return None,
        };
        let skipped = ["Sole Tenancy", "Reserved", "Premium", "Custom", "suspended"];
        if skipped.iter().any(|word| description.contains(word)) {
            return None;
        }
        let capacity = match (spot, description.contains("DWS Calendar Mode")) {
            (true, _) => Capacity::Spot,
            (_, true) => Capacity::Calendar,
            _ => Capacity::OnDemand,
        };
        let price = unit_price(sku)?;
        let (list, family, price) = match category.text("resourceFamily")? {
            "Compute" if description.contains("(1 gpu slice)") => {
                let sold = [
                    "Spot Preemptible A4 Nvidia B200",
                    "DWS Calendar Mode A4 Nvidia B200",
                ];
                sold.iter()
                    .any(|start| description.starts_with(start))
                    .then_some(())?;
                (&mut self.slice, "nvidia-b200".to_owned(), price)
            }
            "Compute" => {
                let (part, family) = compute_part(description)?;
                let list = match part {
                    Part::Core => &mut self.core,
                    Part::Memory => &mut self.memory,
                    Part::Gpu => &mut self.gpu,
                };
                (list, family, price)
            }
            "Storage" if description.to_lowercase().starts_with("ssd backed local storage") => {
                (&mut self.disk, String::new(), price / HOURS_A_MONTH)
            }
            _ => return None,
        };
        for region in sku.list("serviceRegions").iter().filter_map(Value::as_str) {
            list.insert((family.clone(), region.to_owned(), capacity), price);
        }
        Some(())
    }

    /// USD per hour of a machine; `None` when it is not sold so.
    pub(super) fn of(&self, machine: &Machine, capacity: Capacity) -> Option<f64> {
        let family = vm_family(&machine.name);
        if ["g1", "f1", "m2"].contains(&family) {
            return None; // shared cores and reservations only
        }
        let of = |list: &PriceList, family: &str| {
            list.get(&(family.to_owned(), machine.region().to_owned(), capacity))
                .copied()
        };
        let gpus = machine.gpu_count as f64;
        if let Some(slice) = machine.gpu.and_then(|gpu| of(&self.slice, gpu.api_name)) {
            return Some(gpus * slice);
        }
        let mut price = machine.cpus as f64 * of(&self.core, family)?;
        price += machine.memory * of(&self.memory, family)?;
        if let Some(gpu) = machine.gpu {
            price += gpus * of(&self.gpu, gpu.api_name)?;
        }
        if let Some(gib) = local_disk(&machine.name) {
            price += gib * of(&self.disk, "")?;
        }
        Some(price)
    }
}

enum Part {
    Core,
    Memory,
    Gpu,
}

/// Which part of which family a SKU prices.
fn compute_part(description: &str) -> Option<(Part, String)> {
    if description.contains("RTX 6000 96GB") {
        return Some((Part::Gpu, "nvidia-rtx-pro-6000".to_owned()));
    }
    let found = COMPUTE.captures(description)?;
    let family = found.get(1)?.as_str();
    let part = match found.get(2)?.as_str().to_lowercase().as_str() {
        "gpu" => {
            let name = family.replace(' ', "-").to_lowercase();
            let name = match name.as_str() {
                "nvidia-tesla-a100-80gb" => "nvidia-a100-80gb",
                "nvidia-h100-80gb-mega" | "nvidia-h100-80gb-plus" => "nvidia-h100-mega-80gb",
                other => other,
            };
            return Some((Part::Gpu, name.to_owned()));
        }
        "ram" => Part::Memory,
        _ => Part::Core,
    };
    let lower = family.to_lowercase();
    let family = match FAMILY.captures(&lower).and_then(|found| found.get(1)) {
        Some(letters) => letters.as_str(),
        None => match family {
            "Memory-optimized Instance" => "m1",
            "Compute optimized Instance" | "Compute optimized" => "c2",
            "A3Plus Instance" => "a3-megagpu",
            other => other,
        },
    };
    Some((part, family.to_owned()))
}

fn vm_family(name: &str) -> &str {
    if name.starts_with("a3-megagpu") {
        return "a3-megagpu";
    }
    name.split('-').next().unwrap_or(name)
}

/// GiB of the local disks a machine type always has.
fn local_disk(name: &str) -> Option<f64> {
    let disks = match name {
        "c3-standard-4-lssd"
        | "c3d-standard-8-lssd"
        | "c3d-standard-16-lssd"
        | "c3d-highmem-8-lssd"
        | "c3d-highmem-16-lssd"
        | "a2-ultragpu-1g" => 1,
        "c3-standard-8-lssd" | "c3d-standard-30-lssd" | "c3d-highmem-30-lssd" | "a2-ultragpu-2g" => 2,
        "c3-standard-22-lssd" | "c3d-standard-60-lssd" | "c3d-highmem-60-lssd" | "a2-ultragpu-4g" => 4,
        "c3-standard-44-lssd" | "c3d-standard-90-lssd" | "c3d-highmem-90-lssd" | "a2-ultragpu-8g" => 8,
        "c3-standard-88-lssd"
        | "c3d-standard-180-lssd"
        | "c3d-highmem-180-lssd"
        | "a3-megagpu-8g"
        | "a3-highgpu-8g" => 16,
        "c3-standard-176-lssd" | "c3d-standard-360-lssd" | "c3d-highmem-360-lssd" => 32,
        "z3-standard-88-lssd" | "z3-standard-176-lssd" => 96,
        _ => return None,
    };
    Some(f64::from(disks) * 375.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skus_tell_part_and_family() {
        let family = |text: &str| compute_part(text).map(|(_, family)| family);
        for (text, expected) in [
            ("Spot Preemptible N2 Instance Core running in Americas", "n2"),
            ("C3D Instance Ram running in Paris", "c3d"),
            ("A3Plus Instance Core running in Iowa", "a3-megagpu"),
            ("Compute optimized Core running in Iowa", "c2"),
            ("Memory-optimized Instance Ram running in Iowa", "m1"),
            ("Nvidia Tesla A100 80GB GPU running in Iowa", "nvidia-a100-80gb"),
            (
                "Spot Preemptible Nvidia H100 80GB Plus GPU running in Iowa",
                "nvidia-h100-mega-80gb",
            ),
            ("RTX 6000 96GB running in Iowa", "nvidia-rtx-pro-6000"),
        ] {
            assert_eq!(family(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(family("Network Egress"), None);
        assert_eq!(local_disk("z3-standard-88-lssd"), Some(36_000.0));
    }
}
