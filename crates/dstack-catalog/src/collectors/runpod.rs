//! RunPod: a public GraphQL API, asked for every size in every place.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::json::Json;
use crate::accelerators::find_of;
use crate::collect::sort_by_price;
use crate::http::{Http, HttpError};
use crate::{CollectContext, CollectError, Item, OfflineProvider, Provider, ProviderData, Vendor};

/// Where the API is.
pub const API_URL: &str = "https://api.runpod.io/graphql";

/// Hosts must offer at least this CUDA version; pods are created with the same minimum.
pub const MIN_CUDA_VERSION: &str = "12.8";

const PARALLEL: usize = 10;

const GPU_NAMES: &str = "query GpuNames { gpuTypes { id manufacturer displayName memoryInGb } }";

const PLACES: &str = "query Places {
  countryCodes
  dataCenters { id listed }
  gpuTypes { id maxGpuCountCommunityCloud maxGpuCountSecureCloud }
}";

const PODS: &str = "query Pods($lowestPriceInput: GpuLowestPriceInput, $gpuTypesInput: GpuTypeFilter) {
  gpuTypes(input: $gpuTypesInput) {
    id
    memoryInGb
    securePrice
    communityPrice
    clusterPrice
    maxGpuCountSecureCloud
    nodeGroupDatacenters { id }
    lowestPrice(input: $lowestPriceInput) { minVcpu minMemory stockStatus }
  }
}";

const CPU_FLAVORS: &str = "query CpuFlavors($dataCenterId: String!) {
  cpuFlavors {
    id
    minVcpu
    maxVcpu
    ramMultiplier
    diskLimitPerVcpu
    specifics(input: { dataCenterId: $dataCenterId }) { stockStatus securePrice }
  }
}";

/// Collects RunPod's offers.
#[derive(Debug)]
pub struct RunpodCollector {
    /// Where the API is.
    pub url: String,
    /// For the requests.
    pub http: Arc<Http>,
}

/// Vendor and canonical name by the API's GPU id.
type Gpus = HashMap<String, (Vendor, String)>;

/// One size in one place.
#[derive(Debug, Clone)]
struct Wanted {
    secure: bool,
    place: String,
    count: i64,
}

impl Wanted {
    fn variables(&self) -> Value {
        let place = if self.secure {
            "dataCenterId"
        } else {
            "countryCode"
        };
        json!({
            "GpuTypeFilter": {"cluster": false},
            "lowestPriceInput": {
                "secureCloud": self.secure,
                place: self.place,
                "gpuCount": self.count,
                "minDisk": null,
                "minMemoryInGb": null,
                "minVcpuCount": null,
                "minCudaVersion": MIN_CUDA_VERSION,
            },
        })
    }
}

#[async_trait]
impl OfflineProvider for RunpodCollector {
    fn provider(&self) -> Provider {
        Provider::Runpod
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let failed = CollectError::http(Provider::Runpod);
        let gpus = gpu_names(&self.ask(GPU_NAMES, json!({})).await.map_err(&failed)?);
        let places = self.ask(PLACES, json!({})).await.map_err(&failed)?;
        context.progress.step("runpod: pods");
        let mut items = self.pods(&places, &gpus, context).await;
        context.progress.step("runpod: clusters");
        items.extend(self.clusters(&gpus, context).await.map_err(&failed)?);
        context.progress.step("runpod: CPU pods");
        items.extend(self.cpu_pods(&places, context).await);
        sort_by_price(&mut items);
        Ok(items)
    }

    /// Pods in Argentina are unusable: their network is.
    fn publishes(&self, item: &Item) -> bool {
        item.location != "AR"
    }
}

impl RunpodCollector {
    async fn ask(&self, query: &str, variables: Value) -> Result<Value, HttpError> {
        let mut answer: Value = self
            .http
            .post_json(&self.url, &json!({"query": query, "variables": variables}))
            .await?;
        Ok(answer.get_mut("data").map(Value::take).unwrap_or_default())
    }

    async fn pods(&self, places: &Value, gpus: &Gpus, context: &CollectContext) -> Vec<Item> {
        let answers: Vec<_> = stream::iter(wanted(places))
            .map(|one| async move {
                let answer = self.ask(PODS, one.variables()).await;
                (one, answer)
            })
            .buffered(PARALLEL)
            .collect()
            .await;
        let mut items = Vec::new();
        for (one, answer) in answers {
            match answer {
                Ok(answer) => {
                    items.extend(
                        answer
                            .list("gpuTypes")
                            .iter()
                            .filter_map(|pod| pod_offer(&one, pod, gpus)),
                    );
                }
                Err(error) => {
                    context.progress.warn(&format!(
                        "runpod: {} x{} is missing: {error}",
                        one.place, one.count
                    ));
                }
            }
        }
        items
    }

