//! Collects what Nebius sells for the published catalogue: each preset of each platform in each region, at the price of its calculator.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_backend::Env;
use dstack_catalog::accelerators::{Accelerator, find};
use dstack_catalog::{CollectContext, CollectError, Item, OfflineProvider, Provider, ProviderData, Vendor};
use dstack_compute::config::{Credential, NebiusCreds, ServiceAccountTag};
use dstack_system::env;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;

use crate::client::Client;
use crate::grpc::Error;
use crate::messages::{InstanceSpec, Preemptible, Preset, Resources, STOP, SoldPlatform};
use crate::projects;

/// Calls at a time.
const PARALLEL: usize = 8;

/// InfiniBand fabrics by platform and region: no call tells them (Nebius' documentation of InfiniBand fabrics, as dstack 0.22.5 has it).
const FABRICS: &[(&str, &str, &[&str])] = &[
    (
        "gpu-h100-sxm",
        "eu-north1",
        &["fabric-2", "fabric-3", "fabric-4", "fabric-6"],
    ),
    ("gpu-h200-sxm", "eu-west1", &["fabric-5"]),
    ("gpu-h200-sxm", "eu-north1", &["fabric-7"]),
    ("gpu-h200-sxm", "eu-north2", &["eu-north2-a"]),
    ("gpu-h200-sxm", "us-central1", &["us-central1-a"]),
    ("gpu-b200-sxm", "us-central1", &["us-central1-b"]),
    ("gpu-b200-sxm-a", "me-west1", &["me-west1-a"]),
    ("gpu-b300-sxm", "uk-south1", &["uk-south1-a"]),
];

/// GPUs whose spot machines have a price that does not move.
const FLAT_RATE: &str = "L40S";

/// Collects Nebius' offers, as one service account.
#[derive(Debug)]
pub struct NebiusCollector {
    client: Client,
}

/// A preset of a platform in a region.
#[derive(Debug, Clone)]
struct Sold {
    project: String,
    region: String,
    platform: String,
    preset: Preset,
    is_spot: bool,
    gpu: Option<&'static Accelerator>,
}

impl NebiusCollector {
    /// # Errors
    /// The credentials cannot be used; the field, and what is wrong with it.
    pub fn new(env: &Env, creds: &NebiusCreds) -> Result<Self, String> {
        let client = Client::new(env, creds).map_err(|(field, why)| format!("{field}: {why}"))?;
        Ok(Self { client })
    }

    /// With the service account of the environment.
    ///
    /// # Errors
    /// A variable is missing, or its key cannot be used.
    pub fn from_env(backend_env: &Env) -> Result<Arc<dyn OfflineProvider>, CollectError> {
        let required = |name: &'static str| env::var(name).ok_or(CollectError::MissingCreds(name));
        let service_account_id = required("NEBIUS_SERVICE_ACCOUNT_ID")?;
        let public_key_id = required("NEBIUS_PUBLIC_KEY_ID")?;
        let file = required("NEBIUS_PRIVATE_KEY_FILE")?;
        let key = fs_err::read_to_string(&file).map_err(|source| CollectError::File {
            path: file.into(),
            source,
        })?;
        let creds = NebiusCreds {
            kind: ServiceAccountTag,
            service_account_id,
            public_key_id,
            private_key_file: None,
            private_key_content: Credential::new(key),
            filename: None,
        };
        let collector = Self::new(backend_env, &creds).map_err(failed)?;
        Ok(Arc::new(collector))
    }

    /// All that regions have, without prices.
    async fn sold(&self, context: &CollectContext) -> Result<Vec<Sold>, CollectError> {
        let all = projects::all(&self.client).await.map_err(told)?;
        // Which project of a region is asked does not matter.
        let mut sold = Vec::new();
        let mut regions = std::collections::BTreeSet::new();
        for project in all
            .iter()
            .filter(|project| regions.insert(project.region.clone()))
        {
            context.progress.step(&format!("nebius: {}", project.region));
            let platforms = self.client.platforms(&project.id).await.map_err(told)?;
            for platform in &platforms {
                sold.extend(presets_of(platform, &project.id, &project.region, context));
            }
        }
        Ok(sold)
    }

    /// `None`: the calculator has no price of it.
    async fn priced(&self, sold: Sold, context: &CollectContext) -> Result<Option<Item>, CollectError> {
        let spec = InstanceSpec {
            resources: Some(Resources {
                platform: sold.platform.clone(),
                preset: Some(sold.preset.name.clone()),
            }),
            preemptible: sold.is_spot.then_some(Preemptible { on_preemption: STOP }),
            ..InstanceSpec::default()
        };
        let cost = self
            .client
            .hourly_cost(&sold.project, &spec)
            .await
            .map_err(told)?;
        let price = cost.parse().ok().filter(|price: &f64| *price > 0.0);
        if price.is_none() {
            let (platform, preset) = (&sold.platform, &sold.preset.name);
            let what = format!(
                "nebius: {platform} {preset} in {} has no price (`{cost}`)",
                sold.region
            );
            context.progress.warn(&what);
        }
        Ok(price.map(|price| item(&sold, price)))
    }
}

