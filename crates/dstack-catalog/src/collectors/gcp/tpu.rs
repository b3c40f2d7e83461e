//! TPU slices: configurations by zone, prices from the billing catalogue or from a table of list prices.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::super::json::Json;
use super::prices::unit_price;
use crate::{Item, Provider, Vendor};

/// This zone's list cannot be had: it answers 503.
pub(super) const BROKEN_ZONE: &str = "us-east1-b";

/// Slices that are published: vCPUs, GiB of RAM, GiB of HBM.
const HARDWARE: [(&str, i64, f64, f64); 9] = [
    ("v2-8", 96, 334.0, 64.0),
    ("v3-8", 96, 334.0, 128.0),
    ("v5litepod-1", 24, 48.0, 16.0),
    ("v5litepod-4", 112, 192.0, 64.0),
    ("v5litepod-8", 224, 384.0, 128.0),
    ("v5p-8", 208, 448.0, 95.0),
    ("v6e-1", 44, 176.0, 32.0),
    ("v6e-4", 180, 720.0, 128.0),
    ("v6e-8", 180, 1440.0, 256.0),
];

/// USD per chip-hour, from Google's price pages: the API does not tell the prices of all regions.
#[derive(Debug, Deserialize)]
struct ListPrice {
    #[serde(default)]
    on_demand: Option<f64>,
    #[serde(default)]
    spot: Option<f64>,
}

/// By product, then region.
static LIST_PRICES: LazyLock<HashMap<String, HashMap<String, ListPrice>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../../data/tpu_prices.json")).unwrap_or_default());

/// A slice in a zone.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    name: String,
    zone: String,
    chips: f64,
}

impl Config {
    pub(super) fn read(zone: &str, one: &Value) -> Option<Self> {
        let topology = one.list("acceleratorConfigs").first()?.text("topology")?;
        let chips = topology
            .split('x')
            .map(str::parse::<u32>)
            .try_fold(1, |product, factor| factor.map(|factor| product * factor));
        Some(Self {
            name: one.text("type")?.to_owned(),
            zone: zone.to_owned(),
            chips: f64::from(chips.ok()?),
        })
    }
}

/// One price of the billing catalogue.
#[derive(Debug)]
struct Price {
    version: String,
    pod: bool,
    spot: bool,
    regions: Vec<String>,
    usd: f64,
}

#[derive(Debug)]
pub(super) struct Prices(Vec<Price>);

impl Prices {
    pub(super) fn read<'a>(skus: impl Iterator<Item = &'a Value>) -> Self {
        Self(skus.filter_map(read_sku).collect())
    }

    fn find(&self, version: &str, region: &str, spot: bool, pod: Option<bool>) -> Option<f64> {
        let found = self.0.iter().find(|price| {
            price.version == version
                && price.spot == spot
                && pod.is_none_or(|pod| price.pod == pod)
                && price.regions.iter().any(|served| served.starts_with(region))
        });
        found.map(|price| price.usd)
    }
}

fn read_sku(sku: &Value) -> Option<Price> {
    let category = sku.at("category");
    let sold = ["OnDemand", "Preemptible"].contains(&category.text("usageType")?);
    if !sold || category.text("resourceGroup") != Some("TPU") {
        return None;
    }
    let description = sku.text("description")?;
    Some(Price {
        version: version(description)?,
        pod: description.contains("Pod"),
        spot: description.contains("Preemptible"),
        regions: sku
            .list("serviceRegions")
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        usd: unit_price(sku)?,
    })
}

/// `Tpu-v5e ...` → `v5litepod`: the generation named in the first word that begins with `tpu`.
fn version(description: &str) -> Option<String> {
    let lower = description.to_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let word = lower.split(|c: char| !is_word(c)).find_map(|part| {
        // A word boundary lies also behind a hyphen.
        let at = part.match_indices("tpu").map(|(at, _)| at).find(|at| {
            part.get(..*at)
                .is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        })?;
        part.get(at..)
    })?;
    let at = word.match_indices('v').map(|(at, _)| at).find(|at| {
        word.get(at + 1..)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })?;
    let rest = word.get(at + 1..)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let behind = rest.get(digits..)?;
    let letters = behind
        .find(|c: char| !c.is_ascii_lowercase())
        .unwrap_or(behind.len());
    let version = word.get(at..at + 1 + digits + letters)?;
    Some(if version == "v5e" { "v5litepod" } else { version }.to_owned())
}