    async fn clusters(&self, gpus: &Gpus, context: &CollectContext) -> Result<Vec<Item>, HttpError> {
        // A count is needed to be told CPU and RAM.
        let variables = json!({"gpuTypesInput": {"cluster": true}, "lowestPriceInput": {"gpuCount": 8}});
        let answer = self.ask(PODS, variables).await?;
        let mut items = Vec::new();
        for pod in answer.list("gpuTypes") {
            match cluster_offers(pod, gpus) {
                Some(offers) => items.extend(offers),
                None => context.progress.warn(&format!(
                    "runpod: the cluster of {} is unknown or out of stock",
                    pod.text("id").unwrap_or_default()
                )),
            }
        }
        Ok(items)
    }

    async fn cpu_pods(&self, places: &Value, context: &CollectContext) -> Vec<Item> {
        let answers: Vec<_> = stream::iter(listed(places))
            .map(|center| async move {
                let answer = self.ask(CPU_FLAVORS, json!({"dataCenterId": center})).await;
                (center, answer)
            })
            .buffered(PARALLEL)
            .collect()
            .await;
        let mut items = Vec::new();
        for (center, answer) in answers {
            match answer {
                Ok(answer) => {
                    items.extend(
                        answer
                            .list("cpuFlavors")
                            .iter()
                            .flat_map(|flavor| cpu_offers(&center, flavor)),
                    );
                }
                Err(error) => context
                    .progress
                    .warn(&format!("runpod: CPU pods of {center} are missing: {error}")),
            }
        }
        items
    }
}

fn listed(places: &Value) -> Vec<String> {
    let centers = places
        .list("dataCenters")
        .iter()
        .filter(|center| center.flag("listed"));
    centers
        .filter_map(|center| center.text("id"))
        .map(str::to_owned)
        .collect()
}

/// Every size in every place: the secure cloud by data centre, the community cloud by country.
fn wanted(places: &Value) -> Vec<Wanted> {
    let most = |name: &str| {
        places
            .list("gpuTypes")
            .iter()
            .filter_map(|gpu| gpu.int(name))
            .max()
            .unwrap_or(0)
    };
    let centers = listed(places);
    let countries: Vec<String> = places
        .list("countryCodes")
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let all = |secure: bool, most: i64, places: Vec<String>| {
        (1..=most).flat_map(move |count| {
            let places = places.clone();
            places
                .into_iter()
                .map(move |place| Wanted { secure, place, count })
        })
    };
    all(true, most("maxGpuCountSecureCloud"), centers)
        .chain(all(false, most("maxGpuCountCommunityCloud"), countries))
        .collect()
}

fn pod_offer(wanted: &Wanted, pod: &Value, gpus: &Gpus) -> Option<Item> {
    let lowest = pod.at("lowestPrice");
    lowest.text("stockStatus")?;
    let id = pod.text("id")?;
    let (vendor, name) = gpus.get(id)?;
    let price = pod.number(if wanted.secure {
        "securePrice"
    } else {
        "communityPrice"
    })?;
    (price != 0.0).then_some(())?;
    Some(Item {
        price: wanted.count as f64 * price,
        cpu: lowest.int("minVcpu")?,
        memory: lowest.number("minMemory")?,
        gpu_count: wanted.count,
        gpu_name: Some(name.clone()),
        gpu_memory: pod.number("memoryInGb"),
        gpu_vendor: Some(*vendor),
        ..Item::new(Provider::Runpod, id, wanted.place.as_str())
    })
}

