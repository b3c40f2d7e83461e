//! From rows of the catalogue, or of a vendor's own answers, to offers of a backend.
//!
//! Apart from the contract (`dstack-compute`), so that who knows clouds only as traits does not build the catalogue.

use std::sync::Arc;

use dstack_catalog::{
    Catalog, Filter, FilterError, Item, Offer, Offers, Provider, Snapshot, Table, TableInfo,
};
use dstack_model::backends::BackendType;
use dstack_model::instances::{Disk, Gpu, InstanceType, Resources};
use dstack_model::offers::InstanceOffer;
use dstack_model::resources::DiskSpec;
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

/// Rows with any other flag are not for this version.
const FLAGS: &[&str] = &[
    "oci-spot",
    "lambda-arm",
    "gcp-a4",
    "gcp-g4",
    "gcp-dws-calendar-mode",
    "runpod-cpu",
    "runpod-cluster",
    "hotaisle-bm",
];

/// The disk of an offer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DiskSize {
    /// As the catalogue says; checked against the request unless unknown.
    Fixed,
    /// The smallest size that is asked for within the range.
    Configurable(Range<Memory>),
}

impl DiskSize {
    /// From 1 GB on.
    pub const fn any() -> Self {
        Self::Configurable(Range::at_least(Memory::from_gb(1.0)))
    }
}

/// Which offers of a backend are wanted.
pub struct CatalogQuery<'a> {
    /// The backend: its provider's rows are looked at.
    pub backend: BackendType,
    /// Only these locations; any when unset.
    pub locations: Option<&'a [String]>,
    /// What the instance must have.
    pub requirements: &'a Requirements,
    /// Rows that the backend does not take are left out.
    pub accept: &'a (dyn Fn(&Offer<'_>) -> bool + Sync),
    /// What disk an offer gets.
    pub disk: &'a (dyn Fn(&Offer<'_>) -> DiskSize + Sync),
}

/// Offers in the catalogue's order, which is by price in published catalogues. No I/O.
///
/// # Errors
/// The requirements contradict themselves.
pub fn catalog_offers(
    catalog: &Catalog,
    query: &CatalogQuery<'_>,
) -> Result<Vec<InstanceOffer>, FilterError> {
    provider_offers(catalog, provider(query.backend), query)
}

/// As [`catalog_offers`], of the rows of this provider instead of the backend's own.
///
/// # Errors
/// The requirements contradict themselves.
pub fn provider_offers(
    catalog: &Catalog,
    provider: &str,
    query: &CatalogQuery<'_>,
) -> Result<Vec<InstanceOffer>, FilterError> {
    let filter = Filter {
        provider: Some(vec![provider.to_owned()]),
        ..filter(query.requirements)
    };
    catalog.query(&filter, |rows| offers_of(rows, query))
}

/// What a vendor that no catalogue has said it sells, for the same queries.
#[derive(Debug, Clone)]
pub struct VendorRows(Snapshot);

impl VendorRows {
    /// Rows with [`Provider::Private`]; the cheapest are offered first.
    pub fn new(mut items: Vec<Item>) -> Self {
        items.sort_by(|first, second| first.price.total_cmp(&second.price));
        let table = Table::from_items(TableInfo::unversioned(Provider::Private), &items);
        Self(Snapshot::new([Arc::new(table)]))
    }

    /// Offers, the cheapest first. No I/O.
    ///
    /// # Errors
    /// The requirements contradict themselves.
    pub fn offers(&self, query: &CatalogQuery<'_>) -> Result<Vec<InstanceOffer>, FilterError> {
        let rows = self.0.query(&filter(query.requirements))?;
        Ok(offers_of(rows, query))
    }
}

fn offers_of(rows: Offers<'_>, query: &CatalogQuery<'_>) -> Vec<InstanceOffer> {
    let wanted_disk = query.requirements.resources.disk;
    let mut common = Common::default();
    rows.filter(|row| {
        query
            .locations
            .is_none_or(|locations| locations.iter().any(|location| location == row.location()))
    })
    .filter(|row| (query.accept)(row))
    .filter_map(|row| {
        let disk = disk_mib(row.disk_size(), wanted_disk, (query.disk)(&row))?;
        Some(common.offer(query.backend, &row, disk))
    })
    .collect()
}

/// Name of the backend's provider in the catalogue.
pub fn provider(backend: BackendType) -> &'static str {
    match backend {
        BackendType::DataCrunch => "verda",
        BackendType::Lambda => "lambdalabs",
        BackendType::AmdDevCloud => "digitalocean",
        other => other.as_str(),
    }
}

