use std::collections::BTreeMap;

use dstack_backend::{compute_error, vendor_offers};
use dstack_catalog::{Item, Provider, ProviderData, Vendor, accelerators};
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use serde_json::json;

use crate::TensorDock;
use crate::client::{Hostnode, Resource};

/// What of CPUs, memory and disk goes with some of the GPUs of a host at most: the rest is for the others.
const LARGEST_PART: f64 = 0.75;

/// Disk of a machine for which nobody says how large it has to be, in GB.
const USUAL_DISK: f64 = 100.0;

/// Most GPUs of a machine: each number of them is a row.
const MOST_GPUS: i64 = 64;

/// In an offer's data: what the vendor calls the GPU.
pub(crate) const GPU_MODEL: &str = "gpu_model";

impl TensorDock {
    /// What can be cut out of the hosts now, as it is asked for.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let fetch = async || {
            let hosts = self.client.hostnodes().await;
            hosts.map_err(|error| compute_error(&error))
        };
        let hosts = self.hosts.get(fetch).await?;
        let rows = rows(&hosts, &requirements.resources);
        let rows = VendorRows::new(rows);
        let regions = self.regions.as_deref();
        let offers = vendor_offers(&rows, BackendType::TensorDock, regions, requirements)?;
        let available = InstanceAvailability::Available;
        let offers = offers.into_iter();
        Ok(offers
            .map(|offer| offer.with_availability(available, InstanceRuntime::Shim))
            .collect())
    }
}

/// A row for each number of GPUs of a model that a host has. CPUs and memory go by twos, as dstack 0.19 found.
fn rows(hosts: &BTreeMap<String, Hostnode>, wanted: &ResourcesSpec) -> Vec<Item> {
    let is_up = |host: &Hostnode| {
        let is_not = |field: &str| host.status.get(field) == Some(&false.into());
        !is_not("listed") && !is_not("online")
    };
    let mut rows = Vec::new();
    for (id, host) in hosts.iter().filter(|(_, host)| is_up(host)) {
        for (model, gpus) in &host.specs.gpu {
            let counts = 1..=whole(gpus.amount).min(MOST_GPUS);
            rows.extend(counts.filter_map(|count| row(id, host, model, count, wanted)));
        }
    }
    rows
}

#[allow(clippy::cast_precision_loss)] // numbers of GPUs and CPUs
fn row(id: &str, host: &Hostnode, model: &str, count: i64, wanted: &ResourcesSpec) -> Option<Item> {
    let specs = &host.specs;
    let gpus = specs.gpu.get(model)?;
    let share = count as f64 / gpus.amount;
    let largest = if count == whole(gpus.amount) {
        1.0
    } else {
        LARGEST_PART
    };
    let part = |resource: &Resource, least: f64, wanted: Range<f64>| {
        let wanted = Range {
            min: Some(wanted.min.unwrap_or_default().max(least)),
            max: wanted.max,
        };
        fitted(resource.amount * share, resource.amount * largest, wanted)
    };
    let cpus = wanted.cpu.count;
    let cpus = Range {
        min: cpus.min.map(|count| count as f64),
        max: cpus.max.map(|count| count as f64),
    };
    // A CPU for each GPU, and a GB for each of both, at least.
    let cpus = part(&specs.cpu, count as f64, cpus)?;
    let memory = part(&specs.ram, cpus, gb(wanted.memory))?;
    let disk = gb(wanted.disk.unwrap_or_default().size);
    let disk = fitted(
        disk.min.unwrap_or(USUAL_DISK),
        specs.storage.amount * largest,
        disk,
    )?;
    let (name, vendor) = gpu(model)?;
    let price = gpus.price * count as f64
        + specs.cpu.price * cpus
        + specs.ram.price * memory
        + specs.storage.price * disk;
    let known = accelerators::find(&name)
        .next()
        .map(|known| f64::from(known.memory_gib));
    Some(Item {
        price: (price * 1e6).round() / 1e6,
        cpu: whole(cpus),
        memory,
        disk_size: Some(disk),
        gpu_count: count,
        gpu_memory: Some(gpus.vram.or_else(|| memory_of(model)).or(known)?),
        gpu_name: Some(name),
        gpu_vendor: Some(vendor),
        provider_data: ProviderData::from_value(&json!({GPU_MODEL: model})),
        ..Item::new(Provider::Private, id, region(host)?)
    })
}

