//! Oracle Cloud: shapes and prices come from the public cost estimator, regions from the catalogue at hand.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::json::Json;
use crate::accelerators::{find_of, is_nvidia_superchip, vendor_of};
use crate::collect::sort_by_price;
use crate::http::Http;
use crate::{CollectContext, CollectError, CpuArch, Item, OfflineProvider, Provider, Snapshot, Vendor};

/// Where the cost estimator's data is.
pub const COST_ESTIMATOR_URL: &str = "https://www.oracle.com/a/ocom/docs/cloudestimator2/data";

/// OCPUs and GB of shapes the estimator tells wrong or not at all.
const SPECS: [(&str, i64, i64); 4] = [
    ("BM.GPU.B300.8", 128, 4096),
    ("BM.GPU.GB200.4", 144, 960),
    ("BM.GPU.GB300.4", 144, 960),
    ("BM.GPU.RTXPRO.8", 144, 3072),
];

/// Collects Oracle's offers.
#[derive(Debug)]
pub struct OciCollector {
    /// Base of `shapes.json` and `products.json`.
    pub url: String,
    /// Names the regions: only account holders can list them.
    pub known: Arc<Snapshot>,
    /// For the requests.
    pub http: Arc<Http>,
}

#[async_trait]
impl OfflineProvider for OciCollector {
    fn provider(&self) -> Provider {
        Provider::Oci
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let regions = self.regions();
        if regions.is_empty() {
            return Err(CollectError::unexpected(
                Provider::Oci,
                "the catalog at hand knows no region of it",
            ));
        }
        let shapes_url = format!("{}/shapes.json", self.url);
        let products_url = format!("{}/products.json", self.url);
        let (shapes, products) = futures_util::try_join!(
            self.http.get_json::<Value>(&shapes_url),
            self.http.get_json::<Value>(&products_url),
        )
        .map_err(CollectError::http(Provider::Oci))?;
        let products: Products<'_> = products
            .list("items")
            .iter()
            .rev() // the first of a part number counts
            .filter_map(|product| Some((product.text("partNumber")?, product)))
            .collect();
        let mut items = Vec::new();
        for shape in shapes.list("items").iter().filter(|shape| is_offered(shape)) {
            match shape_offer(shape, &products) {
                Ok(offer) => items.extend(in_regions(&offer, &regions, shape.flag("allowPreemptible"))),
                Err(reason) => context
                    .progress
                    .warn(&format!("oci: skipping {}: {reason}", name_of(shape))),
            }
        }
        sort_by_price(&mut items);
        Ok(items)
    }
}

type Products<'a> = HashMap<&'a str, &'a Value>;

impl OciCollector {
    fn regions(&self) -> BTreeSet<String> {
        let table = self.known.table(Provider::Oci);
        table
            .into_iter()
            .flat_map(|table| table.offers())
            .map(|offer| offer.location().to_owned())
            .collect()
    }
}

fn in_regions(offer: &Item, regions: &BTreeSet<String>, preemptible: bool) -> Vec<Item> {
    let mut items = Vec::new();
    for region in regions {
        let on_demand = Item {
            location: region.clone(),
            ..offer.clone()
        };
        // Preemptible capacity costs half.
        let spot = preemptible.then(|| Item {
            price: on_demand.price * 0.5,
            spot: true,
            flags: vec!["oci-spot".to_owned()],
            ..on_demand.clone()
        });
        items.push(on_demand);
        items.extend(spot);
    }
    items
}

fn name_of(shape: &Value) -> &str {
    let name = shape.text("name").unwrap_or_default();
    name.strip_suffix(" (NVL72)").unwrap_or(name)
}

fn is_offered(shape: &Value) -> bool {
    let value = |field: &str| shape.at(field).text("value").unwrap_or_default();
    !shape.flag("hidden")
        && shape.text("status") == Some("ACTIVE")
        && ["vm", "bm"].contains(&value("shapeType"))
        && ["standard", "gpu", "optimized"].contains(&value("subType"))
        && !name_of(shape).contains(".A1.")
}

