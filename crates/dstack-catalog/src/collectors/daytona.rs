//! Daytona: resources are metered one by one, so that each offer is fitted to the request.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_system::Secret;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::json::Json;
use crate::accelerators;
use crate::collect::{round_to, sort_by_price};
use crate::http::Http;
use crate::{CollectError, Filter, Item, OnlineProvider, Provider, ProviderData, Vendor, tell_not_offered};

/// Where the API is.
pub const API_URL: &str = "https://app.daytona.io/api";
/// Where the prices are.
pub const PRICING_URL: &str = "https://billing.app.daytona.io/gpu-pricing";

/// The one location of GPU sandboxes.
const GPU_LOCATION: &str = "earth";
const MOST_GPUS: i64 = 8;

/// A model that sandboxes can have.
#[derive(Clone, Copy)]
struct Gpu<'a> {
    api_name: &'a str,
    name: &'static str,
    vendor: Vendor,
    memory: f64,
    /// GiB of RAM per GPU when balancing.
    ram: f64,
}

const fn gpu(
    api_name: &'static str,
    name: &'static str,
    vendor: Vendor,
    memory: f64,
    ram: f64,
) -> Gpu<'static> {
    Gpu {
        api_name,
        name,
        vendor,
        memory,
        ram,
    }
}

const GPUS: [Gpu<'static>; 7] = [
    gpu("B300", "B300", Vendor::Nvidia, 270.0, 100.0),
    gpu("H100", "H100", Vendor::Nvidia, 80.0, 100.0),
    gpu("H200", "H200", Vendor::Nvidia, 141.0, 100.0),
    gpu("MI355X", "MI355X", Vendor::Amd, 288.0, 100.0),
    gpu("RTX-PRO-6000", "RTXPRO6000", Vendor::Nvidia, 96.0, 100.0),
    gpu("RTX-5090", "RTX5090", Vendor::Nvidia, 32.0, 50.0),
    gpu("RTX-4090", "RTX4090", Vendor::Nvidia, 24.0, 50.0),
];

/// GiB of RAM per GPU when balancing, of models that are not listed above.
const NEW_GPU_RAM: f64 = 100.0;

/// Free GPUs by API name: on-demand and spot.
type Capacity = BTreeMap<String, (i64, i64)>;

/// Asks Daytona for prices and capacity.
pub struct DaytonaCollector {
    /// Without one, availability is not looked at.
    key: Option<Secret>,
    api_url: String,
    /// Where the prices are.
    pub pricing_url: String,
    http: Arc<Http>,
    organization: OnceCell<String>,
}

impl DaytonaCollector {
    /// Asks the given API.
    pub fn new(key: Option<Secret>, api_url: &str, http: Arc<Http>) -> Self {
        if key.is_none() {
            tracing::warn!(
                "DAYTONA_API_KEY is not set. Returning price estimates without checking live availability"
            );
        }
        Self {
            key,
            api_url: api_url.trim_end_matches('/').to_owned(),
            pricing_url: PRICING_URL.to_owned(),
            http,
            organization: OnceCell::new(),
        }
    }

    async fn get(&self, url: &str, key: Option<&Secret>) -> Result<Value, CollectError> {
        let failed = CollectError::http(Provider::Daytona);
        let mut request = self.http.client().map_err(&failed)?.get(url);
        if let Some(key) = key {
            request = request.bearer_auth(key.expose());
        }
        self.http.json(request).await.map_err(failed)
    }

    async fn capacity(&self, key: &Secret) -> Result<Value, CollectError> {
        let organization = self
            .organization
            .get_or_try_init(|| self.organization(key))
            .await?;
        let url = format!("{}/organizations/{organization}/gpu-capacity", self.api_url);
        self.get(&url, Some(key)).await
    }

    async fn organization(&self, key: &Secret) -> Result<String, CollectError> {
        let answer = self
            .get(&format!("{}/api-keys/current", self.api_url), Some(key))
            .await?;
        let id = answer.text("organizationId").filter(|id| !id.is_empty());
        id.map(str::to_owned)
            .ok_or_else(|| CollectError::unexpected(Provider::Daytona, "no `organizationId` of the API key"))
    }

