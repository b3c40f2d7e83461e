use std::collections::BTreeSet;

use dstack_backend::{compute_error, vendor_offers};
use dstack_catalog::{Item, Provider, Vendor, accelerators, tell_not_offered};
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use serde_json::Value;

use crate::Seeweb;
use crate::client::{Availability, Plan};

const MIB_OF_GIB: f64 = 1024.0;

/// Images with drivers for GPUs of NVIDIA, the best first.
const NVIDIA_IMAGES: [&str; 2] = ["ubuntu-2204-uefi-nvidia-driver", "ubuntu-2204-nvidia-driver"];

/// What labels of other vendors' accelerators have in them, for which there is no image.
const OTHER_VENDORS: [&str; 6] = ["AMD", "INTEL", "MI3", "TENSTORRENT", "GRAYSKULL", "WORMHOLE"];

/// GiB of models whose labels do not say it, and which the table of GPUs does not have.
const MEMORIES: [(&str, f64); 1] = [("A30", 24.0)];

/// What the vendor sells, as it is looked up in.
#[derive(Debug)]
pub(crate) struct Sold {
    rows: VendorRows,
    availabilities: Vec<Availability>,
}

impl Sold {
    fn new(plans: &[Plan], availabilities: Vec<Availability>) -> Self {
        Self {
            rows: VendorRows::new(plans.iter().flat_map(rows).collect()),
            availabilities,
        }
    }

    /// The plan, if one of it is free in the region.
    fn free(&self, plan: &str, region: &str) -> Option<&Availability> {
        let found = self.availabilities.iter().find(|found| found.name == plan)?;
        let mut regions = found.region_availables.iter();
        regions.any(|free| free.region == region).then_some(found)
    }

    /// The image that machines of a plan get; an error where none is free in the region, or none has drivers.
    pub(crate) fn image(&self, plan: &str, region: &str) -> Result<&'static str, ComputeError> {
        let free = self
            .free(plan, region)
            .ok_or_else(|| ComputeError::NoCapacity(format!("Seeweb has no {plan} in {region} now")))?;
        let has = |image: &&&str| {
            let mut images = free.os_availables.iter();
            images.any(|known| known.name == **image && known.active_flag != Some(false))
        };
        let image = NVIDIA_IMAGES.iter().find(has);
        image.copied().ok_or_else(|| {
            ComputeError::Refused(format!(
                "Seeweb has no image of Ubuntu with NVIDIA's drivers for {plan}"
            ))
        })
    }
}

