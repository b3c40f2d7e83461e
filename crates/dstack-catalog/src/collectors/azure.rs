//! Azure: the public retail price list, region by region; hardware from Resource SKUs or from the catalogue at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use dstack_system::{Secret, env};
use futures_util::{StreamExt, TryStreamExt, stream};
use regex::Regex;
use serde_json::Value;

use super::json::Json;
use crate::collect::sort_by_price;
use crate::http::{Http, HttpError};
use crate::{CollectContext, CollectError, Item, OfflineProvider, Provider, Snapshot, Vendor};

/// Where the price list is.
pub const PRICES_URL: &str = "https://prices.azure.com/api/retail/prices";
const PAGE: usize = 1000;
/// More pages than any region has: a server that never ends is not followed for ever.
const MOST_PAGES: usize = 500;
const PARALLEL: usize = 32;

const FILTERS: [&str; 5] = [
    "serviceName eq 'Virtual Machines'",
    "priceType eq 'Consumption'",
    "contains(productName, 'Windows') eq false",
    "contains(productName, 'Dedicated') eq false",
    "contains(meterName, 'Low Priority') eq false",
];

/// Who may list Resource SKUs.
#[derive(Debug, Clone)]
pub struct Account {
    /// Scheme and host of the management API.
    pub url: String,
    /// Id of the subscription whose SKUs are listed.
    pub subscription: String,
    /// Bearer token, as `az account get-access-token` prints it.
    pub token: Secret,
}

impl Account {
    /// From `AZURE_SUBSCRIPTION_ID` and `AZURE_ACCESS_TOKEN`; `None` unless both are set.
    pub fn from_env() -> Option<Self> {
        Some(Self {
            url: "https://management.azure.com".to_owned(),
            subscription: env::var("AZURE_SUBSCRIPTION_ID")?,
            token: env::var("AZURE_ACCESS_TOKEN")?.into(),
        })
    }
}

/// Collects Azure's offers.
#[derive(Debug)]
pub struct AzureCollector {
    /// Where the price list is.
    pub prices_url: String,
    /// Without one, sizes and regions are those of `known`.
    pub account: Option<Account>,
    /// A catalogue that knows sizes and regions.
    pub known: Arc<Snapshot>,
    /// For the requests.
    pub http: Arc<Http>,
}

/// Offers without place and price, by name; and the regions to ask.
type Specs = (BTreeMap<String, Item>, BTreeSet<String>);

#[async_trait]
impl OfflineProvider for AzureCollector {
    fn provider(&self) -> Provider {
        Provider::Azure
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let failed = CollectError::http(Provider::Azure);
        let (specs, regions) = match &self.account {
            Some(account) => self.resource_skus(account, context).await.map_err(&failed)?,
            None => {
                context
                    .progress
                    .warn("azure: no account is given: only sizes of the catalog at hand are collected");
                self.known_specs()
            }
        };
        context.progress.step(&format!(
            "azure: {} sizes in {} regions",
            specs.len(),
            regions.len()
        ));
        let pages: Vec<Vec<Value>> = stream::iter(regions)
            .map(|region| self.region_prices(region))
            .buffered(PARALLEL)
            .try_collect()
            .await
            .map_err(&failed)?;
        let mut items: Vec<Item> = pages
            .into_iter()
            .flatten()
            .filter_map(|price| priced(&price, &specs))
            .collect();
        sort_by_price(&mut items);
        Ok(items)
    }

    fn publishes(&self, item: &Item) -> bool {
        PUBLISHED.is_match(&item.instance_name)
    }
}

impl AzureCollector {
    fn known_specs(&self) -> Specs {
        let mut specs = BTreeMap::new();
        let mut regions = BTreeSet::new();
        for offer in self
            .known
            .table(Provider::Azure)
            .into_iter()
            .flat_map(|table| table.offers())
        {
            regions.insert(offer.location().to_owned());
            specs
                .entry(offer.instance_name().to_owned())
                .or_insert_with(|| offer.to_item());
        }
        (specs, regions)
    }