/// The even number nearest to a size that what is wanted and what there is allow; `None`: they allow none.
fn fitted(size: f64, most: f64, wanted: Range<f64>) -> Option<f64> {
    let even = |number: f64| (number / 2.0).floor() * 2.0;
    let least = even(wanted.min.unwrap_or_default() + 1.0).max(2.0);
    let most = even(wanted.max.map_or(most, |max| max.min(most)));
    (least <= most).then(|| even(size).clamp(least, most))
}

fn gb(range: Range<Memory>) -> Range<f64> {
    Range {
        min: range.min.map(Memory::gb),
        max: range.max.map(Memory::gb),
    }
}

#[allow(clippy::cast_possible_truncation)] // whole numbers
const fn whole(number: f64) -> i64 {
    number as i64
}

/// The country in lower case without blanks, as dstack 0.19 had it: `unitedstates`.
fn region(host: &Hostnode) -> Option<String> {
    let country = host.location.country.as_ref()?;
    let letters = country.chars().filter(|letter| !letter.is_whitespace());
    let region: String = letters.collect::<String>().to_lowercase();
    (!region.is_empty()).then_some(region)
}

/// `RTX4090` of NVIDIA from `geforcertx4090-pcie-24gb`. Models that the table of GPUs does not have keep the vendor's name.
fn gpu(model: &str) -> Option<(String, Vendor)> {
    let name = model.split('-').next()?.to_uppercase();
    let plain = ["GEFORCE", "QUADRO", "TESLA", "NVIDIA"]
        .iter()
        .fold(name.as_str(), |name, prefix| {
            name.strip_prefix(prefix).unwrap_or(name)
        });
    // `RTXA6000` is `A6000` in the table.
    let names = [Some(plain), plain.strip_prefix("RTX")];
    let known = names
        .into_iter()
        .flatten()
        .find_map(|name| accelerators::find(name).next());
    match known {
        Some(known) => Some((known.name.to_owned(), known.vendor)),
        None if plain.is_empty() || plain.starts_with("MI") || plain.contains("RADEON") => None,
        None => Some((plain.to_owned(), Vendor::Nvidia)),
    }
}

