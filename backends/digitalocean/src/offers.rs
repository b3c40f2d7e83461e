use dstack_backend::{compute_error, vendor_offers};
use dstack_catalog::{Item, Provider, Vendor, accelerators, tell_not_offered};
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use crate::DigitalOcean;
use crate::client::{GpuInfo, Size};

const MIB_OF_GIB: f64 = 1024.0;

/// A disk that is empty after each start is none that is asked for.
const SCRATCH_DISK: &str = "scratch";

impl DigitalOcean {
    /// What the vendor says can be made now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        // As in dstack 0.22.5: an empty list is none of them.
        if self.regions.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let fetch = async || {
            let sizes = self.client.sizes().await;
            let sizes = sizes.map_err(|error| compute_error(&error))?;
            Ok(VendorRows::new(sizes.iter().flat_map(rows).collect()))
        };
        let rows = self.rows.get(fetch).await?;
        let offers = vendor_offers(&rows, self.kind.kind(), self.regions.as_deref(), requirements)?;
        let available = InstanceAvailability::Available;
        let offers = offers.into_iter();
        Ok(offers
            .map(|offer| offer.with_availability(available, InstanceRuntime::Shim))
            .collect())
    }
}

/// A row for each region that has the size now; none where it is not known what GPUs it has.
fn rows(size: &Size) -> Vec<Item> {
    if !size.available {
        return Vec::new();
    }
    let Some(row) = row(size) else {
        let why = "DigitalOcean does not tell how much memory its GPUs have, or who makes them";
        tell_not_offered("DigitalOcean", &size.slug, why);
        return Vec::new();
    };
    let at = |region: &String| Item {
        location: region.clone(),
        ..row.clone()
    };
    size.regions.iter().map(at).collect()
}

fn row(size: &Size) -> Option<Item> {
    let lasting = size.disk_info.iter().filter(|disk| disk.kind != SCRATCH_DISK);
    let disk: f64 = lasting.map(|disk| disk.size.amount).sum();
    let row = Item {
        price: size.price_hourly,
        cpu: size.vcpus,
        memory: size.memory / MIB_OF_GIB,
        disk_size: Some(if disk > 0.0 { disk } else { size.disk }),
        ..Item::new(Provider::Private, &*size.slug, "")
    };
    match &size.gpu_info {
        None => Some(row),
        Some(gpus) => {
            let (name, vendor) = gpu(&gpus.model).filter(|_| gpus.count > 0)?;
            Some(Item {
                gpu_count: gpus.count,
                gpu_memory: Some(memory_of_one(gpus, &name)?),
                gpu_name: Some(name),
                gpu_vendor: Some(vendor),
                ..row
            })
        }
    }
}

/// `RTX6000Ada` of NVIDIA from `nvidia_rtx6000_ada`. Models that the table of GPUs does not have keep the vendor's name.
fn gpu(model: &str) -> Option<(String, Vendor)> {
    let (vendor, name) = model.split_once('_')?;
    let name = name.replace('_', "").to_uppercase();
    let known = accelerators::find(&name).next();
    known
        .map(|known| (known.name.to_owned(), known.vendor))
        .or_else(|| Some((name, Vendor::from_name(vendor).ok()?)))
}

/// The vendor tells of all of them together; should it tell of one some day, that is no more than the model has.
#[allow(clippy::cast_precision_loss)] // a number of GPUs
fn memory_of_one(gpus: &GpuInfo, name: &str) -> Option<f64> {
    let told = gpus.vram.as_ref()?.amount;
    let most = accelerators::find(name).map(|known| f64::from(known.memory_gib));
    let is_of_one = most.reduce(f64::max).is_some_and(|most| told <= most);
    Some(match is_of_one {
        true => told,
        false => told / gpus.count as f64,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rows_of(more: &Value) -> Vec<Item> {
        let mut size = json!({"slug": "a", "memory": 245_760, "vcpus": 20, "disk": 720, "price_hourly": 3.39,
            "regions": ["tor1", "nyc2"], "available": true});
        for (name, field) in more.as_object().unwrap() {
            size[name] = field.clone();
        }
        rows(&serde_json::from_value(size).unwrap())
    }

    fn gpus(model: &str, count: i64, memory: i64) -> Value {
        json!({"gpu_info": {"model": model, "count": count, "vram": {"amount": memory, "unit": "gib"}}})
    }

    #[test]
    fn memory_is_that_of_one_gpu() {
        for (model, count, told, name, memory) in [
            ("nvidia_h100", 1, 80, "H100", 80.0),
            ("nvidia_h100", 8, 640, "H100", 80.0),
            ("nvidia_h100", 8, 80, "H100", 80.0),
            ("nvidia_h200", 8, 1128, "H200", 141.0),
            ("nvidia_rtx6000_ada", 1, 48, "RTX6000Ada", 48.0),
            ("amd_mi300x", 8, 1536, "MI300X", 192.0),
            ("amd_mi325x", 8, 2048, "MI325X", 256.0),
            ("nvidia_x900", 4, 400, "X900", 100.0),
        ] {
            let rows = rows_of(&gpus(model, count, told));
            let found = (rows[0].gpu_name.as_deref(), rows[0].gpu_memory);
            assert_eq!(found, (Some(name), Some(memory)), "{model} x {count}");
            assert_eq!(rows[0].gpu_count, count);
        }
        let vendor = |model: &str| {
            rows_of(&gpus(model, 1, 100))
                .first()
                .and_then(|row| row.gpu_vendor)
        };
        assert_eq!(vendor("nvidia_x900"), Some(Vendor::Nvidia));
        assert_eq!(vendor("amd_mi300x"), Some(Vendor::Amd));
        assert_eq!(vendor("somebody_x900"), None, "it cannot be used");
        for odd in [
            json!({}),
            json!({"model": "nvidia_h100", "count": 1}),
            json!({"model": "nvidia_h100"}),
        ] {
            assert_eq!(rows_of(&json!({"gpu_info": odd})), [], "{odd}");
        }
    }

    #[test]
    fn disks_that_last_count() {
        let disk = |kind: &str, amount: i64| json!({"type": kind, "size": {"amount": amount, "unit": "gib"}});
        let disks = json!({"disk_info": [disk("boot", 700), disk("local", 20), disk("scratch", 5120)]});
        assert_eq!(rows_of(&disks)[0].disk_size, Some(720.0));
        assert_eq!(rows_of(&json!({"disk": 80}))[0].disk_size, Some(80.0));
    }

    #[test]
    fn what_cannot_be_made_is_no_offer() {
        let places = |more: &Value| {
            rows_of(more)
                .into_iter()
                .map(|row| row.location)
                .collect::<Vec<_>>()
        };
        assert_eq!(places(&json!({})), ["tor1", "nyc2"]);
        assert_eq!(places(&json!({"available": false})), [""; 0]);
        assert_eq!(places(&json!({"regions": []})), [""; 0]);
    }
}