    async fn resource_skus(&self, account: &Account, context: &CollectContext) -> Result<Specs, HttpError> {
        let mut url = format!(
            "{}/subscriptions/{}/providers/Microsoft.Compute/skus?api-version=2021-07-01",
            account.url, account.subscription
        );
        let mut specs = BTreeMap::new();
        let mut regions = BTreeSet::new();
        for _ in 0..MOST_PAGES {
            let request = self.http.client()?.get(&url).bearer_auth(account.token.expose());
            let page: Value = self.http.json(request).await?;
            for sku in page
                .list("value")
                .iter()
                .filter(|sku| sku.text("resourceType") == Some("virtualMachines"))
            {
                regions.extend(
                    sku.list("locations")
                        .iter()
                        .filter_map(Value::as_str)
                        .map(str::to_lowercase),
                );
                let name = sku.text("name").unwrap_or_default();
                if is_retired(name) {
                    continue;
                }
                match spec(sku, name) {
                    Some(item) => drop(specs.insert(name.to_owned(), item)),
                    None => context
                        .progress
                        .warn(&format!("azure: skipping {name}: CPU, memory or GPU unknown")),
                }
            }
            match page.text("nextLink") {
                // Never send the token elsewhere.
                Some(next) if !next.is_empty() && next.starts_with(&account.url) => url = next.to_owned(),
                _ => break,
            }
        }
        Ok((specs, regions))
    }

    /// All price rows of a region: pages until the first empty one.
    async fn region_prices(&self, region: String) -> Result<Vec<Value>, HttpError> {
        let filter = format!("{} and armRegionName eq '{region}'", FILTERS.join(" and "));
        let mut rows = Vec::new();
        for page in 0..MOST_PAGES {
            let skip = (page * PAGE).to_string();
            let query = [("$filter", filter.as_str()), ("$skip", skip.as_str())];
            let request = self.http.client()?.get(url_with(&self.prices_url, &query));
            let mut answer: Value = self.http.json(request).await?;
            match answer.get_mut("Items").map(Value::take) {
                Some(Value::Array(items)) if !items.is_empty() => rows.extend(items),
                _ => break,
            }
        }
        Ok(rows)
    }
}

fn url_with(base: &str, query: &[(&str, &str)]) -> String {
    reqwest::Url::parse_with_params(base, query).map_or_else(|_| base.to_owned(), Into::into)
}

fn priced(row: &Value, specs: &BTreeMap<String, Item>) -> Option<Item> {
    let name = row.text("armSkuName").filter(|name| !is_retired(name))?;
    let price = row.number("retailPrice").filter(|price| *price != 0.0)?;
    let spec = specs.get(name)?;
    Some(Item {
        location: row.text("armRegionName")?.to_owned(),
        price,
        spot: row.text("meterName")?.contains("Spot"),
        ..spec.clone()
    })
}

/// An offer without place and price from a Resource SKU.
fn spec(sku: &Value, name: &str) -> Option<Item> {
    let capability = |wanted: &str| {
        let found = sku
            .list("capabilities")
            .iter()
            .find(|one| one.text("name") == Some(wanted))?;
        found.text("value").filter(|value| !value.is_empty())
    };
    let gpus: i64 = capability("GPUs")
        .and_then(|count| count.parse().ok())
        .unwrap_or(0);
    let gpu = if gpus == 0 { None } else { Some(gpu(name)?) };
    Some(Item {
        cpu: capability("vCPUs")?.parse().ok()?,
        memory: capability("MemoryGB")?.parse().ok()?,
        gpu_count: gpus,
        gpu_name: gpu.as_ref().map(|(name, _)| (*name).to_owned()),
        gpu_memory: gpu.and_then(|(_, memory)| memory),
        gpu_vendor: (gpus != 0).then_some(Vendor::Nvidia),
        ..Item::new(Provider::Azure, name, "")
    })
}

#[allow(clippy::expect_used)] // fixed patterns, tried by the tests
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is well formed")
}

/// Sizes of the previous generations. See Microsoft's list of previous-generation sizes.
static RETIRED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"^(Basic_A\d+|Standard_(A\d+|D\d+|DC\d+s|DS\d+|F\d+|F\d+s|G\d+|GS\d+|L\d+s|NC\d+r?|NC\d+r?s_v2|ND\d+r?s|NV\d+|NV\d+s_v2))$",
    )
});