/// The filter of requirements; disks are left to [`DiskSize`].
pub fn filter(requirements: &Requirements) -> Filter {
    let resources = &requirements.resources;
    let base = Filter {
        allowed_flags: Some(FLAGS.iter().map(|flag| (*flag).to_owned()).collect()),
        max_price: requirements.max_price,
        spot: requirements.spot,
        cpu_arch: resources.cpu.arch,
        min_cpu: resources.cpu.count.min,
        max_cpu: resources.cpu.count.max,
        min_memory: resources.memory.min.map(Memory::gb),
        max_memory: resources.memory.max.map(Memory::gb),
        ..Filter::default()
    };
    let Some(gpu) = &resources.gpu else { return base };
    let low = |range: Option<Range<Memory>>| range.and_then(|range| range.min).map(Memory::gb);
    let high = |range: Option<Range<Memory>>| range.and_then(|range| range.max).map(Memory::gb);
    Filter {
        gpu_vendor: gpu.vendor,
        gpu_name: gpu.name.clone(),
        min_gpu_count: gpu.count.min,
        max_gpu_count: gpu.count.max,
        min_gpu_memory: low(gpu.memory),
        max_gpu_memory: high(gpu.memory),
        min_total_gpu_memory: low(gpu.total_memory),
        max_total_gpu_memory: high(gpu.total_memory),
        min_compute_capability: gpu.compute_capability.map(|at_least| (at_least.0, at_least.1)),
        ..base
    }
}