fn cluster_offers(pod: &Value, gpus: &Gpus) -> Option<Vec<Item>> {
    let id = pod.text("id")?;
    let (vendor, name) = gpus.get(id)?;
    let lowest = pod.at("lowestPrice");
    let count = pod.int("maxGpuCountSecureCloud")?;
    let offer = Item {
        price: pod.number("clusterPrice")? * count as f64,
        cpu: lowest.int("minVcpu")?,
        memory: lowest.number("minMemory")?,
        gpu_count: count,
        gpu_name: Some(name.clone()),
        gpu_memory: pod.number("memoryInGb"),
        gpu_vendor: Some(*vendor),
        flags: vec!["runpod-cluster".to_owned()],
        // The API does not tell; all clusters take two to eight pods.
        provider_data: ProviderData::from_value(&json!({"pod_counts": [2, 3, 4, 5, 6, 7, 8]})),
        ..Item::new(Provider::Runpod, id, "")
    };
    let places = pod
        .list("nodeGroupDatacenters")
        .iter()
        .filter_map(|center| center.text("id"));
    Some(
        places
            .map(|place| Item {
                location: place.to_owned(),
                ..offer.clone()
            })
            .collect(),
    )
}

fn cpu_offers(center: &str, flavor: &Value) -> Vec<Item> {
    cpu_sizes(center, flavor).unwrap_or_default()
}

fn cpu_sizes(center: &str, flavor: &Value) -> Option<Vec<Item>> {
    let specifics = flavor.at("specifics");
    specifics.text("stockStatus")?;
    let price = specifics.number("securePrice")?;
    let (min, max) = (flavor.int("minVcpu")?, flavor.int("maxVcpu")?);
    let (ram, disk) = (flavor.int("ramMultiplier")?, flavor.int("diskLimitPerVcpu")?);
    if min <= 0 || max < min || disk <= 0 {
        return None;
    }
    let id = flavor.text("id")?;
    let offer = |vcpu: i64| Item {
        price: price * (vcpu as f64 / min as f64),
        cpu: vcpu,
        memory: (vcpu * ram) as f64,
        disk_size: Some((vcpu * disk) as f64),
        flags: vec!["runpod-cpu".to_owned()],
        ..Item::new(Provider::Runpod, format!("{id}-{vcpu}-{}", vcpu * ram), center)
    };
    Some(size_ladder(min, max).into_iter().map(offer).collect())
}

/// The least, doubled up to the most, and the most.
fn size_ladder(min: i64, max: i64) -> Vec<i64> {
    let mut sizes: Vec<i64> = std::iter::successors(Some(min), |size| size.checked_mul(2))
        .take_while(|size| *size <= max)
        .collect();
    if sizes.last() != Some(&max) {
        sizes.push(max);
    }
    sizes
}

fn gpu_names(answer: &Value) -> Gpus {
    let named = answer.list("gpuTypes").iter().filter_map(|gpu| {
        let vendor = Vendor::from_name(gpu.text("manufacturer")?).ok()?;
        let shown = gpu.text("displayName")?;
        let name = match vendor {
            Vendor::Nvidia => nvidia_name(shown)?,
            Vendor::Amd => find_of(shown, &[Vendor::Amd])?.name.to_owned(),
            _ => return None,
        };
        Some((gpu.text("id")?.to_owned(), (vendor, name)))
    });
    named.collect()
}

fn nvidia_name(shown: &str) -> Option<String> {
    // Slices of a B300 have other names and other resources.
    if shown == "B300" {
        return Some("B300".to_owned());
    }
    for part in ["B200", "V100"] {
        if shown.contains(part) {
            return Some(part.to_owned());
        }
    }
    if shown == "H100 NVL" {
        return Some("H100NVL".to_owned());
    }
    if shown.contains("H200 NVL") {
        return Some("H200NVL".to_owned());
    }
    if shown.starts_with(['A', 'L', 'H']) {
        return shown.split(' ').next().map(str::to_owned);
    }
    if shown.starts_with("RTX A") {
        return Some(shown.trim_start_matches(['R', 'T', 'X', ' ']).replace(' ', ""));
    }
    shown.starts_with("RTX").then(|| shown.replace(' ', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_follow_the_rules() {
        for (shown, name) in [
            ("B300", Some("B300")),
            ("B300 MIG", None),
            ("H100 SXM", Some("H100")),
            ("H100 NVL", Some("H100NVL")),
            ("RTX A6000", Some("A6000")),
            ("RTX PRO 6000 WK", Some("RTXPRO6000WK")),
            ("Tesla V100", Some("V100")),
            ("L40S", Some("L40S")),
            ("GTX 1080", None),
        ] {
            assert_eq!(nvidia_name(shown).as_deref(), name, "{shown}");
        }
        assert_eq!(size_ladder(2, 32), [2, 4, 8, 16, 32]);
        assert_eq!(size_ladder(2, 24), [2, 4, 8, 16, 24]);
        assert_eq!(size_ladder(3, 3), [3]);
    }
}
