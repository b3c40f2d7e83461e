use dstack_catalog::{
    Catalog, Filter, Item, Offer, Provider, ProviderData, Vendor, accelerators, tell_not_offered,
};
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
/// the B200 is an estimate). The API tells no prices. GB200 and MI355X have none that is known; rows of the catalogue have, where somebody
/// put them there.
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
            let prices = Prices::of(&self.kind.env.catalog);
            Ok(VendorRows::new(rows(&sizes, &capacities, &prices)))
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

/// Dollars an hour of whole machines, by size and location, as the catalogue has them: Crusoe's own are not in it, and whoever knows better
/// ones puts them there.
#[derive(Debug, Default)]
struct Prices(Vec<(String, String, f64)>);

impl Prices {
    fn of(catalog: &Catalog) -> Self {
        let filter = Filter {
            provider: Some(vec![Provider::Crusoe.name().to_owned()]),
            spot: Some(false),
            ..Filter::default()
        };
        let price = |row: Offer<'_>| {
            let (size, location) = (row.instance_name().to_owned(), row.location().to_owned());
            (size, location, row.price())
        };
        // There are none mostly, which is an error there.
        let found = catalog.query(&filter, |rows| rows.map(price).collect());
        Self(found.unwrap_or_default())
    }

    /// That of the location, or else that of any.
    fn of_size(&self, size: &str, location: &str) -> Option<f64> {
        let mut of_size = self.0.iter().filter(|(named, ..)| named == size);
        let here = of_size.clone().find(|(_, at, _)| at == location);
        here.or_else(|| of_size.next()).map(|(.., price)| *price)
    }
}

/// The sizes that are free, in each location. What has no price is left out, and so is what has another processor than the images that
/// machines are made of.
fn rows(sizes: &[Size], capacities: &[Capacity], prices: &Prices) -> Vec<Item> {
    let mut rows: Vec<Item> = Vec::new();
    for capacity in capacities.iter().filter(|capacity| capacity.quantity > 0) {
        let is_same = |row: &Item| row.instance_name == capacity.size && row.location == capacity.location;
        let size = sizes.iter().find(|size| size.product_name == capacity.size);
        let Some(size) = size.filter(|_| !rows.iter().any(is_same)) else {
            continue;
        };
        match row(size, &capacity.location, prices) {
            Ok(row) => rows.push(row),
            Err(why) => tell_not_offered("Crusoe", &size.product_name, &why),
        }
    }
    rows
}

/// An error tells why it is not offered.
fn row(size: &Size, location: &str, prices: &Prices) -> Result<Item, String> {
    if size.cpu_type == "arm64" {
        return Err("the images that machines start with are for x86".to_owned());
    }
    let listed = prices.of_size(&size.product_name, location);
    let no_price = |of: &str| {
        format!(
            "Crusoe's API tells no prices, and none of {of} is known: put one for {} into `crusoe.csv`, beside the files of the other vendors in the folder that GPUHUNT_CATALOG_DIR names",
            size.product_name
        )
    };
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
        let known = CPUS.iter().find(|(name, _)| Some(*name) == family);
        let known = known.and_then(|(_, price)| cents(*price, size.cpu_cores));
        let name = family.unwrap_or(&size.product_name);
        item.price = listed.or(known).ok_or_else(|| no_price(name))?;
        return Ok(item);
    }
    let gpu = gpu(&size.gpu_type)
        .ok_or_else(|| format!("the memory of its GPU is not known ({})", size.gpu_type))?;
    item.gpu_count = size.num_gpu;
    let known = gpu.price.and_then(|price| cents(price, size.num_gpu));
    item.price = listed.or(known).ok_or_else(|| no_price(&size.gpu_type))?;
    item.gpu_name = Some(gpu.name);
    item.gpu_vendor = Some(gpu.vendor);
    item.gpu_memory = Some(gpu.memory);
    Ok(item)
}

