use std::collections::BTreeSet;

use dstack_backend::find_offers;
use dstack_catalog::{Catalog, Filter, Offer};
use dstack_catalog_offers::DiskSize;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use serde_json::{Map, Value};

use crate::Nebius;

/// Platforms that the image is known to work on (dstack 0.22.5).
const PLATFORMS: &[&str] = &[
    "gpu-h100-sxm",
    "gpu-h200-sxm",
    "gpu-b200-sxm",
    "gpu-b200-sxm-a",
    "gpu-l40s-a",
    "gpu-l40s-d",
    "gpu-rtx6000",
    "cpu-d3",
    "cpu-e2",
];

/// Sizes of boot disks: the image needs 40 GB, and disks of the type have 8192 at most.
const DISKS: Range<Memory> = Range {
    min: Some(Memory::from_gb(40.0)),
    max: Some(Memory::from_gb(8192.0)),
};

impl Nebius {
    /// Rows of the catalogue in the regions that have a project. What is free, or within the quota, the API does not tell.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let regions = self.regions().await?;
        if regions.is_empty() {
            return Ok(Vec::new());
        }
        let offers = find_offers(
            &self.kind.env.catalog,
            BackendType::Nebius,
            Some(&regions),
            requirements,
            &|row: &Offer<'_>| platform_and_preset(row.instance_name()).is_some(),
            &|_| DiskSize::Configurable(DISKS),
        )?;
        let capped = offers.into_iter().map(|mut offer| {
            if let Some(cap) = price_cap(&offer) {
                offer.price = cap * units(&offer);
            }
            offer
        });
        let within = |offer: &InstanceOffer| requirements.max_price.is_none_or(|most| offer.price <= most);
        Ok(capped
            .filter(within)
            .map(|offer| offer.with_availability(InstanceAvailability::Unknown, InstanceRuntime::Shim))
            .collect())
    }
}

/// `gpu-h100-sxm 8gpu-128vcpu-1600gb`, of a platform that is known.
pub(crate) fn platform_and_preset(instance_type: &str) -> Option<(&str, &str)> {
    instance_type
        .split_once(' ')
        .filter(|(platform, _)| PLATFORMS.contains(platform))
}

/// What a GPU may cost, or the machine where it has none: what the offer shows is the most that is paid. `None`: it is no spot machine, or
/// one whose price does not move.
fn price_cap(offer: &InstanceOffer) -> Option<f64> {
    cap_of(
        offer.instance.resources.spot,
        offer.price / units(offer),
        &offer.backend_data,
    )
}

/// The same, as it is sent.
pub(crate) fn sent_price_cap(offer: &InstanceOfferWithAvailability) -> Option<String> {
    let resources = &offer.instance.resources;
    let per_unit = offer.price / count(resources.gpus.len());
    cap_of(resources.spot, per_unit, &offer.backend_data).map(|cap| format!("{cap:.3}"))
}

/// Policies take three decimals at most: more are rounded up.
fn cap_of(is_spot: bool, per_unit: f64, data: &Map<String, Value>) -> Option<f64> {
    let is_flat = data.get("is_preemptible_flat_rate").and_then(Value::as_bool);
    // What is short of a mill by the way numbers are written is no part of one.
    let cap = (per_unit * 1000.0 - 1e-6).ceil() / 1000.0;
    (is_spot && !is_flat.unwrap_or(false)).then_some(cap)
}

fn units(offer: &InstanceOffer) -> f64 {
    count(offer.instance.resources.gpus.len())
}

fn count(gpus: usize) -> f64 {
    u32::try_from(gpus.max(1)).map_or(1.0, f64::from)
}

/// InfiniBand fabrics of a row of the catalogue.
pub(crate) fn fabrics_of(data: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let listed = data.get("fabrics").and_then(Value::as_array);
    listed.into_iter().flatten().filter_map(Value::as_str)
}

/// The fabrics that a type of machines has in a region; `None`: any type, any region.
pub(crate) fn known_fabrics(catalog: &Catalog, of: Option<(&str, &str)>) -> BTreeSet<String> {
    let filter = Filter {
        provider: Some(vec!["nebius".to_owned()]),
        ..Filter::default()
    };
    let read = |rows: dstack_catalog::Offers<'_>| {
        let rows = rows.filter(|row| {
            of.is_none_or(|(name, region)| row.instance_name() == name && row.location() == region)
        });
        rows.flat_map(|row| {
            let data = serde_json::from_str::<Map<String, Value>>(row.provider_data()).unwrap_or_default();
            fabrics_of(&data).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
    };
    catalog.query(&filter, read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn caps_are_rounded_up_for_each_gpu() {
        let data = |is_flat: bool| {
            json!({"is_preemptible_flat_rate": is_flat})
                .as_object()
                .cloned()
                .unwrap()
        };
        for (price, cap) in [
            (1.25, 1.25),
            (1.5484, 1.549),
            (1.0001, 1.001),
            (0.3 * 8.0 / 8.0, 0.3),
        ] {
            assert_eq!(cap_of(true, price, &data(false)), Some(cap));
            // Rounded once more, it stays.
            assert_eq!(cap_of(true, cap * 8.0 / 8.0, &data(false)), Some(cap));
        }
        assert_eq!(cap_of(true, 1.0, &data(true)), None);
        assert_eq!(cap_of(false, 1.0, &data(false)), None);
    }

    #[test]
    fn only_known_platforms_are_offered() {
        let known = platform_and_preset("gpu-h100-sxm 8gpu-128vcpu-1600gb");
        assert_eq!(known, Some(("gpu-h100-sxm", "8gpu-128vcpu-1600gb")));
        assert_eq!(platform_and_preset("gpu-gb200 4gpu-144vcpu-860gb"), None);
        assert_eq!(platform_and_preset("cpu-d3"), None);
    }
}
