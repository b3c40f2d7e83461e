use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dstack_backend::compute_error;
use dstack_catalog::{Item, Provider, Vendor};
use dstack_catalog_offers::{CatalogQuery, DiskSize, VendorRows};
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use futures_util::try_join;

use crate::Cudo;
use crate::client::{GpuModel, MachineType};
use crate::images::Images;

/// Most GPUs of one machine.
const MOST_GPUS: i64 = 16;

/// A data center that the old backend of dstack left out.
const LEFT_OUT: &str = "in-hyderabad-1";

/// What the vendor sells, as it is looked up in.
#[derive(Debug)]
pub(crate) struct Sold {
    rows: VendorRows,
    /// Dollars an hour for a GiB of disk, and the largest disk, by data center and type.
    disks: BTreeMap<(String, String), (f64, i64)>,
}

impl Cudo {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let (sold, images) = try_join!(self.fetch_sold(), self.fetch_images())?;
        let smallest = Memory::from_gb(from_count(images.largest_gib()));
        let query = CatalogQuery {
            backend: BackendType::Cudo,
            locations: self.regions.as_deref().filter(|regions| !regions.is_empty()),
            requirements,
            accept: &|_| true,
            disk: &|_| DiskSize::Configurable(Range::at_least(smallest)),
        };
        let mut offers = sold
            .rows
            .offers(&query)
            .map_err(|error| ComputeError::Configuration(error.to_string()))?;
        // Prices of rows are without the disk.
        offers.retain_mut(|offer| {
            let key = (offer.region.to_string(), offer.instance.name.clone());
            let gib = offer.instance.resources.disk.size_mib / 1024;
            let disk = sold.disks.get(&key).filter(|(_, largest)| gib <= *largest);
            offer.price += disk.map_or(0.0, |(price, _)| price * from_count(gib));
            disk.is_some() && requirements.max_price.is_none_or(|most| offer.price <= most)
        });
        offers.sort_by(|one, other| one.price.total_cmp(&other.price));
        // Of all combinations at a place, the cheapest that fits.
        let mut seen = BTreeSet::new();
        offers.retain(|offer| {
            let resources = &offer.instance.resources;
            let kind = (
                offer.region.to_string(),
                offer.instance.name.clone(),
                resources.gpus.len(),
            );
            seen.insert(kind)
        });
        let available = |offer: InstanceOffer| {
            offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(available).collect())
    }

    async fn fetch_sold(&self) -> Result<Arc<Sold>, ComputeError> {
        let fetch = async || {
            let client = &self.client;
            let lists = async { try_join!(client.machine_types(), client.gpu_models()) };
            let (types, models) = lists.await.map_err(|error| compute_error(&error))?;
            Ok(Sold::new(&types, &models))
        };
        self.sold.get(fetch).await
    }

    pub(crate) async fn fetch_images(&self) -> Result<Arc<Images>, ComputeError> {
        let fetch = async || {
            let all = self.client.images().await;
            all.map(|all| Images::of(&all))
                .map_err(|error| compute_error(&error))
        };
        self.images.get(fetch).await
    }
}

impl Sold {
    fn new(types: &[MachineType], models: &[GpuModel]) -> Self {
        let types = || types.iter().filter(|of| of.data_center_id != LEFT_OUT);
        let disk = |of: &MachineType| {
            let key = (of.data_center_id.clone(), of.machine_type.clone());
            (key, (of.min_storage_gib_price_hr, of.max_storage_gib_free))
        };
        Self {
            disks: types().map(disk).collect(),
            rows: VendorRows::new(types().flat_map(|of| rows(of, models)).collect()),
        }
    }
}

