//! Google Cloud: machine types of every zone, prices put together from the billing catalogue's parts, and TPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_system::Secret;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::json::Json;
use crate::collect::{round_to, sort_by_price};
use crate::http::{Http, HttpError};
use crate::{CollectContext, CollectError, Item, OfflineProvider, Provider, ProviderData, Vendor};

mod machines;
mod prices;
mod tpu;

pub use tpu::list_price as tpu_list_price;

use machines::Machine;
use prices::{Capacity, Prices};

/// Billing service of Compute Engine; also sells newer TPUs.
const COMPUTE_SERVICE: &str = "6F81-5844-456A";
/// Billing service of older TPUs.
const TPU_SERVICE: &str = "E000-3F24-B8AA";
const PARALLEL: usize = 8;
/// More pages than any list has.
const MOST_PAGES: usize = 2000;

/// Bases of the APIs.
#[derive(Debug, Clone)]
pub struct Urls {
    /// Compute Engine v1.
    pub compute: String,
    /// Cloud Billing v1.
    pub billing: String,
    /// Cloud TPU v2.
    pub tpu: String,
}

impl Default for Urls {
    fn default() -> Self {
        Self {
            compute: "https://compute.googleapis.com/compute/v1".to_owned(),
            billing: "https://cloudbilling.googleapis.com/v1".to_owned(),
            tpu: "https://tpu.googleapis.com/v2".to_owned(),
        }
    }
}

/// Collects Google Cloud's offers.
#[derive(Debug)]
pub struct GcpCollector {
    /// Where the APIs are.
    pub urls: Urls,
    /// Project in whose name to ask.
    pub project: String,
    /// Bearer token, as `gcloud auth print-access-token` prints it.
    pub token: Secret,
    /// For the requests.
    pub http: Arc<Http>,
}

#[async_trait]
impl OfflineProvider for GcpCollector {
    fn provider(&self) -> Provider {
        Provider::Gcp
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let failed = CollectError::http(Provider::Gcp);
        context.progress.step("gcp: machine types");
        let mut machines = self.machines(context).await.map_err(&failed)?;
        machines.extend(self.attached(&machines).await.map_err(&failed)?);
        context.progress.step("gcp: prices");
        let skus = self.skus(COMPUTE_SERVICE).await.map_err(&failed)?;
        let tpu_skus = self.skus(TPU_SERVICE).await.map_err(&failed)?;
        let prices = Prices::read(&skus);
        let mut items: Vec<Item> = machines
            .iter()
            .flat_map(|machine| machine_offers(machine, &prices))
            .collect();
        context.progress.step("gcp: TPUs");
        let configs = self.tpu_configs().await.map_err(&failed)?;
        let tpu_prices = tpu::Prices::read(tpu_skus.iter().chain(&skus));
        items.extend(tpu::offers(&configs, &tpu_prices));
        let mut items = with_flags(items);
        sort_by_price(&mut items);
        Ok(items)
    }

    fn publishes(&self, item: &Item) -> bool {
        is_published(item)
    }
}

impl GcpCollector {
    /// All pages of a list.
    async fn pages(&self, url: &str, items: &str) -> Result<Vec<Value>, HttpError> {
        let mut all = Vec::new();
        let mut token = String::new();
        for _ in 0..MOST_PAGES {
            let mut address = reqwest::Url::parse(url).ok();
            if let Some(address) = address.as_mut().filter(|_| !token.is_empty()) {
                address.query_pairs_mut().append_pair("pageToken", &token);
            }
            let address = address.map_or_else(|| url.to_owned(), Into::into);
            let request = self.http.client()?.get(address).bearer_auth(self.token.expose());
            let mut page: Value = self.http.json(request).await?;
            if let Some(Value::Array(found)) = page.get_mut(items).map(Value::take) {
                all.extend(found);
            }
            match page.text("nextPageToken") {
                Some(next) if !next.is_empty() && next != token => token = next.to_owned(),
                _ => break,
            }
        }
        Ok(all)
    }

    async fn skus(&self, service: &str) -> Result<Vec<Value>, HttpError> {
        self.pages(
            &format!("{}/services/{service}/skus?pageSize=5000", self.urls.billing),
            "skus",
        )
        .await
    }

    async fn machines(&self, context: &CollectContext) -> Result<Vec<Machine>, HttpError> {
        let base = format!("{}/projects/{}", self.urls.compute, self.project);
        let regions = self.pages(&format!("{base}/regions"), "items").await?;
        let zones = regions
            .iter()
            .flat_map(|region| region.list("zones"))
            .filter_map(Value::as_str);
        let zones: Vec<String> = zones.map(last_part).map(str::to_owned).collect();
        let types: Vec<(String, Vec<Value>)> = stream::iter(zones)
            .map(|zone| {
                let url = format!("{base}/zones/{zone}/machineTypes?maxResults=500");
                async move { self.pages(&url, "items").await.map(|types| (zone, types)) }
            })
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        let mut unknown = std::collections::BTreeSet::new();
        let machines = types
            .iter()
            .flat_map(|(zone, types)| types.iter().map(move |one| (zone, one)));
        let machines: Vec<Machine> = machines
            .filter_map(|(zone, one)| match Machine::read(zone, one) {
                Ok(machine) => machine,
                Err(accelerator) => {
                    unknown.insert(accelerator);
                    None
                }
            })
            .collect();
        for accelerator in unknown {
            context
                .progress
                .warn(&format!("gcp: unknown accelerator {accelerator}"));
        }
        Ok(machines)
    }