    async fn regions(&self) -> Result<Value, CollectError> {
        self.get(&format!("{}/shared-regions", self.api_url), None).await
    }
}

#[async_trait]
impl OnlineProvider for DaytonaCollector {
    fn provider(&self) -> Provider {
        Provider::Daytona
    }

    async fn offers(&self, filter: &Filter, balance_resources: bool) -> Result<Vec<Item>, CollectError> {
        let pricing = self.get(&self.pricing_url, None).await?;
        let capacity = match self.key.as_ref().filter(|_| wants_gpus(filter)) {
            Some(key) => Some(self.capacity(key).await?),
            None => None,
        };
        let regions = match wants_cpus(filter) {
            true => match self.regions().await {
                Ok(regions) => regions,
                // They are not where GPUs are.
                Err(error) if wants_gpus(filter) => {
                    tracing::warn!(%error, "Daytona does not tell its regions, and no CPU offers are made");
                    json!([])
                }
                Err(error) => return Err(error),
            },
            false => json!([]),
        };
        items(&pricing, capacity.as_ref(), &regions, filter, balance_resources)
    }
}

/// Whether an offer with GPUs may match.
fn wants_gpus(filter: &Filter) -> bool {
    filter.max_gpu_count.is_none_or(|most| most > 0)
}

/// Whether an offer without GPUs may match.
fn wants_cpus(filter: &Filter) -> bool {
    filter.min_gpu_count.is_none_or(|least| least <= 0) && cpu_sizes(filter).is_some()
}

/// Sizes of a CPU sandbox.
fn cpu_sizes(filter: &Filter) -> Option<Sizes> {
    Sizes::fit(filter, [1.0, 1.0, 3.0], [f64::INFINITY; 3])
}

/// The offers that fit a filter, the cheapest first, of what the vendor answers: prices, free GPUs (`None`: not known), shared regions.
///
/// # Errors
/// An answer is not what the vendor is known to send.
pub fn items(
    pricing: &Value,
    capacity: Option<&Value>,
    regions: &Value,
    filter: &Filter,
    balance_resources: bool,
) -> Result<Vec<Item>, CollectError> {
    let prices = Prices::read(pricing)
        .ok_or_else(|| CollectError::unexpected(Provider::Daytona, "the price list is incomplete"))?;
    let mut items = Vec::new();
    if wants_gpus(filter) {
        let capacity = capacity.map(read_capacity).transpose()?;
        items.extend(gpu_offers(&prices, filter, balance_resources, capacity.as_ref()));
    }
    if let Some(offer) = cpu_offer(&prices, filter) {
        let regions = read_regions(regions)?;
        items.extend(regions.into_iter().map(|location| Item {
            location,
            ..offer.clone()
        }));
    }
    sort_by_price(&mut items);
    Ok(items)
}

fn read_capacity(answer: &Value) -> Result<Capacity, CollectError> {
    let Some(rows) = answer.at("capacity").as_array() else {
        return Err(CollectError::unexpected(Provider::Daytona, "no list `capacity`"));
    };
    let count = |row: &Value, name: &str| row.int(name).filter(|count| *count >= 0);
    // Of what is told incompletely, nothing is free.
    let entry = |row: &Value| {
        let counts = count(row, "availableOnDemand").zip(count(row, "availableSpot"));
        Some((row.text("gpuType")?.to_owned(), counts?))
    };
    Ok(rows.iter().filter_map(entry).collect())
}

fn read_regions(answer: &Value) -> Result<Vec<String>, CollectError> {
    let Some(regions) = answer.as_array() else {
        return Err(CollectError::unexpected(
            Provider::Daytona,
            "no list of shared regions",
        ));
    };
    let ids = regions.iter().filter_map(|one| one.text("id"));
    Ok(ids.filter(|id| !id.is_empty()).map(str::to_owned).collect())
}

/// USD per hour of one unit.
#[derive(Clone, Copy)]
struct Rates {
    vcpu: f64,
    memory: f64,
    disk: f64,
}

