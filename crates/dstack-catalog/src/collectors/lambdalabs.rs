//! Lambda: one request lists every instance type, another one the regions. Both want a key.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_system::Secret;
use serde_json::Value;

use super::json::Json;
use crate::accelerators::is_nvidia_superchip;
use crate::collect::sort_by_price;
use crate::http::Http;
use crate::{CollectContext, CollectError, CpuArch, Item, OfflineProvider, Provider, Vendor};

/// Where the API is.
pub const API_URL: &str = "https://cloud.lambda.ai/api/v1";

/// Published files have memory and disks in GB, where the API has GiB.
const GB_OF_GIB: f64 = 1.074;

/// Collects Lambda's offers: each type in each region, whether it is free there or not.
#[derive(Debug)]
pub struct LambdalabsCollector {
    /// Base of the API.
    pub url: String,
    /// Of any account.
    pub key: Secret,
    /// For the requests.
    pub http: Arc<Http>,
}

#[async_trait]
impl OfflineProvider for LambdalabsCollector {
    fn provider(&self) -> Provider {
        Provider::Lambdalabs
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let (types, images) = (self.get("instance-types").await?, self.get("images").await?);
        let regions = images.list("data").iter();
        let regions: BTreeSet<&str> = regions
            .filter_map(|image| image.at("region").text("name"))
            .collect();
        let Some(types) = types.at("data").as_object() else {
            return Err(CollectError::unexpected(Provider::Lambdalabs, "no `data`"));
        };
        let mut items = Vec::new();
        for one in types.values().map(|one| one.at("instance_type")) {
            let description = one.text("description").unwrap_or_default();
            match gpus(description) {
                Some(gpus) => items.extend(regions.iter().filter_map(|region| offer(one, region, &gpus))),
                None => context
                    .progress
                    .warn(&format!("lambdalabs: no GPU in `{description}`")),
            }
        }
        sort_by_price(&mut items);
        Ok(items)
    }
}

impl LambdalabsCollector {
    async fn get(&self, path: &str) -> Result<Value, CollectError> {
        let error = CollectError::http(Provider::Lambdalabs);
        let client = self.http.client();
        match client {
            Ok(client) => {
                let request = client.get(format!("{}/{path}", self.url));
                let answer = self.http.json(request.bearer_auth(self.key.expose())).await;
                answer.map_err(error)
            }
            Err(failure) => Err(error(failure)),
        }
    }
}

/// GPUs of a type.
struct Gpus {
    count: i64,
    name: String,
    /// GiB of each.
    memory: f64,
}

/// Of a description such as `8x Tesla V100 (16 GB)`; `None`: of a type without GPUs, or of another form.
fn gpus(description: &str) -> Option<Gpus> {
    let (count, rest) = description.split_once("x ")?;
    let is_digit = count.len() == 1 && count.chars().all(|c| c.is_ascii_digit());
    let rest = rest.strip_prefix("Tesla ").unwrap_or(rest);
    let (name, rest) = rest.rsplit_once(" (")?;
    let (memory, _) = rest.split_once(" GB")?;
    Some(Gpus {
        count: count.parse().ok().filter(|_| is_digit)?,
        name: name.replace(' ', ""),
        memory: memory.parse::<u32>().ok()?.into(),
    })
}

fn offer(one: &Value, region: &str, gpus: &Gpus) -> Option<Item> {
    let specs = one.at("specs");
    let is_superchip = is_nvidia_superchip(&gpus.name);
    Some(Item {
        price: one.number("price_cents_per_hour")? / 100.0,
        cpu: specs.int("vcpus")?,
        memory: specs.number("memory_gib")? * GB_OF_GIB,
        disk_size: Some(specs.number("storage_gib")? * GB_OF_GIB),
        gpu_count: gpus.count,
        gpu_name: Some(gpus.name.clone()),
        gpu_memory: Some(gpus.memory),
        gpu_vendor: (gpus.count > 0).then_some(Vendor::Nvidia),
        cpu_arch: if is_superchip { CpuArch::Arm } else { CpuArch::X86 },
        flags: is_superchip
            .then(|| "lambda-arm".to_owned())
            .into_iter()
            .collect(),
        ..Item::new(Provider::Lambdalabs, one.text("name")?, region)
    })
}