/// The on-demand offer of a shape, without its region.
fn shape_offer(shape: &Value, products: &Products<'_>) -> Result<Item, String> {
    let name = name_of(shape);
    let specs = SPECS.iter().find(|(known, ..)| *known == name);
    let gpu_name = gpu_name(name);
    let arch = cpu_arch(shape, name, gpu_name);
    let gpus = shape.int("gpuQty").filter(|count| *count != 0);
    let mut cpu = None;
    let mut memory = specs
        .map(|(.., gb)| *gb)
        .or_else(|| shape.int("bundleMemoryQty"))
        .map(|gb| (gb, 0.0));
    let mut gpu_price = 0.0;
    let mut has_gpu = false;
    for product in shape.list("products") {
        let kind = product.at("type").text("value").unwrap_or_default();
        let quantity = match specs {
            Some((_, ocpus, _)) if kind == "ocpu" => Some(*ocpus),
            _ => product.int("qty"),
        };
        let quantity = quantity.ok_or("a product has no quantity")?;
        let part = product.text("partNumber").unwrap_or_default();
        let price = hourly_price(products.get(part).ok_or_else(|| format!("no product `{part}`"))?)?;
        match kind {
            "ocpu" => {
                let vcpus = if arch == CpuArch::Arm {
                    quantity
                } else {
                    quantity * 2
                };
                // GPU shapes are priced per GPU-hour under this product.
                cpu = Some((
                    vcpus,
                    if gpus.is_some() {
                        0.0
                    } else {
                        price * quantity as f64
                    },
                ));
                if let Some(count) = gpus {
                    gpu_price = price * count as f64;
                    has_gpu = true;
                }
            }
            "memory" => memory = Some((quantity, price * quantity as f64)),
            other => return Err(format!("unknown product type `{other}`")),
        }
    }
    let (vcpus, cpu_price) = cpu.ok_or("no ocpu product")?;
    let (gb, memory_price) = memory.ok_or("no memory product")?;
    let mut offer = Item {
        price: cpu_price + memory_price + gpu_price,
        cpu: vcpus,
        memory: gb as f64,
        cpu_arch: arch,
        ..Item::new(Provider::Oci, name, "")
    };
    if has_gpu {
        let complete = (|| Some((gpu_name?, vendor_of(gpu_name?)?, gpu_memory(shape, name)?, gpus?)))();
        let (model, vendor, gib, count) = complete
            .filter(|_| gpu_price != 0.0)
            .ok_or("incomplete GPU data")?;
        offer.gpu_name = Some(model.to_owned());
        offer.gpu_vendor = Some(vendor);
        offer.gpu_memory = Some(gib);
        offer.gpu_count = count;
    }
    Ok(offer)
}

fn hourly_price(product: &Value) -> Result<f64, String> {
    let part = product.text("partNumber").unwrap_or_default();
    if product.text("billingModel") != Some("UCM") || product.text("pricetype") != Some("HOUR") {
        return Err(format!("product `{part}` is not sold by the hour"));
    }
    let dollars = product
        .list("currencyCodeLocalizations")
        .iter()
        .find(|prices| prices.text("currencyCode") == Some("USD"))
        .ok_or_else(|| format!("product `{part}` has no price in USD"))?;
    match dollars.list("prices") {
        [price] if price.text("model") == Some("PAY_AS_YOU_GO") => price
            .number("value")
            .ok_or_else(|| format!("product `{part}` has no value")),
        _ => Err(format!(
            "product `{part}` has not exactly one pay-as-you-go price"
        )),
    }
}

fn gpu_memory(shape: &Value, name: &str) -> Option<f64> {
    for (part, gib) in [(".MI355X.", 288.0), (".GB200.", 192.0), (".GB300.", 278.0)] {
        if name.contains(part) {
            return Some(gib);
        }
    }
    let (all, count) = (shape.int("gpuMemoryQty")?, shape.int("gpuQty")?);
    (all != 0 && count != 0).then(|| all as f64 / count as f64)
}

fn gpu_name(shape: &str) -> Option<&'static str> {
    let upper = shape.to_uppercase();
    let parts: Vec<&str> = upper.split(['.', '-']).collect();
    for (part, name) in [
        ("GPU4", "A100"),
        ("GPU3", "V100"),
        ("GPU2", "P100"),
        ("RTXPRO", "RTXPRO6000"),
    ] {
        if parts.contains(&part) {
            return Some(name);
        }
    }
    let at = parts.iter().position(|part| *part == "GPU")?;
    find_of(parts.get(at + 1)?, &[Vendor::Nvidia, Vendor::Amd]).map(|known| known.name)
}

fn cpu_arch(shape: &Value, name: &str, gpu_name: Option<&str>) -> CpuArch {
    // The estimator is wrong about these.
    if [".GPU4.", ".GPU.A10.", ".GPU.A100-v2."]
        .iter()
        .any(|part| name.contains(part))
    {
        return CpuArch::X86;
    }
    let is_arm =
        gpu_name.is_some_and(is_nvidia_superchip) || shape.at("processorType").text("value") == Some("arm");
    if is_arm { CpuArch::Arm } else { CpuArch::X86 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_from_shape_names() {
        for (shape, name) in [
            ("BM.GPU4.8", Some("A100")),
            ("VM.GPU3.1", Some("V100")),
            ("BM.GPU.H100.8", Some("H100")),
            ("BM.GPU.A100-v2.8", Some("A100")),
            ("BM.GPU.RTXPRO.8", Some("RTXPRO6000")),
            ("BM.GPU.MI300X.8", Some("MI300X")),
            ("VM.Standard.E4.Flex", None),
            ("BM.GPU.XYZ.8", None),
        ] {
            assert_eq!(gpu_name(shape), name, "{shape}");
        }
    }
}
