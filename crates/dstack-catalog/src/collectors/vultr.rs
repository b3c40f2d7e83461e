//! Vultr: public plan lists; availability of dedicated GPU plans for holders of a key.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_system::Secret;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::json::Json;
use crate::accelerators::{find_of, is_nvidia_superchip, vendor_of};
use crate::collect::sort_by_price;
use crate::http::{Http, HttpError};
use crate::{CollectError, CpuArch, Filter, Item, OnlineProvider, Provider, Vendor, tell_not_offered};

/// Where the API is.
pub const API_URL: &str = "https://api.vultr.com/v2";

/// GPU plans whose lists do not say what is in them: id, count, model, GiB each.
type Details = (&'static str, i64, &'static str, f64);

const BARE_METAL: [Details; 9] = [
    ("vbm-48c-1024gb-4-a100-gpu", 4, "A100", 80.0),
    ("vbm-112c-2048gb-8-h100-gpu", 8, "H100", 80.0),
    ("vbm-112c-2048gb-8-a100-gpu", 8, "A100", 80.0),
    ("vbm-64c-2048gb-8-l40-gpu", 8, "L40S", 48.0),
    ("vbm-72c-480gb-gh200-gpu", 1, "GH200", 96.0),
    ("vbm-256c-2048gb-8-mi300x-gpu", 8, "MI300X", 192.0),
    ("vbm-256c-3072gb-8-mi325x-gpu", 8, "MI325X", 256.0),
    ("vbm-256c-3072gb-8-b200-gpu", 8, "B200", 192.0),
    ("vbm-256c-3072gb-8-mi355x-gpu", 8, "MI355X", 288.0),
];

const DEDICATED: [Details; 11] = [
    ("vcg-a16-6c-64g-16vram", 1, "A16", 16.0),
    ("vcg-a16-96c-960g-256vram", 16, "A16", 16.0),
    ("vcg-a16-96c-878g-256vram", 16, "A16", 16.0),
    ("vcg-a40-24c-120g-48vram", 1, "A40", 48.0),
    ("vcg-a40-96c-480g-192vram", 4, "A40", 48.0),
    ("vcg-a100-12c-120g-80vram", 1, "A100", 80.0),
    ("vcg-a100-96c-960g-640vram", 8, "A100", 80.0),
    ("vcg-h100-216c-1914gb-640vram", 8, "H100", 80.0),
    ("vcg-b200-248c-2826g-1536vram", 8, "B200", 192.0),
    ("vcg-mi355x-252c-2872g-2304vram", 8, "MI355X", 288.0),
    ("vcg-mi325x-252c-2872g-1536vram", 8, "MI325X", 256.0),
];

/// Asks Vultr for its plans.
#[derive(Debug)]
pub struct VultrCollector {
    /// Base of the API.
    pub url: String,
    /// Without one, dedicated plans are listed as the public list has them.
    pub key: Option<Secret>,
    /// Regions whose availability is asked for; empty: all.
    pub regions: Vec<String>,
    /// For the requests.
    pub http: Arc<Http>,
}

#[async_trait]
impl OnlineProvider for VultrCollector {
    fn provider(&self) -> Provider {
        Provider::Vultr
    }

    async fn offers(&self, _: &Filter, _: bool) -> Result<Vec<Item>, CollectError> {
        let error = CollectError::http(Provider::Vultr);
        let (metal, others, dedicated) = futures_util::try_join!(
            self.get("/plans-metal?per_page=500"),
            self.get("/plans?type=all&per_page=500"),
            async { Ok(self.dedicated_locations().await) },
        )
        .map_err(error)?;
        Ok(items(
            metal.list("plans_metal"),
            others.list("plans"),
            dedicated.as_ref(),
        ))
    }
}

/// Offers of plans as the API lists them, the cheapest first. Regions of dedicated GPU plans are those of `dedicated`, by plan; `None`:
/// those that the list has.
pub fn items(
    metal: &[Value],
    others: &[Value],
    dedicated: Option<&BTreeMap<String, Vec<String>>>,
) -> Vec<Item> {
    let mut items = Vec::new();
    for plan in metal {
        items.extend(in_each(plan, None, bare_metal_plan(plan)));
    }
    for plan in others {
        items.extend(in_each(plan, dedicated, instance_plan(plan)));
    }
    items.retain(|item| item.price > 0.0); // the free tier would stand before everything else
    sort_by_price(&mut items);
    items
}

impl VultrCollector {
    /// Plan lists are public: they are asked for without the key.
    async fn get(&self, path: &str) -> Result<Value, HttpError> {
        self.http.get_json(&format!("{}{path}", self.url)).await
    }