impl Rates {
    fn read(resources: &Value, kind: &str) -> Option<Self> {
        let rates = resources.at(kind);
        Some(Self {
            vcpu: rates.number("vcpuPerHour")?,
            memory: rates.number("memoryGiBPerHour")?,
            disk: rates.number("diskGiBPerHour")?,
        })
    }
}

struct Prices<'a> {
    gpus: &'a [Value],
    on_demand: Rates,
    spot: Rates,
}

impl<'a> Prices<'a> {
    fn read(pricing: &'a Value) -> Option<Self> {
        let resources = pricing.at("resources");
        Some(Self {
            gpus: pricing.at("gpus").as_array()?,
            on_demand: Rates::read(resources, "onDemand")?,
            spot: Rates::read(resources, "spot")?,
        })
    }
}

/// CPU, RAM and disk of an offer.
struct Sizes {
    cpu: f64,
    memory: f64,
    disk: f64,
}

impl Sizes {
    /// What is preferred, moved into the request's bounds; `None` when the limits do not allow it.
    fn fit(filter: &Filter, preferred: [f64; 3], limits: [f64; 3]) -> Option<Self> {
        let [cpu, memory, disk] = preferred;
        let [cpu_limit, memory_limit, disk_limit] = limits;
        let (min_cpu, max_cpu) = (filter.min_cpu.map(|n| n as f64), filter.max_cpu.map(|n| n as f64));
        Some(Self {
            cpu: fit(cpu, min_cpu, max_cpu, cpu_limit)?,
            memory: fit(memory, filter.min_memory, filter.max_memory, memory_limit)?,
            disk: fit(disk, filter.min_disk_size, filter.max_disk_size, disk_limit)?,
        })
    }

    fn name(&self) -> String {
        format!("{}cpu-{}gb-{}gb", self.cpu, self.memory, self.disk)
    }

    fn price(&self, rates: Rates) -> f64 {
        self.cpu * rates.vcpu + self.memory * rates.memory + self.disk * rates.disk
    }
}

fn fit(preferred: f64, min: Option<f64>, max: Option<f64>, limit: f64) -> Option<f64> {
    let lower = min.unwrap_or(1.0).max(1.0).ceil();
    let upper = max.unwrap_or(limit).min(limit);
    (lower <= upper).then(|| upper.min(lower.max(preferred.ceil())).floor())
}

fn gpu_offers(prices: &Prices<'_>, filter: &Filter, balance: bool, capacity: Option<&Capacity>) -> Vec<Item> {
    let mut items = Vec::new();
    for priced in prices.gpus {
        let api_name = priced.text("type").unwrap_or_default();
        let Some(gpu) = model(api_name) else {
            let why =
                "Daytona does not tell the memory of GPUs, and the table of GPUs does not have this one";
            tell_not_offered("Daytona", api_name, why);
            continue;
        };
        let free = capacity.map(|capacity| capacity.get(api_name).copied().unwrap_or((0, 0)));
        for (spot, price) in [(false, "onDemandPricePerHour"), (true, "spotPricePerHour")] {
            let Some(price) = priced.number(price) else {
                continue;
            };
            let free = free.map_or(MOST_GPUS, |(on_demand, bid)| if spot { bid } else { on_demand });
            let rates = if spot { prices.spot } else { prices.on_demand };
            items.extend(
                (1..=free.min(MOST_GPUS))
                    .filter_map(|count| gpu_offer(&gpu, count, price, rates, spot, filter, balance)),
            );
        }
    }
    items
}

/// Of one that is not listed above, what the table of GPUs has, if that is one thing only.
fn model(api_name: &str) -> Option<Gpu<'_>> {
    if let Some(listed) = GPUS.iter().find(|gpu| gpu.api_name == api_name) {
        return Some(*listed);
    }
    let name = api_name.replace('-', "");
    let mut known = accelerators::find(&name);
    let (one, None) = (known.next()?, known.next()) else {
        return None;
    };
    Some(Gpu {
        api_name,
        name: one.name,
        vendor: one.vendor,
        memory: f64::from(one.memory_gib),
        ram: NEW_GPU_RAM,
    })
}

