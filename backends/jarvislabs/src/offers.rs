use dstack_catalog::{Item, Offer, Provider, ProviderData, Vendor, tell_not_offered};
use dstack_catalog_offers::{CatalogQuery, DiskSize, VendorRows};
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use serde_json::{Value, json};

use crate::JarvisLabs;
use crate::client::{CpuSize, GpuRow, ServerMeta, is_region, text_of};

/// GB of the smallest disk.
pub(crate) const SMALLEST_DISK: i64 = 100;

/// Regions in which machines of an account reach each other by their private addresses.
const NETWORKED: &[&str] = &["india-chennai-01", "india-noida-01"];

/// Most GPUs of one machine, whatever the vendor tells.
const MOST_GPUS: i64 = 16;

/// Sells machines with one GPU only.
const SINGLE_GPU_REGION: &str = "europe-01";

/// GPUs that the vendor calls otherwise than the catalogue, with GiB of each. Others lose the blanks in their names.
const RENAMED: &[(&str, &str, f64)] = &[
    ("A100-80GB", "A100", 80.0),
    ("RTX-PRO6000", "RTXPRO6000", 96.0),
    ("RTX PRO 6000", "RTXPRO6000", 96.0),
];

impl JarvisLabs {
    /// What is free now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let fetch = async || {
            let meta = self.client.server_meta().await;
            meta.map(|meta| VendorRows::new(rows(&meta)))
                .map_err(|failure| failure.compute_error())
        };
        let rows = self.rows.get(fetch).await?;
        let is_multinode = requirements.multinode == Some(true);
        let query = CatalogQuery {
            backend: BackendType::JarvisLabs,
            locations: self.regions.as_deref().filter(|regions| !regions.is_empty()),
            requirements,
            accept: &|row: &Offer<'_>| !is_multinode || NETWORKED.contains(&row.location()),
            disk: &|_| DiskSize::Configurable(Range::at_least(Memory::from_gb(SMALLEST_DISK as f64))),
        };
        let offers = rows.offers(&query);
        let offers = offers.map_err(|error| ComputeError::Configuration(error.to_string()))?;
        let available = |offer: InstanceOffer| {
            offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(available).collect())
    }
}

fn rows(meta: &ServerMeta) -> Vec<Item> {
    let gpus = meta.server_meta.iter().filter_map(gpu_items).flatten();
    let sizes = meta.cpu_meta.iter().map(|meta| &meta.combinations);
    gpus.chain(sizes.flatten().filter_map(cpu_items).flatten())
        .collect()
}

/// One for each number of GPUs; `None`: it is not for machines, or something of it is not told.
fn gpu_items(row: &GpuRow) -> Option<Vec<Item>> {
    if row.workload_type.as_deref().is_some_and(|kind| kind != "vm") {
        return None;
    }
    let region = row.region.as_deref()?;
    if !is_region(region) {
        tell_not_offered("JarvisLabs", region, "the host of this region is not known");
        return None;
    }
    let gpu_type = row.gpu_type.as_deref().filter(|name| !name.is_empty())?;
    let renamed = RENAMED.iter().find(|(from, ..)| *from == gpu_type);
    let name = renamed.map(|(_, name, _)| (*name).to_owned());
    // A name of ours has no blanks: nobody could ask for it.
    let name = name.unwrap_or_else(|| gpu_type.split_whitespace().collect());
    let Some(memory) = number(&row.vram).or(renamed.map(|(.., memory)| *memory)) else {
        tell_not_offered("JarvisLabs", gpu_type, "JarvisLabs does not tell its memory");
        return None;
    };
    let (price, cpus) = (number(&row.price_per_hour)?, number(&row.cpus_per_gpu)?);
    let ram = number(&row.ram_per_gpu)?;
    let free = number(&row.effective_num_free_devices).or(number(&row.num_free_devices))?;
    let most = match region {
        SINGLE_GPU_REGION => 1,
        _ => number(&row.num_gpus).map_or(1, |most| most as i64),
    };
    let provider_data = match gpu_type == name {
        true => ProviderData::default(),
        false => ProviderData::from_value(&json!({"gpu_type": gpu_type})),
    };
    let item = |count: i64| {
        let times = count as f64;
        Item {
            price: (price * times * 1e5).round() / 1e5,
            cpu: cpus as i64 * count,
            memory: ram * times,
            gpu_count: count,
            gpu_name: Some(name.clone()),
            gpu_memory: Some(memory),
            gpu_vendor: Some(Vendor::Nvidia),
            provider_data: provider_data.clone(),
            ..Item::new(Provider::Private, format!("{name}-{count}x"), region)
        }
    };
    Some((1..=most.min(free as i64).min(MOST_GPUS)).map(item).collect())
}

