use dstack_catalog::{Item, Offer, Provider, ProviderData, Vendor};
use dstack_catalog_offers::{CatalogQuery, DiskSize, VendorRows};
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use serde_json::json;

use crate::client::{Capacity, Quota, Size};
use crate::{Crusoe, told};

/// GPUs: their type at Crusoe, name, vendor, GiB, and dollars an hour for one (crusoe.ai/cloud/pricing, as dstack 0.22.5 has it; that of
/// the B200 is an estimate). The API tells no prices. GB200 and MI355X have none that is known.
const GPUS: &[(&str, &str, Vendor, f64, f64)] = &[
    ("A100-PCIe-40GB", "A100", Vendor::Nvidia, 40.0, 1.45),
    ("A100-PCIe-80GB", "A100", Vendor::Nvidia, 80.0, 1.65),
    ("A100-SXM-80GB", "A100", Vendor::Nvidia, 80.0, 1.95),
    ("H100-SXM-80GB", "H100", Vendor::Nvidia, 80.0, 3.90),
    ("H200-SXM-141GB", "H200", Vendor::Nvidia, 141.0, 4.29),
    ("B200-SXM-180GB", "B200", Vendor::Nvidia, 180.0, 7.25),
    ("L40S-48GB", "L40S", Vendor::Nvidia, 48.0, 1.00),
    ("A40-PCIe-48GB", "A40", Vendor::Nvidia, 48.0, 0.90),
    ("MI300X-192GB", "MI300X", Vendor::Amd, 192.0, 3.45),
];

/// Families of machines without GPUs, with dollars an hour for a CPU; from the same page.
const CPUS: &[(&str, f64)] = &[("c1a", 0.04), ("s1a", 0.09)];

/// Sizes of data disks, of machines that have no drives of their own.
const DISKS: Range<Memory> = Range {
    min: Some(Memory::from_gb(50.0)),
    max: Some(Memory::from_gb(5000.0)),
};

/// Category of quotas of machines: the others are those of disks, addresses and so on.
const MACHINES: &str = "Instance";

impl Crusoe {
    /// What Crusoe says is free, with what the project may have of it.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let fetch = async || {
            let sizes = told(self.client.sizes().await)?;
            let capacities = told(self.client.capacities().await)?;
            Ok(VendorRows::new(rows(&sizes, &capacities)))
        };
        let rows = self.rows.get(fetch).await?;
        let regions = self.regions.as_deref();
        let query = CatalogQuery {
            backend: BackendType::Crusoe,
            locations: regions.filter(|regions| !regions.is_empty()),
            requirements,
            accept: &|_| true,
            disk: &disk,
        };
        let offers = rows.offers(&query);
        let offers = offers.map_err(|error| ComputeError::Configuration(error.to_string()))?;
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let quotas = match self.quotas.get(async || told(self.client.quotas().await)).await {
            Ok(quotas) => Some(quotas),
            Err(error @ ComputeError::Credentials(_)) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "Crusoe does not tell its quotas");
                None
            }
        };
        let quotas = quotas.as_deref().map_or(&[][..], Vec::as_slice);
        let with_availability = |offer: InstanceOffer| {
            let availability = availability(quotas, &offer.instance.name);
            offer.with_availability(availability, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }
}

fn disk(row: &Offer<'_>) -> DiskSize {
    match row.disk_size() {
        Some(_) => DiskSize::Fixed,
        None => DiskSize::Configurable(DISKS),
    }
}

/// The sizes that are free, in each location. What has no price is left out, and so is what has another processor than the images that
/// machines are made of.
fn rows(sizes: &[Size], capacities: &[Capacity]) -> Vec<Item> {
    let mut rows: Vec<Item> = Vec::new();
    for capacity in capacities.iter().filter(|capacity| capacity.quantity > 0) {
        let is_same = |row: &Item| row.instance_name == capacity.size && row.location == capacity.location;
        let size = sizes.iter().find(|size| size.product_name == capacity.size);
        let size = size.filter(|size| size.cpu_type != "arm64" && !rows.iter().any(is_same));
        rows.extend(size.and_then(|size| row(size, &capacity.location)));
    }
    rows
}

fn row(size: &Size, location: &str) -> Option<Item> {
    let mut item = Item {
        cpu: size.cpu_cores,
        memory: size.memory_gb,
        disk_size: (size.disk_gb > 0).then(|| f64::from(i32::try_from(size.disk_gb).unwrap_or(i32::MAX))),
        // The form of dstack 0.22.5; tells whether the machine needs a data disk.
        provider_data: ProviderData::from_value(&json!({"disk_gb": size.disk_gb})),
        ..Item::new(Provider::Private, &size.product_name, location)
    };
    if size.num_gpu == 0 {
        let family = size.product_name.split('.').next();
        let (_, price) = CPUS.iter().find(|(name, _)| Some(*name) == family)?;
        item.price = cents(*price, size.cpu_cores)?;
        return Some(item);
    }
    let (_, name, vendor, memory, price) = GPUS.iter().find(|(name, ..)| *name == size.gpu_type)?;
    item.gpu_count = size.num_gpu;
    item.gpu_name = Some((*name).to_owned());
    item.gpu_vendor = Some(*vendor);
    item.gpu_memory = Some(*memory);
    item.price = cents(*price, size.num_gpu)?;
    Some(item)
}

fn cents(price: f64, count: i64) -> Option<f64> {
    let price = price * f64::from(i32::try_from(count).ok()?);
    Some((price * 100.0).round() / 100.0)
}

/// By the quota whose name is nearest to the family of the type: quotas are of families (`h100-80gb-sxm-ib`), or of several.
fn availability(quotas: &[Quota], instance_type: &str) -> InstanceAvailability {
    let family = instance_type
        .rsplit_once('.')
        .map_or(instance_type, |(family, _)| family);
    let is_of_family = |quota: &&Quota| {
        let name = quota.programmatic_name.as_str();
        let is_of_it = family.starts_with(name) || name.starts_with(family);
        !name.is_empty() && is_of_it && quota.category.contains(MACHINES)
    };
    let distance = |quota: &&Quota| quota.programmatic_name.len().abs_diff(family.len());
    let nearest = quotas.iter().filter(is_of_family).min_by_key(distance);
    match nearest.and_then(|quota| quota.available) {
        None => InstanceAvailability::Unknown,
        Some(available) if available > 0 => InstanceAvailability::Available,
        Some(_) => InstanceAvailability::NoQuota,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_quota_counts() {
        let quota = |name: &str, category: &str, available: i64| {
            let quota =
                json!({"programmatic_name": name, "category": category, "available": available.to_string()});
            serde_json::from_value::<Quota>(quota).unwrap()
        };
        let quotas = [
            quota("", "GPU Instance", 0),
            quota("a100-80gb", "GPU Instance", 0),
            quota("a100-80gb-sxm-ib", "GPU Instance", 3),
            quota("l40s-48gb", "Storage", 3),
        ];
        for (instance_type, expected) in [
            ("a100-80gb.1x", InstanceAvailability::NoQuota),
            ("a100-80gb-sxm-ib.8x", InstanceAvailability::Available),
            ("l40s-48gb.1x", InstanceAvailability::Unknown),
        ] {
            assert_eq!(availability(&quotas, instance_type), expected, "{instance_type}");
        }
    }
}