/// Combinations of CPUs, memory and GPUs that are free and that the vendor allows: the least and the most of each, and powers of two
/// in between.
fn rows(of: &MachineType, models: &[GpuModel]) -> Vec<Item> {
    let model = models.iter().find(|model| model.id == of.gpu_model_id);
    let counts = match (of.gpu_model.is_empty(), model) {
        (true, _) => 0..=0,
        // The images have drivers for these.
        (false, Some(model)) if model.vendor_name.eq_ignore_ascii_case("nvidia") => {
            1..=of.max_gpu_free.min(MOST_GPUS)
        }
        (false, _) => return Vec::new(),
    };
    let mut rows = Vec::new();
    for gpus in counts {
        let gpu_count = from_count(gpus);
        let most_cpus = match gpus {
            0 => f64::INFINITY,
            _ => of.max_vcpu_per_gpu * gpu_count,
        };
        let least_cpus = of.min_vcpu.max(of.min_vcpu_per_gpu * gpu_count).max(1.0);
        for cpus in steps(least_cpus, most_cpus.min(from_count(of.max_vcpu_free))) {
            let least = of.min_memory_gib.max(cpus / of.max_vcpu_per_memory_gib).max(1.0);
            let most = (cpus / of.min_vcpu_per_memory_gib).min(from_count(of.max_memory_gib_free));
            for memory in steps(least, most) {
                rows.push(Item {
                    price: cpus * of.vcpu_price_hr
                        + memory * of.memory_gib_price_hr
                        + gpu_count * of.gpu_price_hr
                        + of.ipv4_price_hr,
                    cpu: to_count(cpus),
                    memory,
                    gpu_count: gpus,
                    gpu_name: (gpus > 0).then(|| gpu_name(&of.gpu_model)),
                    gpu_memory: model.filter(|_| gpus > 0).map(|model| model.memory_gib),
                    gpu_vendor: (gpus > 0).then_some(Vendor::Nvidia),
                    ..Item::new(Provider::Private, &*of.machine_type, &*of.data_center_id)
                });
            }
        }
    }
    rows
}

/// Whole numbers from `least` to `most`; none: there is no such number.
fn steps(least: f64, most: f64) -> Vec<f64> {
    let (least, most) = (least.ceil(), most.floor());
    if !(least.is_finite() && most.is_finite() && least <= most) {
        return Vec::new();
    }
    let mut all = vec![least];
    let mut power = 1.0;
    while power < most {
        if power > least {
            all.push(power);
        }
        power *= 2.0;
    }
    if most > least {
        all.push(most);
    }
    all
}

/// As the catalogue writes names: `A4000` of `RTX A4000`, `H100` of `H100 SXM`, `A100` of `A100 80GB PCIe`, `H100NVL`, `RTX3080`.
fn gpu_name(model: &str) -> String {
    let plain = model.split('(').next().unwrap_or_default();
    let is_size = |word: &str| {
        word.strip_suffix("GB")
            .is_some_and(|size| size.parse::<u32>().is_ok())
    };
    let drops = |word: &str| {
        ["NVIDIA", "Tesla", "PCIe", "PCIE", "Generation"].contains(&word) || word.starts_with("SXM")
    };
    let words = plain
        .split_whitespace()
        .filter(|word| !drops(word) && !is_size(word));
    let name: String = words.collect();
    let workstation = name.strip_prefix("RTX").filter(|rest| rest.starts_with('A'));
    workstation.map_or_else(|| name.clone(), str::to_owned)
}

#[allow(clippy::cast_precision_loss)] // of machines
const fn from_count(count: i64) -> f64 {
    count as f64
}

#[allow(clippy::cast_possible_truncation)] // whole, and of machines
const fn to_count(count: f64) -> i64 {
    count as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_called_as_in_the_catalogue() {
        for (model, name) in [
            ("RTX A4000", "A4000"),
            ("RTX 3080", "RTX3080"),
            ("NVIDIA H100 SXM", "H100"),
            ("H100 NVL", "H100NVL"),
            ("A100 80GB PCIe", "A100"),
            ("Tesla V100", "V100"),
            ("L40S (compute mode)", "L40S"),
            ("RTX PRO 6000", "RTXPRO6000"),
            ("RTX 6000 Ada Generation", "RTX6000Ada"),
        ] {
            assert_eq!(gpu_name(model), name);
        }
    }

    #[test]
    fn there_are_steps_from_the_least_to_the_most() {
        assert_eq!(steps(1.0, 13.0), [1.0, 2.0, 4.0, 8.0, 13.0]);
        assert_eq!(steps(1.5, 4.0), [2.0, 4.0]);
        assert_eq!(steps(3.0, 3.9), [3.0]);
        assert_eq!(steps(4.0, 3.0), [0.0; 0]);
        assert_eq!(steps(1.0, f64::INFINITY), [0.0; 0]);
        assert_eq!(steps(f64::NAN, 3.0), [0.0; 0]);
    }
}
