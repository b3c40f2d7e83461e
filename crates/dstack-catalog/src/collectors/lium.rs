//! Lium: a public feed of every node that can be rented.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use regex::Regex;
use serde_json::{Value, json};

use super::json::Json;
use crate::accelerators::{correct_memory_gib, find_of};
use crate::collect::{round_to, sort_by_price};
use crate::http::Http;
use crate::{CollectError, Filter, Item, OnlineProvider, Provider, ProviderData, Vendor, tell_not_offered};

/// Where the feed is.
pub const NODES_URL: &str = "https://lium.io/api/public/v1/nodes";

/// Most GPUs of a node that is taken for one: each number of them is a row.
const MOST_GPUS: i64 = 64;

/// Asks Lium for its nodes.
#[derive(Debug)]
pub struct LiumCollector {
    /// Where the feed is.
    pub url: String,
    /// For the request.
    pub http: Arc<Http>,
}

#[async_trait]
impl OnlineProvider for LiumCollector {
    fn provider(&self) -> Provider {
        Provider::Lium
    }

    async fn offers(&self, _: &Filter, _: bool) -> Result<Vec<Item>, CollectError> {
        let answer: Value = self
            .http
            .get_json(&self.url)
            .await
            .map_err(CollectError::http(Provider::Lium))?;
        items(&answer)
    }
}

/// The offers of the feed, the cheapest first.
///
/// # Errors
/// It is not what the feed is known to be.
pub fn items(feed: &Value) -> Result<Vec<Item>, CollectError> {
    let Some(nodes) = feed.at("nodes").as_array() else {
        return Err(CollectError::unexpected(Provider::Lium, "no list `nodes`"));
    };
    let mut items: Vec<Item> = nodes.iter().flat_map(node_offers).collect();
    sort_by_price(&mut items);
    Ok(items)
}