#[derive(Debug, PartialEq)]
struct Gpu {
    name: String,
    vendor: Vendor,
    /// Memory of one GPU, in GiB.
    memory: f64,
    /// Dollars an hour for one; `None`: not known.
    price: Option<f64>,
}

/// What a type is. Of one that is not listed above, what its name tells: `GB200-NVL-186GB`, `MI355X_288GB`.
fn gpu(gpu_type: &str) -> Option<Gpu> {
    if let Some((_, name, vendor, memory, price)) = GPUS.iter().find(|(name, ..)| *name == gpu_type) {
        return Some(Gpu {
            name: (*name).to_owned(),
            vendor: *vendor,
            memory: *memory,
            price: Some(*price),
        });
    }
    let mut parts = gpu_type.split(['-', '_']);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let memory = parts.next_back()?.strip_suffix("GB")?.parse().ok()?;
    let of_name = match name.starts_with("MI") {
        true => Vendor::Amd,
        false => Vendor::Nvidia,
    };
    let known = accelerators::find(name).next();
    Some(Gpu {
        name: known.map_or(name, |known| known.name).to_owned(),
        vendor: known.map_or(of_name, |known| known.vendor),
        memory,
        price: None,
    })
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
    fn a_gpu_that_is_new_is_what_its_type_tells() {
        let found = |gpu_type: &str| gpu(gpu_type).map(|gpu| (gpu.name, gpu.vendor, gpu.memory, gpu.price));
        let new = |name: &str, vendor, memory| Some((name.to_owned(), vendor, memory, None));
        assert_eq!(found("GB200-NVL-186GB"), new("GB200", Vendor::Nvidia, 186.0));
        assert_eq!(found("MI355X_288GB"), new("MI355X", Vendor::Amd, 288.0));
        assert_eq!(found("MI455X-432GB"), new("MI455X", Vendor::Amd, 432.0));
        assert_eq!(found("B200-SXM-180GB").and_then(|(.., price)| price), Some(7.25));
        assert_eq!(found("R100"), None);
    }

    #[test]
    fn what_is_new_has_the_price_of_the_catalogue_or_the_reason_is_told() {
        let size = |gpu_type: &str| -> Size {
            serde_json::from_value(
                json!({"product_name": "b300-288gb-sxm-ib.8x", "cpu_cores": 160, "cpu_type": "amd64",
                "memory_gb": 1920, "gpu_type": gpu_type, "num_gpu": 8}),
            )
            .unwrap()
        };
        let price = |at: &str, price: f64| ("b300-288gb-sxm-ib.8x".to_owned(), at.to_owned(), price);
        let prices = Prices(vec![price("us-east1-a", 60.0), price("eu-iceland1-a", 64.0)]);
        let told = |gpu_type: &str, at: &str, prices: &Prices| row(&size(gpu_type), at, prices);
        let there = told("B300-SXM-288GB", "eu-iceland1-a", &prices).unwrap();
        assert_eq!(
            (there.price, there.gpu_name.as_deref(), there.gpu_memory),
            (64.0, Some("B300"), Some(288.0))
        );
        assert_eq!(told("B300-SXM-288GB", "us-west1-a", &prices).unwrap().price, 60.0);
        let why = told("B300-SXM-288GB", "us-west1-a", &Prices::default()).unwrap_err();
        assert!(
            why.contains("B300-SXM-288GB") && why.contains("`crusoe.csv`"),
            "{why}"
        );
        let why = told("R100", "us-west1-a", &prices).unwrap_err();
        assert!(why.contains("memory"), "{why}");
        // What is listed counts before what is known here.
        assert_eq!(told("H100-SXM-80GB", "us-west1-a", &prices).unwrap().price, 60.0);
        assert_eq!(
            told("H100-SXM-80GB", "us-west1-a", &Prices::default())
                .unwrap()
                .price,
            31.2
        );
    }

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