#[async_trait]
impl OfflineProvider for NebiusCollector {
    fn provider(&self) -> Provider {
        Provider::Nebius
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let sold = self.sold(context).await?;
        let priced: Vec<Option<Item>> = stream::iter(sold)
            .map(|sold| self.priced(sold, context))
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        let mut items: Vec<Item> = priced.into_iter().flatten().collect();
        items.sort_by(|first, second| first.price.total_cmp(&second.price));
        Ok(items)
    }
}

fn failed(what: impl std::fmt::Display) -> CollectError {
    CollectError::unexpected(Provider::Nebius, what.to_string())
}

fn told(error: Error) -> CollectError {
    failed(error)
}

/// On demand, and where the platform allows it as spot machines. Of a GPU that is not known, none.
fn presets_of(platform: &SoldPlatform, project: &str, region: &str, context: &CollectContext) -> Vec<Sold> {
    let Some(spec) = &platform.spec else {
        return Vec::new();
    };
    let name = platform
        .metadata
        .as_ref()
        .map_or("", |metadata| metadata.name.as_str());
    let is_spot_too = platform
        .status
        .as_ref()
        .is_some_and(|status| status.allowed_for_preemptibles);
    let memory = [spec.gpu_memory_gigabytes, spec.gpu_memory_gibibytes];
    let gpu = gpu_of(name, memory);
    let mut sold = Vec::new();
    for preset in &spec.presets {
        let gpus = preset
            .resources
            .as_ref()
            .map_or(0, |resources| resources.gpu_count);
        if gpus > 0 && gpu.is_none() {
            let what = format!("nebius: {name} {} has a GPU that is not known", preset.name);
            context.progress.warn(&what);
            continue;
        }
        let kinds: &[bool] = if is_spot_too { &[false, true] } else { &[false] };
        sold.extend(kinds.iter().map(|is_spot| Sold {
            project: project.to_owned(),
            region: region.to_owned(),
            platform: name.to_owned(),
            preset: preset.clone(),
            is_spot: *is_spot,
            gpu: gpu.filter(|_| gpus > 0),
        }));
    }
    sold
}

/// The one GPU of NVIDIA that `gpu-h100-sxm` names, with one of the memories that the platform tells (0: it does not).
fn gpu_of(platform: &str, memory: [i32; 2]) -> Option<&'static Accelerator> {
    let name = platform.strip_prefix("gpu-")?.split('-').next()?;
    let name = if name == "rtx6000" { "rtxpro6000" } else { name };
    let is_it = |known: &&'static Accelerator| {
        known.vendor == Vendor::Nvidia
            && memory
                .iter()
                .any(|gib| u32::try_from(*gib) == Ok(known.memory_gib))
    };
    let mut found = find(name).filter(is_it);
    match (found.next(), found.next()) {
        (Some(known), None) => Some(known),
        _ => None,
    }
}

fn fabrics_of(sold: &Sold) -> &'static [&'static str] {
    let of = FABRICS.iter().find(|(platform, region, _)| {
        sold.preset.allow_gpu_clustering && *platform == sold.platform && *region == sold.region
    });
    of.map_or(&[], |(.., fabrics)| fabrics)
}

fn item(sold: &Sold, price: f64) -> Item {
    let resources = sold.preset.resources.clone().unwrap_or_default();
    let is_flat = sold.is_spot && sold.gpu.is_some_and(|gpu| gpu.name == FLAT_RATE);
    let data = json!({"fabrics": fabrics_of(sold), "is_preemptible_flat_rate": is_flat});
    Item {
        price,
        cpu: i64::from(resources.vcpu_count),
        memory: f64::from(resources.memory_gibibytes),
        gpu_count: i64::from(resources.gpu_count),
        gpu_name: sold.gpu.map(|gpu| gpu.name.to_owned()),
        gpu_memory: sold.gpu.map(|gpu| f64::from(gpu.memory_gib)),
        gpu_vendor: sold.gpu.map(|_| Vendor::Nvidia),
        spot: sold.is_spot,
        provider_data: ProviderData::from_value(&data),
        ..Item::new(
            Provider::Nebius,
            format!("{} {}", sold.platform, sold.preset.name),
            &*sold.region,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_one_of_that_name_with_that_memory() {
        let found = |platform: &str, memory| gpu_of(platform, memory).map(|gpu| gpu.name);
        assert_eq!(found("gpu-h100-sxm", [80, 80]), Some("H100"));
        assert_eq!(found("gpu-b200-sxm-a", [180, 0]), Some("B200"));
        assert_eq!(found("gpu-rtx6000", [96, 0]), Some("RTXPRO6000"));
        assert_eq!(found("gpu-h100-sxm", [94, 0]), None);
        assert_eq!(found("gpu-x900", [94, 0]), None);
        assert_eq!(found("cpu-d3", [0, 0]), None);
    }
}
