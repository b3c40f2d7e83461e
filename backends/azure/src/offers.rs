//! What can be had: sizes of the catalogue, where the subscription may have them, within its quotas.

use std::collections::{BTreeSet, HashMap};

use dstack_backend::find_offers;
use dstack_catalog::Offer;
use dstack_catalog_offers::DiskSize;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime, Resources};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;

use crate::Azure;
use crate::client::{COMPUTE, Client, SKUS};
use crate::errors::AzureError;

/// Sizes that are tested (dstack 0.22.5): begin and end, with the number of CPUs in between.
const SIZES: &[(&str, &[&str])] = &[
    ("D", &["s_v6"]),
    ("E", &["s_v6", "is_v6"]),
    ("F", &["s_v2"]),
    (
        "NC",
        &["s_v3", "as_T4_v3", "ads_A100_v4", "ads_H100_v5", "adis_H100_v5"],
    ),
    ("ND", &["rs_v2", "asr_v4", "amsr_A100_v4", "isr_H200_v5"]),
    ("NV", &["ads_A10_v5", "adms_A10_v5"]),
];

/// Sizes of disks: images need 30 GB.
const DISKS: Range<Memory> = Range {
    min: Some(Memory::from_gb(30.0)),
    max: Some(Memory::from_gb(4095.0)),
};

/// Regions that are asked at the same time.
pub(crate) const PARALLEL: usize = 8;

/// Quotas of all sizes together, and of spot machines, which count against this one only.
const ALL_CORES: &str = "cores";
const SPOT_CORES: &str = "lowPriorityCores";

/// What the subscription may have in a region.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    /// Sizes, with the family whose quota they count against.
    sizes: HashMap<String, String>,
    /// CPUs that are left, by quota (in lower case). Empty: they are not known.
    left: HashMap<String, i64>,
}

/// What Azure sells in a region.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sku {
    name: String,
    resource_type: String,
    #[serde(default)]
    family: String,
    #[serde(default)]
    restrictions: Vec<Restriction>,
}

#[derive(Deserialize)]
struct Restriction {
    #[serde(rename = "type", default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    current_value: i64,
    limit: i64,
    name: UsageName,
}

#[derive(Deserialize)]
struct UsageName {
    value: String,
}

/// All that is sold in a region. The subscription tells, not a resource group.
pub(crate) async fn list_skus(client: &Client, region: &str) -> Result<Vec<Sku>, AzureError> {
    let path = client.path("providers/Microsoft.Compute/skus");
    client
        .list(&path, SKUS, Some(&format!("location eq '{region}'")))
        .await
}

impl Azure {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let offers = find_offers(
            &self.kind.env.catalog,
            BackendType::Azure,
            Some(&self.regions),
            requirements,
            &|row: &Offer<'_>| is_supported(row.instance_name()),
            &|_| DiskSize::Configurable(DISKS),
        )?;
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let stock = self.stock.get(|| self.fetch_stock()).await?;
        let with_availability = |offer: InstanceOffer| {
            let stock = stock.get(&*offer.region)?;
            let availability = match stock.has(&offer.instance.name, &offer.instance.resources) {
                true => InstanceAvailability::Unknown,
                false => InstanceAvailability::NoQuota,
            };
            Some(offer.with_availability(availability, InstanceRuntime::Shim))
        };
        Ok(offers.into_iter().filter_map(with_availability).collect())
    }

    /// Of regions that do not answer nothing is known: there is nothing to be had.
    async fn fetch_stock(&self) -> Result<HashMap<String, Stock>, ComputeError> {
        let regions: BTreeSet<String> = self.regions.iter().cloned().collect();
        let asked = stream::iter(regions).map(|region| async move {
            let told = self.fetch_region(&region).await;
            (region, told)
        });
        let told: Vec<_> = asked.buffer_unordered(PARALLEL).collect().await;
        let (mut stock, mut failed) = (HashMap::new(), None);
        for (region, told) in told {
            match told {
                Ok(told) => drop(stock.insert(region, told)),
                Err(error) => {
                    tracing::warn!(region, %error, "Azure does not tell what can be had there");
                    failed = Some(error);
                }
            }
        }
        match failed.filter(|_| stock.is_empty()) {
            Some(error) => Err(error),
            None => Ok(stock),
        }
    }

    async fn fetch_region(&self, region: &str) -> Result<Stock, ComputeError> {
        let skus = list_skus(&self.client, region).await;
        let skus = skus.map_err(|error| error.compute_error())?;
        let is_open = |sku: &Sku| sku.resource_type == "virtualMachines" && !is_restricted(&sku.restrictions);
        let sizes = skus.into_iter().filter(is_open).map(|sku| (sku.name, sku.family));
        let path = self.client.path(format_args!(
            "providers/Microsoft.Compute/locations/{region}/usages"
        ));
        let usages = self.client.list::<Usage>(&path, COMPUTE, None).await;
        // A role may not have the right: whether there is enough shows when it is tried.
        let usages = usages.unwrap_or_else(|error| {
            tracing::debug!(region, %error, "the quotas of Azure are not known");
            Vec::new()
        });
        let left = usages.into_iter().map(|usage| {
            let left = usage.limit.saturating_sub(usage.current_value);
            (usage.name.value.to_ascii_lowercase(), left)
        });
        Ok(Stock {
            sizes: sizes.collect(),
            left: left.collect(),
        })
    }
}

impl Stock {
    fn has(&self, size: &str, resources: &Resources) -> bool {
        let Some(family) = self.sizes.get(size) else {
            return false;
        };
        let quotas: &[&str] = match resources.spot {
            true => &[SPOT_CORES],
            false => &[ALL_CORES, family],
        };
        quotas.iter().all(|quota| {
            let left = self.left.get(&quota.to_ascii_lowercase());
            left.is_none_or(|left| resources.cpus <= *left)
        })
    }
}

/// One that is restricted in some zones may be had in others: machines name no zone.
fn is_restricted(restrictions: &[Restriction]) -> bool {
    restrictions.iter().any(|restriction| restriction.kind != "Zone")
}

fn is_supported(size: &str) -> bool {
    let is_one = |(begin, ends): &(&str, &[&str])| {
        let rest = size
            .strip_prefix("Standard_")
            .and_then(|rest| rest.strip_prefix(begin));
        let end = rest.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        rest.zip(end)
            .is_some_and(|(rest, end)| rest.len() > end.len() && ends.contains(&end))
    };
    SIZES.iter().any(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tested_sizes_are_offered() {
        for (size, expected) in [
            ("Standard_D2s_v6", true),
            ("Standard_E96is_v6", true),
            ("Standard_F72s_v2", true),
            ("Standard_NC6s_v3", true),
            ("Standard_NC64as_T4_v3", true),
            ("Standard_NC40ads_H100_v5", true),
            ("Standard_NC80adis_H100_v5", true),
            ("Standard_ND96asr_v4", true),
            ("Standard_ND96amsr_A100_v4", true),
            ("Standard_ND96isr_H200_v5", true),
            ("Standard_NV36adms_A10_v5", true),
            ("Standard_ND40rs_v2", true),
            ("Standard_Ds_v6", false),
            ("Standard_D2ps_v6", false),
            ("Standard_D2s_v5", false),
            ("Standard_NC24rs_v3", false),
            ("Basic_A1", false),
        ] {
            assert_eq!(is_supported(size), expected, "{size}");
        }
    }
}
