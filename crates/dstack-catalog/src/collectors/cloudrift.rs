//! CloudRift: one public request lists every instance type.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::json::Json;
use crate::collect::sort_by_price;
use crate::http::Http;
use crate::{CollectContext, CollectError, Item, OfflineProvider, Provider, Vendor};

/// Where the API is.
pub const API_URL: &str = "https://api.cloudrift.ai";
const API_VERSION: &str = "2025-03-21";
const GIB: f64 = (1u64 << 30) as f64;

/// Brands we know: a part of the provider's text, our name, the vendor.
const GPUS: [(&str, &str, Vendor); 4] = [
    ("MI350X", "MI350X", Vendor::Amd),
    ("RTX 4090", "RTX4090", Vendor::Nvidia),
    ("RTX 5090", "RTX5090", Vendor::Nvidia),
    ("RTX PRO 6000", "RTXPRO6000", Vendor::Nvidia),
];

/// Collects CloudRift's offers.
#[derive(Debug)]
pub struct CloudriftCollector {
    /// Scheme and host of the API.
    pub url: String,
    /// For the requests.
    pub http: Arc<Http>,
}

#[async_trait]
impl OfflineProvider for CloudriftCollector {
    fn provider(&self) -> Provider {
        Provider::Cloudrift
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let url = format!("{}/api/v1/instance-types/list", self.url);
        let body = json!({
            "version": API_VERSION,
            "data": {"selector": {"ByServiceAndLocation": {"services": ["vm"]}}},
        });
        let answer: Value = self
            .http
            .post_json(&url, &body)
            .await
            .map_err(CollectError::http(Provider::Cloudrift))?;
        let Some(types) = answer.at("data").at("instance_types").as_array() else {
            return Err(CollectError::unexpected(
                Provider::Cloudrift,
                "no `data.instance_types`",
            ));
        };
        let mut items = Vec::new();
        for one in types {
            let brand = one.text("brand_short").unwrap_or_default();
            match GPUS.iter().find(|(part, ..)| brand.contains(part)) {
                Some((_, name, vendor)) => {
                    items.extend(
                        one.list("variants")
                            .iter()
                            .flat_map(|variant| offers(variant, name, *vendor)),
                    );
                }
                None => context
                    .progress
                    .warn(&format!("cloudrift: unknown GPU `{brand}`")),
            }
        }
        sort_by_price(&mut items);
        Ok(items)
    }
}

fn offers(variant: &Value, gpu: &str, vendor: Vendor) -> Vec<Item> {
    let places = variant.at("nodes_per_dc").as_object();
    places
        .into_iter()
        .flat_map(serde_json::Map::keys)
        .filter_map(|place| offer(variant, place, gpu, vendor))
        .collect()
}

fn offer(variant: &Value, place: &str, gpu: &str, vendor: Vendor) -> Option<Item> {
    Some(Item {
        price: variant.number("cost_per_hour")? / 100.0,
        cpu: variant.int("cpu_count")?,
        memory: variant.number("dram")? / GIB,
        disk_size: Some(variant.number("disk")? / GIB),
        gpu_count: variant.int("gpu_count")?,
        gpu_name: Some(gpu.to_owned()),
        gpu_memory: Some((variant.number("vram")? / GIB).round_ties_even()),
        gpu_vendor: Some(vendor),
        ..Item::new(Provider::Cloudrift, variant.text("name")?, place)
    })
}