/// 24 of `geforcertx4090-pcie-24gb`.
fn memory_of(model: &str) -> Option<f64> {
    let last = model.rsplit('-').next()?;
    last.strip_suffix("gb")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::Value;

    use super::*;

    fn rows_for(wanted: &Value) -> Vec<Item> {
        let host = json!({"location": {"country": "United States"}, "networking": {"ports": [20_001]},
            "specs": {"cpu": {"amount": 64, "price": 0.003}, "ram": {"amount": 240, "price": 0.002},
                "storage": {"amount": 900, "price": 0.000_05},
                "gpu": {"geforcertx4090-pcie-24gb": {"amount": 4, "price": 0.37}}},
            "status": {"listed": true, "online": true}});
        let hosts = BTreeMap::from([("host".to_owned(), serde_json::from_value(host).unwrap())]);
        rows(&hosts, &decode_strict(wanted).unwrap())
    }

    /// GPUs, CPUs, GiB of memory, GB of disk.
    fn shapes(wanted: &Value) -> Vec<(i64, i64, f64, f64)> {
        let shape = |row: Item| (row.gpu_count, row.cpu, row.memory, row.disk_size.unwrap());
        rows_for(wanted).into_iter().map(shape).collect()
    }

    #[test]
    fn a_host_is_cut_as_it_is_asked_for() {
        let all = rows_for(&json!({}));
        assert_eq!(all.len(), 4);
        assert_eq!(
            (all[0].location.as_str(), all[0].gpu_memory),
            ("unitedstates", Some(24.0))
        );
        // 0.37 + 16 * 0.003 + 60 * 0.002 + 100 * 0.00005
        assert!((all[0].price - 0.543).abs() < 1e-9, "{}", all[0].price);
        assert_eq!(
            shapes(&json!({})),
            [
                (1, 16, 60.0, 100.0),
                (2, 32, 120.0, 100.0),
                (3, 48, 180.0, 100.0),
                (4, 64, 240.0, 100.0)
            ]
        );
        let large = json!({"cpu": "40..", "memory": "..48GB", "disk": "500GB.."});
        assert_eq!(
            shapes(&large),
            [(1, 40, 48.0, 500.0), (2, 40, 48.0, 500.0), (3, 48, 48.0, 500.0)]
        );
        // No more than three quarters go with some of the GPUs.
        assert_eq!(shapes(&json!({"memory": "200GB.."})), [(4, 64, 240.0, 100.0)]);
        assert_eq!(shapes(&json!({"disk": "1TB.."})), []);
        assert_eq!(
            shapes(&json!({"disk": "..50GB"})),
            [
                (1, 16, 60.0, 50.0),
                (2, 32, 120.0, 50.0),
                (3, 48, 180.0, 50.0),
                (4, 64, 240.0, 50.0)
            ]
        );
    }

    #[test]
    fn a_host_of_too_many_gpus_has_few_rows() {
        let host = json!({"location": {"country": "Canada"}, "specs": {"cpu": {"amount": 1e9, "price": "0.003"},
            "ram": {"amount": 1e9, "price": 0.002}, "storage": {"amount": "1e9", "price": 0.000_05},
            "gpu": {"l40-pcie-48gb": {"amount": 1e9, "price": 0.9}, "odd": {"amount": null}}}});
        let hosts = BTreeMap::from([("host".to_owned(), serde_json::from_value(host).unwrap())]);
        assert_eq!(rows(&hosts, &ResourcesSpec::default()).len(), 64);
    }

    #[test]
    fn hosts_that_are_down_are_left_out() {
        let count = |status: Value| {
            let host = json!({"location": {"country": "Canada"}, "specs": {"cpu": {"amount": 8, "price": 0.003},
                "ram": {"amount": 64, "price": 0.002}, "storage": {"amount": 900, "price": 0.000_05},
                "gpu": {"l40-pcie-48gb": {"amount": 1, "price": 0.9}}}, "status": status});
            let hosts = BTreeMap::from([("host".to_owned(), serde_json::from_value(host).unwrap())]);
            rows(&hosts, &ResourcesSpec::default()).len()
        };
        assert_eq!(count(json!({"listed": true, "online": true})), 1);
        assert_eq!(count(json!("online")), 1);
        assert_eq!(count(json!({"listed": false, "online": true})), 0);
        assert_eq!(count(json!({"listed": true, "online": false})), 0);
    }

    #[test]
    fn models_are_read() {
        for (model, name) in [
            ("geforcertx4090-pcie-24gb", Some("RTX4090")),
            ("rtxa6000-pcie-48gb", Some("A6000")),
            ("h100-sxm5-80gb", Some("H100")),
            ("v100-sxm2-16gb", Some("V100")),
            ("l40s-pcie-48gb", Some("L40S")),
            ("geforcegtx1080ti-pcie-11gb", Some("GTX1080TI")),
            ("x900-pcie-300gb", Some("X900")),
            ("mi999-oam-192gb", None),
        ] {
            let found = gpu(model);
            assert_eq!(found.as_ref().map(|(name, _)| name.as_str()), name, "{model}");
        }
        assert_eq!(memory_of("x900-pcie-300gb"), Some(300.0));
        assert_eq!(memory_of("x900"), None);
    }
}