fn gpu_offer(
    gpu: &Gpu<'_>,
    count: i64,
    price: f64,
    rates: Rates,
    spot: bool,
    filter: &Filter,
    balance: bool,
) -> Option<Item> {
    let n = count as f64;
    let preferred = if balance {
        [8.0 * n, gpu.ram * n, 256.0 * n]
    } else {
        [1.0; 3]
    };
    let sizes = Sizes::fit(filter, preferred, [16.0 * n, 192.0 * n, 512.0 * n])?;
    Some(Item {
        price: round_to(n * price + sizes.price(rates), 6),
        cpu: sizes.cpu as i64,
        memory: sizes.memory,
        disk_size: Some(sizes.disk),
        gpu_count: count,
        gpu_name: Some(gpu.name.to_owned()),
        gpu_memory: Some(gpu.memory),
        gpu_vendor: Some(gpu.vendor),
        spot,
        provider_data: if gpu.api_name == gpu.name {
            ProviderData::default()
        } else {
            ProviderData::from_value(&json!({"gpu_type": gpu.api_name}))
        },
        ..Item::new(
            Provider::Daytona,
            format!("{count}x-{}-{}", gpu.name, sizes.name()),
            GPU_LOCATION,
        )
    })
}

/// The CPU sandbox that fits the request, without its place. Whether it matches is judged with all others.
fn cpu_offer(prices: &Prices<'_>, filter: &Filter) -> Option<Item> {
    let sizes = cpu_sizes(filter).filter(|_| wants_cpus(filter))?;
    Some(Item {
        price: round_to(sizes.price(prices.on_demand), 6),
        cpu: sizes.cpu as i64,
        memory: sizes.memory,
        disk_size: Some(sizes.disk),
        ..Item::new(Provider::Daytona, sizes.name(), "")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_entry_takes_no_other_with_it() {
        let capacity = json!({"capacity": [
            {"gpuType": "H100", "availableOnDemand": 1, "availableSpot": 2},
            {"gpuType": "H200", "availableOnDemand": 1},
            {"availableOnDemand": 1, "availableSpot": 2},
        ]});
        let known = read_capacity(&capacity).unwrap();
        assert_eq!(known, Capacity::from([("H100".to_owned(), (1, 2))]));
        let regions = read_regions(&json!([{"id": "us"}, {"id": ""}, {"name": "eu"}])).unwrap();
        assert_eq!(regions, ["us"]);
        read_regions(&json!({})).unwrap_err();
    }

    #[test]
    fn a_model_that_is_new_there_is_looked_for_in_the_table_of_gpus() {
        let found = |api_name: &str| model(api_name).map(|gpu| (gpu.name, gpu.vendor, gpu.memory));
        assert_eq!(found("B200"), Some(("B200", Vendor::Nvidia, 180.0)));
        assert_eq!(found("RTX-PRO-4500"), Some(("RTXPRO4500", Vendor::Nvidia, 32.0)));
        assert_eq!(found("B300"), Some(("B300", Vendor::Nvidia, 270.0)));
        // It comes with 40 GiB, and with 80.
        assert_eq!(found("A100"), None);
        assert_eq!(found("NEW"), None);
    }

    #[test]
    fn cpus_are_wanted_where_a_sandbox_can_be_as_asked_for() {
        assert!(wants_cpus(&Filter::default()));
        let none = Filter {
            min_cpu: Some(4),
            max_cpu: Some(2),
            ..Filter::default()
        };
        assert!(!wants_cpus(&none));
    }

    #[test]
    fn sizes_are_fitted_to_bounds_and_limits() {
        assert_eq!(fit(8.0, None, None, 16.0), Some(8.0));
        assert_eq!(fit(8.0, Some(10.5), None, 16.0), Some(11.0));
        assert_eq!(fit(8.0, None, Some(4.7), 16.0), Some(4.0));
        assert_eq!(fit(8.0, Some(17.0), None, 16.0), None);
        assert_eq!(fit(1.0, Some(0.0), None, f64::INFINITY), Some(1.0));
    }
}