    /// N1 machines with GPUs attached, where GPUs can be.
    async fn attached(&self, machines: &[Machine]) -> Result<Vec<Machine>, HttpError> {
        let mut by_zone: BTreeMap<String, Vec<Machine>> = BTreeMap::new();
        for machine in machines.iter().filter(|machine| machine.name.starts_with("n1-")) {
            by_zone
                .entry(machine.zone.clone())
                .or_default()
                .push(machine.clone());
        }
        let found: Vec<Vec<Machine>> = stream::iter(by_zone)
            .map(|(zone, machines)| async move {
                let url = format!(
                    "{}/projects/{}/zones/{zone}/acceleratorTypes",
                    self.urls.compute, self.project
                );
                let types = self.pages(&url, "items").await?;
                let names: Vec<&str> = types.iter().filter_map(|one| one.text("name")).collect();
                Ok::<_, HttpError>(machines::with_accelerators(&machines, &names))
            })
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn tpu_configs(&self) -> Result<Vec<tpu::Config>, HttpError> {
        let base = format!("{}/projects/{}/locations", self.urls.tpu, self.project);
        let locations = self.pages(&base, "locations").await?;
        let zones = locations
            .iter()
            .filter_map(|one| one.text("locationId"))
            .map(str::to_owned);
        let zones: Vec<String> = zones.filter(|zone| zone != tpu::BROKEN_ZONE).collect();
        let found: Vec<(String, Vec<Value>)> = stream::iter(zones)
            .map(|zone| {
                let url = format!("{base}/{zone}/acceleratorTypes");
                async move {
                    self.pages(&url, "acceleratorTypes")
                        .await
                        .map(|types| (zone, types))
                }
            })
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        let configs = found
            .iter()
            .flat_map(|(zone, types)| types.iter().map(move |one| (zone, one)));
        Ok(configs
            .filter_map(|(zone, one)| tpu::Config::read(zone, one))
            .collect())
    }
}

fn last_part(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

fn machine_offers(machine: &Machine, prices: &Prices) -> Vec<Item> {
    let offer = |capacity: Capacity| {
        let price = prices.of(machine, capacity)?;
        Some(Item {
            price: round_to(price, 6),
            cpu: machine.cpus,
            memory: machine.memory,
            gpu_count: machine.gpu_count,
            gpu_name: machine.gpu.map(|gpu| gpu.name.to_owned()),
            gpu_memory: machine.gpu_memory,
            gpu_vendor: machine.gpu.map(|_| Vendor::Nvidia),
            spot: capacity == Capacity::Spot,
            provider_data: ProviderData::from_value(
                &json!({"is_dws_calendar_mode": capacity == Capacity::Calendar}),
            ),
            ..Item::new(Provider::Gcp, machine.name.as_str(), machine.zone.as_str())
        })
    };
    [Capacity::OnDemand, Capacity::Spot, Capacity::Calendar]
        .into_iter()
        .filter_map(offer)
        .collect()
}

fn is_calendar(item: &Item) -> bool {
    item.provider_data.value().flag("is_dws_calendar_mode")
}

/// Marks what older servers must not see, and doubles G4 for one server version that asked by another flag.
fn with_flags(items: Vec<Item>) -> Vec<Item> {
    let mut flagged = Vec::with_capacity(items.len());
    for mut item in items {
        if is_calendar(&item) {
            item.flags.push("gcp-dws-calendar-mode".to_owned());
        }
        if item.instance_name.starts_with("a4-") {
            item.flags.push("gcp-a4".to_owned());
        }
        if item.instance_name.starts_with("g4-standard-") {
            let mut preview = item.clone();
            item.flags.push("gcp-g4".to_owned());
            preview.flags.push("gcp-g4-preview".to_owned());
            flagged.push(item);
            flagged.push(preview);
        } else {
            flagged.push(item);
        }
    }
    flagged
}

/// Families that are published even without accelerators.
const PUBLISHED: [&str; 12] = [
    "m4-",
    "c4-",
    "n4-",
    "h3-",
    "n2-",
    "e2-medium",
    "e2-standard-",
    "e2-highmem-",
    "e2-highcpu-",
    "m1-",
    "a2-",
    "g2-",
];

fn is_published(item: &Item) -> bool {
    let name = item.instance_name.as_str();
    // Not to be had on demand, although there is a price for it.
    let only_reserved = ["a4x-", "a4-", "a3-ultragpu-"]
        .iter()
        .any(|family| name.starts_with(family))
        || (name.starts_with("a3-highgpu-") && item.gpu_count < 8);
    let family = PUBLISHED.iter().any(|family| name.starts_with(family)) || item.gpu_name.is_some();
    family && !(only_reserved && !item.spot && !is_calendar(item))
}