    async fn get_with_key(&self, path: &str) -> Result<Value, HttpError> {
        let mut request = self.http.client()?.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.expose());
        }
        self.http.json(request).await
    }

    /// Regions by dedicated plan; `None` without a key, nothing when they cannot be had.
    async fn dedicated_locations(&self) -> Option<BTreeMap<String, Vec<String>>> {
        self.key.as_ref()?;
        Some(self.available_dedicated().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "The availability of Vultr's dedicated GPU plans is unknown");
            BTreeMap::new()
        }))
    }

    async fn available_dedicated(&self) -> Result<BTreeMap<String, Vec<String>>, HttpError> {
        let mut regions = self.regions.clone();
        if regions.is_empty() {
            let answer = self.get_with_key("/regions?per_page=500").await?;
            regions.extend(
                answer
                    .list("regions")
                    .iter()
                    .filter_map(|one| one.text("id"))
                    .map(str::to_owned),
            );
        }
        let answers: Vec<(String, Value)> = stream::iter(regions)
            .map(|region| async move {
                let path = format!("/regions/{region}/availability?type=vdm");
                self.get_with_key(&path).await.map(|answer| (region, answer))
            })
            .buffered(5)
            .try_collect()
            .await?;
        let mut locations: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (region, answer) in answers {
            for plan in answer.list("available_plans").iter().filter_map(Value::as_str) {
                locations.entry(plan.to_owned()).or_default().push(region.clone());
            }
        }
        Ok(locations)
    }
}

/// The plan's offer in each of its places.
fn in_each(
    plan: &Value,
    dedicated: Option<&BTreeMap<String, Vec<String>>>,
    offer: Option<Item>,
) -> Vec<Item> {
    let Some(offer) = offer else { return Vec::new() };
    if plan.at("deploy_ondemand").as_bool() == Some(false) {
        return Vec::new();
    }
    let listed = || {
        plan.list("locations")
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let places: Vec<String> = match dedicated {
        Some(dedicated) if plan.text("type") == Some("vdm") => dedicated
            .get(plan.text("id").unwrap_or_default())
            .cloned()
            .unwrap_or_default(),
        _ => listed(),
    };
    let named = places.into_iter().filter(|place| !place.is_empty());
    named
        .map(|location| Item {
            location,
            ..offer.clone()
        })
        .collect()
}

fn plan_offer(plan: &Value, cpus: &str) -> Option<Item> {
    Some(Item {
        price: plan.number("hourly_cost")?,
        cpu: plan.int(cpus)?,
        memory: plan.number("ram")? / 1024.0,
        disk_size: plan.number("disk"),
        ..Item::new(Provider::Vultr, plan.text("id")?, "")
    })
}

fn with_gpu(offer: Item, count: i64, name: &str, memory: f64) -> Option<Item> {
    let arch = if is_nvidia_superchip(name) {
        CpuArch::Arm
    } else {
        CpuArch::X86
    };
    Some(Item {
        gpu_count: count,
        gpu_name: Some(name.to_owned()),
        gpu_memory: Some(memory),
        gpu_vendor: Some(vendor_of(name)?),
        cpu_arch: arch,
        ..offer
    })
}

fn known(table: &[Details], id: &str) -> Option<Details> {
    let found = table.iter().find(|(known, ..)| *known == id).copied();
    if found.is_none() {
        let why = "Vultr does not tell which GPUs such plans have, and nobody knows it here";
        tell_not_offered("Vultr", id, why);
    }
    found
}

fn bare_metal_plan(plan: &Value) -> Option<Item> {
    let offer = plan_offer(plan, "cpu_threads")?;
    if !offer.instance_name.contains("gpu") {
        return Some(offer);
    }
    let (_, count, name, memory) = known(&BARE_METAL, &offer.instance_name)?;
    with_gpu(offer, count, name, memory)
}

fn instance_plan(plan: &Value) -> Option<Item> {
    let offer = plan_offer(plan, "vcpu_count")?;
    match plan.text("type")? {
        "vc2" | "vhf" | "vhp" | "voc" => Some(offer),
        "vdm" => {
            let (_, count, name, memory) = known(&DEDICATED, &offer.instance_name)?;
            with_gpu(offer, count, name, memory)
        }
        "vcg" => {
            let name = plan.text("gpu_type")?.split('_').nth(1)?;
            let Some(full) = full_memory(name) else {
                let why = format!("the table of GPUs does not have {name}: how many a plan has is not known");
                tell_not_offered("Vultr", &offer.instance_name, &why);
                return None;
            };
            let total = plan.number("gpu_vram_gb")?;
            let count = (total / full).floor().max(1.0); // a fraction of a GPU counts as one
            with_gpu(offer, count as i64, name, total / count)
        }
        _ => None,
    }
}

/// GiB of a whole GPU.
fn full_memory(name: &str) -> Option<f64> {
    if name.eq_ignore_ascii_case("A100") {
        return Some(80.0);
    }
    find_of(name, &[Vendor::Nvidia, Vendor::Amd]).map(|known| f64::from(known.memory_gib))
}