/// List price of a slice of so many cores and chips, in USD per hour; `None`: no list has it. Slices of v2 and v3 with more than 8 cores, and all
/// of v4, are priced as pods.
pub fn list_price(version: &str, cores: i64, region: &str, chips: f64, spot: bool) -> Option<f64> {
    let product = match version {
        "v5litepod" => "TPU v5e".to_owned(),
        "v4" => "TPU v4 pod".to_owned(),
        "v2" | "v3" if cores > 8 => format!("TPU {version} pod"),
        "v2" | "v3" => format!("TPU {version} device"),
        other => format!("TPU {other}"),
    };
    let price = LIST_PRICES.get(&product)?.get(region)?;
    Some(if spot { price.spot } else { price.on_demand }? * chips)
}

/// USD per hour of a slice.
fn price(config: &Config, configs: &[Config], prices: &Prices, spot: bool) -> Option<f64> {
    let (version, cores) = config.name.rsplit_once('-')?;
    let cores: i64 = cores.parse().ok()?;
    let region = config
        .zone
        .rsplit_once('-')
        .map_or(config.zone.as_str(), |(region, _)| region);
    let listed = || list_price(version, cores, region, config.chips, spot);
    match version {
        "v5litepod" | "v5p" | "v6e" => {
            let per_chip = prices.find(version, region, spot, None);
            per_chip.map(|usd| usd * config.chips).or_else(listed)
        }
        "v2" | "v3" | "v4" if cores > 8 || version == "v4" => {
            let least = format!("{version}-8");
            let least = configs.iter().find(|one| one.name == least).map(|one| one.chips);
            let of_least = prices.find(version, region, spot, Some(true));
            of_least
                .zip(least)
                .map(|(usd, chips)| usd / chips * config.chips)
                .or_else(listed)
        }
        "v2" | "v3" if cores == 8 => prices.find(version, region, spot, Some(false)),
        _ => None,
    }
}

/// On-demand offers of known slices, each followed by its spot offer where there is a price.
pub(super) fn offers(configs: &[Config], prices: &Prices) -> Vec<Item> {
    let mut items = Vec::new();
    for config in configs {
        let hardware = HARDWARE.iter().find(|(name, ..)| *name == config.name);
        let (Some((_, cpus, ram, hbm)), Some(usd)) = (hardware, price(config, configs, prices, false)) else {
            continue;
        };
        let on_demand = Item {
            price: usd,
            cpu: *cpus,
            memory: *ram,
            gpu_count: 1,
            gpu_name: Some(config.name.clone()),
            gpu_memory: Some(*hbm),
            gpu_vendor: Some(Vendor::Google),
            ..Item::new(Provider::Gcp, config.name.as_str(), config.zone.as_str())
        };
        let spot = price(config, configs, prices, true).filter(|usd| *usd != 0.0);
        let spot = spot.map(|price| Item {
            price,
            spot: true,
            ..on_demand.clone()
        });
        items.push(on_demand);
        items.extend(spot);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_read_from_descriptions() {
        for (text, expected) in [
            ("Tpu-v2 accelerator in Iowa", Some("v2")),
            ("Preemptible Tpu-v3 Pod running in Netherlands", Some("v3")),
            ("TPU-v5e chip", Some("v5litepod")),
            ("Cloud TpuV6e chip", Some("v6e")),
            ("TpuV5p", Some("v5p")),
            ("Cloud GPU v5", None),
        ] {
            assert_eq!(version(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_list_of_prices_is_complete() {
        assert_eq!(LIST_PRICES.len(), 8);
        assert_eq!(list_price("v5litepod", 8, "us-central1", 8.0, false), Some(9.6));
        assert_eq!(list_price("v5litepod", 8, "nowhere", 8.0, false), None);
    }
}