fn is_retired(name: &str) -> bool {
    RETIRED.is_match(name)
}

/// Series that are published.
static PUBLISHED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"^Standard_(D\d+s_v6|E(2|4|8|16|20|32|48|64|96)s_v6|F\d+s_v2|NC\d+s_v3|NC\d+as_T4_v3|NC\d+adi?s_H100_v5|ND\d+rs_v2|ND\d+isr_H200_v5|NV\d+adm?s_A10_v5|NC\d+ads_A100_v4|ND\d+asr_v4|ND\d+amsr_A100_v4|D\d+s_v3|E\d+i?s_v4|E\d+-\d+s_v4)$",
    )
});

/// GPU of a size by its name, and GiB where known. The number in the name decides which part of an A10 it has.
static SERIES: LazyLock<Vec<(Regex, &'static str, Option<f64>)>> = LazyLock::new(|| {
    [
        (r"^Standard_NC(\d+)ads_A100_v4$", "A100", Some(80.0)),
        (r"^Standard_NC(\d+)ads_A10_v4$", "A10", Some(24.0)),
        (r"^Standard_NC(\d+)as_T4_v3$", "T4", Some(16.0)),
        (r"^Standard_NC(\d+)r?s_v3$", "V100", Some(16.0)),
        (r"^Standard_NC(\d+)adi?s_H100_v5$", "H100NVL", Some(94.0)),
        (r"^Standard_ND(\d+)amsr_A100_v4$", "A100", Some(80.0)),
        (r"^Standard_ND(\d+)asr_v4$", "A100", Some(40.0)),
        (r"^Standard_ND(\d+)rs_v2$", "V100", Some(32.0)),
        (r"^Standard_ND(\d+)isr_H200_v5$", "H200", Some(141.0)),
        (r"^Standard_NG(\d+)adm?s_V620_v1$", "V620", None),
        (r"^Standard_NV(\d+)adm?s_A10_v5$", "A10", Some(24.0)),
        (r"^Standard_NV(\d+)as_v4$", "MI25", None),
        (r"^Standard_NV(\d+)s_v3$", "M60", None),
    ]
    .map(|(text, name, memory)| (pattern(text), name, memory))
    .into()
});

fn gpu(size: &str) -> Option<(&'static str, Option<f64>)> {
    let (number, name, memory) = SERIES.iter().find_map(|(series, name, memory)| {
        let number: f64 = series.captures(size)?.get(1)?.as_str().parse().ok()?;
        Some((number, *name, *memory))
    })?;
    let whole = match (name, size.ends_with("_v4")) {
        ("A10", true) => 16.0,
        ("A10", false) => 36.0,
        _ => return Some((name, memory)),
    };
    Some((name, memory.map(|gib| gib * (number / whole).min(1.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_tell_their_gpu() {
        assert_eq!(gpu("Standard_NV6ads_A10_v5"), Some(("A10", Some(4.0))));
        assert_eq!(gpu("Standard_NV72ads_A10_v5"), Some(("A10", Some(24.0))));
        assert_eq!(gpu("Standard_NC8ads_A10_v4"), Some(("A10", Some(12.0))));
        assert_eq!(gpu("Standard_NC24s_v3"), Some(("V100", Some(16.0))));
        assert_eq!(gpu("Standard_NV12s_v3"), Some(("M60", None)));
        assert_eq!(gpu("Standard_D2s_v3"), None);
    }

    #[test]
    fn retired_and_published_series_are_told_apart() {
        for name in [
            "Basic_A1",
            "Standard_NC6",
            "Standard_NC24r",
            "Standard_F16s",
            "Standard_NV12s_v2",
        ] {
            assert!(is_retired(name), "{name}");
        }
        for name in [
            "Standard_F16s_v2",
            "Standard_NC6s_v3",
            "Standard_D2s_v3",
            "Standard_E16-4s_v4",
        ] {
            assert!(!is_retired(name) && PUBLISHED.is_match(name), "{name}");
        }
        assert!(!PUBLISHED.is_match("Standard_E128s_v6"));
    }
}