/// One for each region.
fn cpu_items(size: &CpuSize) -> Option<Vec<Item>> {
    if size.available != Some(true) {
        return None;
    }
    let (cpus, ram, price) = (number(&size.vcpus)?, number(&size.ram_gb)?, number(&size.price)?);
    let name = format!("cpu-{}x{}", cpus as i64, ram as i64);
    let regions = size.regions.iter().flatten();
    let regions = regions.filter(|(region, is_free)| **is_free && is_region(region));
    let item = |region: &String| Item {
        price,
        cpu: cpus as i64,
        memory: ram,
        ..Item::new(Provider::Private, name.clone(), region)
    };
    Some(regions.map(|(region, _)| item(region)).collect())
}

/// A number, or a text that is one.
fn number(value: &Value) -> Option<f64> {
    let number: f64 = text_of(value).parse().ok()?;
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(meta: &Value) -> Vec<String> {
        let meta: ServerMeta = serde_json::from_value(meta.clone()).unwrap();
        let name = |item: Item| format!("{} {}", item.instance_name, item.location);
        rows(&meta).into_iter().map(name).collect()
    }

    #[test]
    fn rows_are_of_what_is_free() {
        let row = |more: &Value| {
            let mut row = json!({"gpu_type": "H100", "region": "india-noida-01", "workload_type": "vm", "num_free_devices": "3",
                "price_per_hour": 2.5, "vram": "80", "cpus_per_gpu": 16, "ram_per_gpu": 200, "num_gpus": "2"});
            for (name, field) in more.as_object().unwrap() {
                row[name] = field.clone();
            }
            names(&json!({"server_meta": [row]}))
        };
        let both = ["H100-1x india-noida-01", "H100-2x india-noida-01"];
        assert_eq!(row(&json!({})), both);
        assert_eq!(
            row(&json!({"workload_type": null, "effective_num_free_devices": ""})),
            both
        );
        assert_eq!(row(&json!({"effective_num_free_devices": "1"})), both[..1]);
        assert_eq!(row(&json!({"num_gpus": null})), both[..1]);
        assert_eq!(row(&json!({"region": "europe-01"})), ["H100-1x europe-01"]);
        let many = row(&json!({"num_gpus": 1e12, "num_free_devices": 1e12}));
        assert_eq!(many.len(), 16);
        assert_eq!(
            row(&json!({"gpu_type": "RTX PRO 6000", "vram": "", "num_gpus": 1})),
            ["RTXPRO6000-1x india-noida-01"]
        );
        assert_eq!(
            row(&json!({"gpu_type": "New GPU", "num_gpus": 1})),
            ["NewGPU-1x india-noida-01"]
        );
        for none in [
            json!({"effective_num_free_devices": 0}),
            json!({"workload_type": "container"}),
            json!({"region": "mars-01"}),
            json!({"vram": ""}),
            json!({"price_per_hour": null}),
        ] {
            assert_eq!(row(&none), [""; 0], "{none}");
        }
    }

    #[test]
    fn a_row_of_another_form_hides_no_others() {
        let size = json!({"vcpus": 4, "ram_gb": 16, "price": 0.09, "available": true, "regions": {"india-noida-01": true}});
        let odd = json!({"vcpus": 4, "ram_gb": 16, "price": 0.09, "available": "yes", "regions": []});
        let meta = json!({"server_meta": [{"gpu_type": 7, "region": []}, "none"], "cpu_meta": {"combinations": [odd, size]}});
        assert_eq!(names(&meta), ["cpu-4x16 india-noida-01"]);
    }

    #[test]
    fn machines_without_gpus_are_offered_by_region() {
        let size = json!({"vcpus": 4, "ram_gb": 16, "price": 0.09, "available": true,
            "regions": {"india-noida-01": true, "india-chennai-01": false, "mars-01": true}});
        let sold_out = json!({"vcpus": 8, "ram_gb": 32, "price": 0.18, "available": false, "regions": {"india-noida-01": true}});
        let meta = json!({"server_meta": [], "cpu_meta": {"combinations": [size, sold_out]}});
        assert_eq!(names(&meta), ["cpu-4x16 india-noida-01"]);
        assert_eq!(names(&json!({"server_meta": null, "cpu_meta": null})), [""; 0]);
    }
}