/// The disk in MiB, 0 when unknown; `None` when no disk of the offer is what was asked for.
fn disk_mib(of_row: Option<f64>, wanted: Option<DiskSpec>, size: DiskSize) -> Option<i64> {
    match size {
        DiskSize::Fixed => match (of_row, wanted) {
            (None, _) => Some(0),
            (Some(disk), Some(wanted)) if !wanted.size.contains(Memory::from_gb(disk)) => None,
            (Some(disk), _) => Some(mib(disk)),
        },
        DiskSize::Configurable(range) => {
            let wanted = wanted.unwrap_or_default().size.intersect(&range)?;
            Some(mib(wanted.min.map_or(0.0, Memory::gb)))
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // sizes of machines
fn mib(gib: f64) -> i64 {
    (gib * 1024.0).round_ties_even() as i64
}

/// What offers have in common, each made once.
#[derive(Default)]
struct Common<'a> {
    /// By the shape of the row and the size of the disk.
    kinds: FxHashMap<(u32, i64), Kind>,
    regions: FxHashMap<&'a str, Arc<str>>,
}

struct Kind {
    instance: Arc<InstanceType>,
    backend_data: Arc<Map<String, Value>>,
}

impl<'a> Common<'a> {
    fn offer(&mut self, backend: BackendType, row: &Offer<'a>, disk_mib: i64) -> InstanceOffer {
        let kind = self.kinds.entry((row.shape(), disk_mib));
        let kind = kind.or_insert_with(|| Kind {
            instance: Arc::new(instance_type(row, disk_mib)),
            backend_data: serde_json::from_str(row.provider_data()).unwrap_or_default(),
        });
        let region = self.regions.entry(row.location());
        let region = region.or_insert_with(|| Arc::from(row.location()));
        InstanceOffer {
            backend,
            instance: Arc::clone(&kind.instance),
            region: Arc::clone(region),
            price: row.price(),
            backend_data: Arc::clone(&kind.backend_data),
        }
    }
}

fn instance_type(row: &Offer<'_>, disk_mib: i64) -> InstanceType {
    let gpu = Gpu {
        name: row.gpu_name().unwrap_or_default().to_owned(),
        memory_mib: mib(row.gpu_memory().unwrap_or_default()),
        vendor: row.gpu_vendor(),
    };
    let gpus = usize::try_from(row.gpu_count()).unwrap_or(0);
    InstanceType {
        name: row.instance_name().to_owned(),
        resources: Resources {
            cpus: row.cpu(),
            memory_mib: mib(row.memory()),
            gpus: vec![gpu; gpus],
            spot: row.spot(),
            disk: Disk { size_mib: disk_mib },
            cpu_arch: Some(row.cpu_arch()),
            description: String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dstack_catalog::http::Http;
    use dstack_catalog::{Settings, read_csv};
    use dstack_decode::decode_strict;
    use dstack_system::SystemClock;
    use serde_json::json;

    use super::*;

    const CSV: &str = "\
instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,provider_data
small,here,0.1,2,8.0,0,,,False,,,,x86,{}
gpu,here,1.0,8,64.0,2,T4,16.0,False,,nvidia,,x86,\"{\"\"a\"\": 1}\"
gpu,there,0.9,8,64.0,2,T4,16.0,False,,nvidia,,x86,{}
gpu,elsewhere,0.8,8,64.0,2,T4,16.0,False,,nvidia,,x86,{}
hidden,here,0.05,8,64.0,0,,,False,,,new-flag,x86,{}
fixed,here,0.2,4,16.0,0,,,False,40.0,,,x86,{}
";

    fn offers(
        requirements: &serde_json::Value,
        locations: Option<&[String]>,
        disk: DiskSize,
    ) -> Vec<InstanceOffer> {
        let (table, _) = read_csv(TableInfo::unversioned(Provider::Lambdalabs), CSV.as_bytes()).unwrap();
        let settings = Settings {
            url: String::new(),
            dir: None,
            cache: None,
        };
        let snapshot = Snapshot::new([Arc::new(table)]);
        let catalog = Catalog::with(
            settings,
            Arc::new(snapshot),
            Http::default(),
            Arc::new(SystemClock),
        );
        let requirements: Requirements = decode_strict(requirements).unwrap();
        let query = CatalogQuery {
            backend: BackendType::Lambda,
            locations,
            requirements: &requirements,
            accept: &|_| true,
            disk: &|row| {
                if row.disk_size().is_some() {
                    DiskSize::Fixed
                } else {
                    disk
                }
            },
        };
        catalog_offers(&catalog, &query).unwrap()
    }

    fn names(offers: &[InstanceOffer]) -> Vec<(&str, &str)> {
        offers
            .iter()
            .map(|offer| (offer.instance.name.as_str(), &*offer.region))
            .collect()
    }

    #[test]
    fn rows_become_offers() {
        let all = offers(&json!({"resources": {}}), None, DiskSize::any());
        // 40 GB are less than the default of 100.
        assert_eq!(
            names(&all),
            [
                ("small", "here"),
                ("gpu", "here"),
                ("gpu", "there"),
                ("gpu", "elsewhere")
            ]
        );
        assert_eq!(all[0].instance.resources.disk.size_mib, 102_400);
        assert_eq!(all[1].instance.resources.gpus.len(), 2);
        assert_eq!(all[1].instance.resources.gpus[0].memory_mib, 16384);
        assert_eq!(all[1].backend_data["a"], 1);
    }

    #[test]
    fn offers_share_what_they_have_in_common() {
        let all = offers(&json!({"resources": {}}), None, DiskSize::any());
        let [small, here, there, elsewhere] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert!(Arc::ptr_eq(&there.instance, &elsewhere.instance));
        assert!(Arc::ptr_eq(&there.backend_data, &elsewhere.backend_data));
        assert!(Arc::ptr_eq(&small.region, &here.region));
        // Of the same name, but another product.
        assert!(!Arc::ptr_eq(&here.instance, &there.instance));
        assert_ne!(here.backend_data, there.backend_data);
    }

    #[test]
    fn requirements_and_locations_restrict() {
        let here = ["here".to_owned()];
        let gpus = offers(
            &json!({"resources": {"gpu": "T4:2"}}),
            Some(&here),
            DiskSize::any(),
        );
        assert_eq!(names(&gpus), [("gpu", "here")]);
        let disk = json!({"resources": {"disk": "20GB..40GB"}});
        let range = Range {
            min: Some(Memory::from_gb(30.0)),
            max: None,
        };
        let fitting = offers(&disk, Some(&here), DiskSize::Configurable(range));
        let sizes: Vec<i64> = fitting
            .iter()
            .map(|offer| offer.instance.resources.disk.size_mib / 1024)
            .collect();
        assert_eq!(sizes, [30, 30, 40]);
        let range = Range {
            min: Some(Memory::from_gb(50.0)),
            max: None,
        };
        assert_eq!(
            names(&offers(&disk, Some(&here), DiskSize::Configurable(range))),
            [("fixed", "here")]
        );
    }

    #[test]
    fn vendors_that_no_catalogue_has_say_themselves_what_they_sell() {
        let item = |name: &str, price| Item {
            price,
            cpu: 8,
            memory: 32.0,
            disk_size: Some(100.0),
            ..Item::new(Provider::Private, name, "north")
        };
        let rows = VendorRows::new(vec![item("dear", 2.0), item("cheap", 1.0), item("large", 1.5)]);
        let found = |requirements: serde_json::Value| {
            let requirements: Requirements = decode_strict(&requirements).unwrap();
            let query = CatalogQuery {
                backend: BackendType::CloudRift,
                locations: None,
                requirements: &requirements,
                accept: &|row| row.instance_name() != "large",
                disk: &|_| DiskSize::Fixed,
            };
            let offers = rows.offers(&query).unwrap();
            assert!(offers.iter().all(|offer| offer.backend == BackendType::CloudRift));
            names(&offers)
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(found(json!({"resources": {}})), ["cheap", "dear"]);
        assert_eq!(found(json!({"resources": {}, "max_price": 1.0})), ["cheap"]);
        assert_eq!(found(json!({"resources": {"memory": "64GB.."}})), [""; 0]);
    }
}