impl Seeweb {
    /// What the vendor sells, with what is free now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let sold = self.sold().await?;
        let regions = self.regions.as_deref();
        let offers = vendor_offers(&sold.rows, BackendType::Seeweb, regions, requirements)?;
        let with_availability = |offer: InstanceOffer| {
            let availability = match sold.free(&offer.instance.name, &offer.region) {
                Some(_) => InstanceAvailability::Available,
                None => InstanceAvailability::NotAvailable,
            };
            offer.with_availability(availability, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }

    pub(crate) async fn fetch_sold(&self) -> Result<Sold, ComputeError> {
        let plans = self.client.plans().await;
        let plans = plans.map_err(|error| compute_error(&error))?;
        let availabilities = self.client.availabilities().await;
        let availabilities = availabilities.map_err(|error| compute_error(&error))?;
        Ok(Sold::new(&plans, availabilities))
    }
}

/// A row for each region that has the plan; none of plans without GPUs, for which dstack 0.22.5 knows no image.
fn rows(plan: &Plan) -> Vec<Item> {
    let Some(row) = row(plan).filter(|_| plan.available != Some(false)) else {
        if let Some(label) = plan.gpu_label.as_deref().filter(|label| gpu(label).is_none()) {
            let why = format!("no image is known for {label}, or nobody tells its memory");
            tell_not_offered("Seeweb", &plan.name, &why);
        }
        return Vec::new();
    };
    let regions = plan.available_regions.iter();
    let regions: BTreeSet<&str> = regions.map(|region| region.location.trim()).collect();
    let named = regions.into_iter().filter(|region| !region.is_empty());
    named
        .map(|region| Item {
            location: region.to_owned(),
            ..row.clone()
        })
        .collect()
}

fn row(plan: &Plan) -> Option<Item> {
    let (name, memory) = gpu(plan.gpu_label.as_deref()?)?;
    let row = Item {
        price: number(&plan.hourly_price)?,
        cpu: whole(number(&plan.cpu)?),
        memory: number(&plan.ram)? / MIB_OF_GIB,
        disk_size: Some(number(&plan.disk)?),
        gpu_count: whole(number(&plan.gpu)?),
        gpu_name: Some(name),
        gpu_memory: Some(memory),
        gpu_vendor: Some(Vendor::Nvidia),
        ..Item::new(Provider::Private, &*plan.name, "")
    };
    (row.gpu_count > 0 && row.cpu > 0 && row.memory > 0.0).then_some(row)
}

/// Model and GiB of `NVIDIA RTX PRO 6000 96GB`; of models that the table of GPUs does not have, only with their memory.
fn gpu(label: &str) -> Option<(String, f64)> {
    let label = label.to_uppercase();
    if OTHER_VENDORS.iter().any(|other| label.contains(other)) {
        return None;
    }
    let (mut model, mut memory) = (String::new(), None);
    for word in label.replace(" GB", "GB").split_whitespace() {
        match word.strip_suffix("GB").and_then(|size| size.parse().ok()) {
            Some(size) => memory = Some(size),
            None if word == "NVIDIA" => {}
            None => model.push_str(word),
        }
    }
    // `RTX A6000` is `A6000` in the table.
    let names = [Some(model.as_str()), model.strip_prefix("RTX")];
    let known = names
        .into_iter()
        .flatten()
        .find_map(|name| accelerators::find_of(name, &[Vendor::Nvidia]));
    match known {
        Some(known) => Some((
            known.name.to_owned(),
            memory.unwrap_or(f64::from(known.memory_gib)),
        )),
        None => {
            let told = MEMORIES.iter().find(|(name, _)| *name == model);
            let memory = memory.or(told.map(|(_, gib)| *gib))?;
            Some((model, memory))
        }
    }
}

/// The first number in a text, or the number.
fn number(value: &Value) -> Option<f64> {
    let Value::String(text) = value else {
        return value.as_f64();
    };
    let start = text.find(|letter: char| letter.is_ascii_digit())?;
    let rest = text.get(start..)?;
    let is_part = |letter: char| letter.is_ascii_digit() || letter == '.';
    let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
    rest.get(..end)?.trim_end_matches('.').parse().ok()
}

#[allow(clippy::cast_possible_truncation)] // of CPUs and GPUs
const fn whole(number: f64) -> i64 {
    number as i64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_are_read() {
        for (label, model) in [
            ("A30", Some(("A30", 24.0))),
            ("L4 24GB", Some(("L4", 24.0))),
            ("L40s 48GB", Some(("L40S", 48.0))),
            ("NVIDIA A100 80GB", Some(("A100", 80.0))),
            ("H200 141GB", Some(("H200", 141.0))),
            ("RTX A6000 48GB", Some(("A6000", 48.0))),
            ("RTX 6000 24 GB", Some(("RTX6000", 24.0))),
            ("RTX PRO 6000 96GB", Some(("RTXPRO6000", 96.0))),
            ("X900 300GB", Some(("X900", 300.0))),
            ("X900", None),
            ("AMD MI300X 192GB", None),
            ("MI300 192GB", None),
            ("Tenstorrent Grayskull e150 8GB", None),
        ] {
            let model = model.map(|(name, memory)| (name.to_owned(), memory));
            assert_eq!(gpu(label), model, "{label}");
        }
    }

    #[test]
    fn numbers_may_be_texts() {
        for (value, expected) in [
            (json!("16"), Some(16.0)),
            (json!("120.5 GB"), Some(120.5)),
            (json!("x 4."), Some(4.0)),
            (json!(2.62), Some(2.62)),
            (json!("none"), None),
            (json!(null), None),
        ] {
            assert_eq!(number(&value), expected, "{value}");
        }
    }

    #[test]
    fn what_is_not_sold_is_no_offer() {
        let plan = |more: &Value| {
            let mut plan = json!({"name": "ECS1GPU6", "cpu": "16", "ram": "122880", "disk": "1000", "gpu": "1",
                "gpu_label": "H100 80GB", "hourly_price": 2.62, "available": true,
                "available_regions": [{"location": "it-fr2"}, {"location": "it-mi2"}, {"location": "it-fr2"}]});
            for (name, field) in more.as_object().unwrap() {
                plan[name] = field.clone();
            }
            rows(&serde_json::from_value(plan).unwrap())
        };
        let all = plan(&json!({}));
        let places: Vec<&str> = all.iter().map(|row| row.location.as_str()).collect();
        assert_eq!(places, ["it-fr2", "it-mi2"]);
        assert_eq!(
            (all[0].memory, all[0].disk_size, all[0].price),
            (120.0, Some(1000.0), 2.62)
        );
        for more in [
            json!({"available": false}),
            json!({"gpu_label": null, "gpu": null}),
            json!({"gpu": "0"}),
            json!({"hourly_price": null}),
        ] {
            assert_eq!(plan(&more), [], "{more}");
        }
    }
}