/// A number, or a text that is one.
fn loose_number(node: &Value, name: &str) -> Option<f64> {
    let value = node.at(name);
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn node_offers(node: &Value) -> Vec<Item> {
    Node::read(node).map(|node| node.offers()).unwrap_or_default()
}

/// What a node must tell to be offered.
struct Node {
    id: String,
    gpu: String,
    gpus: i64,
    free: i64,
    least: i64,
    price_per_gpu: f64,
    gpu_memory: f64,
    cpus: f64,
    pod_ram: f64,
    disk: f64,
    location: String,
    spot: bool,
    data: ProviderData,
}

impl Node {
    fn read(node: &Value) -> Option<Self> {
        let id = match node.at("id") {
            Value::String(id) if !id.is_empty() => id.clone(),
            Value::Number(id) => id.to_string(),
            _ => return None,
        };
        let gpus = loose_number(node, "gpu_count")? as i64;
        let free = (loose_number(node, "available_gpu_count")? as i64).min(gpus);
        let least = loose_number(node, "min_rentable_gpu_count").filter(|least| *least != 0.0);
        let least = least.map_or(gpus, |least| least as i64).max(1);
        let price_per_gpu = loose_number(node, "price_per_gpu_hour")?;
        let disk = node.number("disk_free_gb").filter(|disk| *disk > 0.0)?;
        if !(1..=MOST_GPUS).contains(&gpus) || free <= 0 || price_per_gpu <= 0.0 || least > free {
            return None;
        }
        let gpu = gpu_name(node.text("gpu_model")?);
        if find_of(&gpu, &[Vendor::Nvidia]).is_none() {
            let why = "the table of GPUs does not have it";
            tell_not_offered("Lium", node.text("gpu_model").unwrap_or_default(), why);
            return None;
        }
        let gpu_memory = correct_memory_gib(&gpu, loose_number(node, "gpu_memory_gb")? * 1024.0);
        // The feed rounds to the nearest GB: the true value may be half of one below.
        let host_ram = loose_number(node, "ram_gb")? - 0.5;
        let data = node.text("rent_url").filter(|url| !url.is_empty());
        Some(Self {
            id,
            gpu,
            gpus,
            free,
            least,
            price_per_gpu,
            gpu_memory,
            cpus: loose_number(node, "cpu_count")?.trunc(),
            pod_ram: host_ram - (host_ram * 0.01).max(4.0),
            disk: (disk - 0.5).max(0.0),
            location: location(node)?,
            spot: node.text("tier") == Some("spot"),
            data: data.map_or_else(ProviderData::default, |url| {
                ProviderData::from_value(&json!({"rent_url": url}))
            }),
        })
    }

    /// Any number of GPUs between the least and the free ones, each with its share of the host.
    fn offers(&self) -> Vec<Item> {
        (self.least..=self.free)
            .filter_map(|count| self.offer(count))
            .collect()
    }

    fn offer(&self, count: i64) -> Option<Item> {
        let share = count as f64 / self.gpus as f64;
        let cpu = (self.cpus * share) as i64;
        // A third of the share of the disk is the job's; the rest is a volume.
        let disk = (self.disk * share / 3.0).trunc();
        if cpu < 1 || disk < 1.0 {
            return None;
        }
        Some(Item {
            price: round_to(self.price_per_gpu * count as f64, 5),
            cpu,
            memory: (self.pod_ram * share).floor().max(1.0),
            gpu_count: count,
            gpu_name: Some(self.gpu.clone()),
            gpu_memory: Some(self.gpu_memory),
            gpu_vendor: Some(Vendor::Nvidia),
            spot: self.spot,
            disk_size: Some(disk),
            provider_data: self.data.clone(),
            ..Item::new(Provider::Lium, self.id.as_str(), self.location.as_str())
        })
    }
}

/// `US`, `CA` → `us-ca`.
fn location(node: &Value) -> Option<String> {
    let country = node
        .text("country_code")
        .filter(|code| !code.is_empty())?
        .trim()
        .to_lowercase();
    let region = node.text("region").filter(|region| !region.is_empty());
    let joined = region.map_or(country.clone(), |region| {
        format!("{country}-{}", region.trim().to_lowercase())
    });
    Some(joined.replace(' ', "")).filter(|location| !location.is_empty())
}

/// The canonical name of a model: without form factor, memory size and product line.
fn gpu_name(model: &str) -> String {
    #[allow(clippy::expect_used)] // fixed pattern
    static NOISE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i)\b(nvidia|geforce|tesla|quadro|tensor core gpu|generation|blackwell|server edition|workstation edition|pcie|sxm\d?|hbm\d\w*|ac|pc|\d+\s*gb)\b",
        )
        .expect("the pattern is well formed")
    });
    let name = model.replace('-', " ");
    let name = NOISE.replace_all(&name, " ");
    let name = name.trim();
    let name = match name.strip_prefix("RTX A") {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => format!("A{rest}"),
        _ => name.to_owned(),
    };
    name.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_absurd_size_is_none() {
        let count = |gpus: i64| {
            let node = json!({"id": "n", "gpu_model": "H100 80GB HBM3", "gpu_count": gpus, "available_gpu_count": gpus,
                "min_rentable_gpu_count": 1, "price_per_gpu_hour": 2.1, "gpu_memory_gb": 80, "cpu_count": 2240,
                "ram_gb": 20150, "disk_free_gb": 14670, "country_code": "US"});
            items(&json!({"nodes": [node]})).unwrap().len()
        };
        assert_eq!(count(64), 64);
        assert_eq!(count(1_000_000_000_000), 0);
    }

    #[test]
    fn models_become_canonical_names() {
        for (model, name) in [
            ("RTX 5090", "RTX5090"),
            ("H100 80GB HBM3", "H100"),
            ("A100-SXM4-80GB", "A100"),
            ("B300 SXM6 AC", "B300"),
            ("RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"),
            ("RTX 6000 Ada Generation", "RTX6000Ada"),
            ("RTX A6000", "A6000"),
            ("H200 NVL", "H200NVL"),
            ("Tesla V100 Tensor Core GPU", "V100"),
        ] {
            assert_eq!(gpu_name(model), name);
        }
    }
}
