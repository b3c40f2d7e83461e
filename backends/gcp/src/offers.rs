//! What can be had: rows of the catalogue, one offer for all zones of a region, within the quotas of the project.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_backend::find_offers;
use dstack_catalog::Offer;
use dstack_catalog_offers::DiskSize;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime, Resources};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use serde_json::{Map, Value};

use crate::Gcp;
use crate::client::Region;
use crate::errors::GcpError;
use crate::instance::is_known;
use crate::reservations::reserved;
use crate::tpu::{hosts_of, is_on_one_host, is_tpu};

/// Types whose names begin so are known to work (dstack 0.22.5); others only with GPUs.
const TYPES: &[&str] = &[
    "m4-",
    "c4-",
    "n4-",
    "h3-",
    "n2-",
    "e2-medium",
    "e2-standard-",
    "e2-highmem-",
    "e2-highcpu-",
    "m1-",
    "a2-",
    "a3-",
    "g2-",
];

/// GPUs that are not offered.
const UNSUPPORTED_GPUS: &[&str] = &["K80", "P4", "P100"];

/// GPUs whose quotas are not in the list.
const WITHOUT_QUOTAS: &[&str] = &["B200", "H100", "RTXPRO6000"];

/// Sizes of disks: images have 20 GB, and their file system has a limit.
const DISKS: Range<Memory> = Range {
    min: Some(Memory::from_gb(20.0)),
    max: Some(Memory::from_gb(32.0 * 1024.0)),
};

/// The disk of a TPU, whose size cannot be chosen ("Manage TPU resources").
pub(crate) const TPU_DISK_GB: f64 = 100.0;

const TPU_DISK: Range<Memory> = Range {
    min: Some(Memory::from_gb(TPU_DISK_GB)),
    max: Some(Memory::from_gb(TPU_DISK_GB)),
};

/// What of each quota is left, by region and metric; `None`: Google cannot say now.
pub(crate) type Quotas = HashMap<String, Option<HashMap<String, f64>>>;

/// What makes an offer another one than in another zone.
type Key = (String, bool, Option<String>, usize, String);

impl Gcp {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let is_reserved = requirements.reservation.is_some();
        let rows = find_offers(
            &self.kind.env.catalog,
            BackendType::Gcp,
            None,
            requirements,
            &|row: &Offer<'_>| {
                let is_region = self
                    .regions
                    .iter()
                    .any(|region| region == region_of(row.location()));
                is_region && self.is_supported(row.instance_name(), row.gpu_name())
            },
            &|row: &Offer<'_>| {
                DiskSize::Configurable(match is_tpu(row.instance_name()) {
                    true => TPU_DISK,
                    false => DISKS,
                })
            },
        )?;
        let mut rows = rows;
        // What is only to be had in advance, for some days, is for reservations.
        rows.retain(|row| {
            let mut gpus = row.instance.resources.gpus.iter();
            let can_be_made = gpus.all(|gpu| is_tpu(&gpu.name) || is_known(gpu));
            can_be_made && (is_reserved || !is_in_advance(&row.backend_data))
        });
        let mut offers = by_region(rows);
        let slices = by_region(self.find_slices(requirements)?);
        if !slices.is_empty() {
            offers.extend(slices);
            offers.sort_by(|(one, _), (other, _)| one.price.total_cmp(&other.price));
        }
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let quotas = self.quotas().await?;
        let with_availability = |(offer, zones): (InstanceOffer, Vec<String>)| {
            let left = quotas.get(&*offer.region);
            let is_unknown = left.is_some_and(Option::is_none);
            let left = left.and_then(Option::as_ref);
            let availability = match is_unknown || is_within(left, &offer.instance.resources) {
                true => InstanceAvailability::Unknown,
                false => InstanceAvailability::NoQuota,
            };
            let group_size = hosts_of(&offer.instance.name).filter(|hosts| *hosts > 1);
            let runtime = match group_size {
                Some(_) => InstanceRuntime::Runner,
                None => InstanceRuntime::Shim,
            };
            InstanceOfferWithAvailability {
                availability_zones: Some(zones),
                group_size,
                ..offer.with_availability(availability, runtime)
            }
        };
        let offers = offers.into_iter().map(with_availability);
        match &requirements.reservation {
            None => Ok(offers.collect()),
            Some(name) => {
                let reservation = self.reservation(name).await?;
                Ok(offers.filter_map(|offer| reserved(offer, &reservation)).collect())
            }
        }
    }

    fn is_supported(&self, machine_type: &str, gpu: Option<&str>) -> bool {
        if is_tpu(machine_type) {
            return self.config.tpu.unwrap_or(false) && is_on_one_host(machine_type);
        }
        let is_known = TYPES.iter().any(|start| machine_type.starts_with(start));
        is_known || gpu.is_some_and(|gpu| !UNSUPPORTED_GPUS.contains(&gpu))
    }

    async fn quotas(&self) -> Result<Arc<Quotas>, ComputeError> {
        let fetch = async || {
            let regions = self.client.list::<Region>(None, "regions", None).await;
            let regions = regions.map_err(GcpError::compute_error)?;
            let left = |region: Region| {
                let is_known = region.quota_status_warning.is_none() && !region.quotas.is_empty();
                let quotas: HashMap<String, f64> = region
                    .quotas
                    .into_iter()
                    .map(|quota| (quota.metric, quota.limit - quota.usage))
                    .collect();
                (region.name, is_known.then_some(quotas))
            };
            Ok(regions.into_iter().map(left).collect())
        };
        self.quotas.get(fetch).await
    }
}

/// The region of a zone.
pub(crate) fn region_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}

fn is_in_advance(data: &Map<String, Value>) -> bool {
    data.get("is_dws_calendar_mode").is_some_and(|mode| *mode == true)
}

/// Rows of zones as offers of regions, with their zones. The first price of a region is that of all its zones.
fn by_region(rows: Vec<InstanceOffer>) -> Vec<(InstanceOffer, Vec<String>)> {
    let mut offers: Vec<(InstanceOffer, Vec<String>)> = Vec::new();
    let mut known: HashMap<Key, usize> = HashMap::new();
    for mut row in rows {
        let zone = row.region.to_string();
        let region = region_of(&zone).to_owned();
        let resources = &row.instance.resources;
        let gpu = resources.gpus.first().map(|gpu| gpu.name.clone());
        let key = (
            row.instance.name.clone(),
            resources.spot,
            gpu,
            resources.gpus.len(),
            region.clone(),
        );
        match known.get(&key).and_then(|at| offers.get_mut(*at)) {
            Some((_, zones)) => zones.push(zone),
            None => {
                known.insert(key, offers.len());
                row.region = region.into();
                offers.push((row, vec![zone]));
            }
        }
    }
    offers
}

/// Whether the project may have so many GPUs.
fn is_within(left: Option<&HashMap<String, f64>>, resources: &Resources) -> bool {
    let Some(gpu) = resources.gpus.first() else {
        return true;
    };
    if WITHOUT_QUOTAS.contains(&gpu.name.as_str()) || is_tpu(&gpu.name) {
        return true;
    }
    let size = match (gpu.name.as_str(), gpu.memory_mib / 1024) {
        ("A100", 80) => "_80GB",
        _ => "",
    };
    let kind = if resources.spot { "PREEMPTIBLE_" } else { "" };
    let metric = format!("{kind}NVIDIA_{}{size}_GPUS", gpu.name);
    let left = left
        .and_then(|quotas| quotas.get(&metric))
        .copied()
        .unwrap_or(0.0);
    #[allow(clippy::cast_precision_loss)] // a few
    let count = resources.gpus.len() as f64;
    count <= left
}

#[cfg(test)]
mod tests {
    use dstack_model::instances::{Disk, Gpu};

    use super::*;

    #[test]
    fn gpus_count_against_the_quota_of_their_kind() {
        let left = |metric: &str, left: f64| HashMap::from([(metric.to_owned(), left)]);
        let of = |name: &str, gib: i64, count: usize, spot: bool| Resources {
            gpus: vec![
                Gpu {
                    name: name.to_owned(),
                    memory_mib: gib * 1024,
                    vendor: None,
                };
                count
            ],
            spot,
            cpus: 8,
            memory_mib: 32 * 1024,
            disk: Disk { size_mib: 100 * 1024 },
            cpu_arch: None,
            description: String::new(),
        };
        let all = left("NVIDIA_A100_80GB_GPUS", 2.0);
        assert!(is_within(Some(&all), &of("A100", 80, 2, false)));
        assert!(!is_within(Some(&all), &of("A100", 80, 3, false)));
        assert!(!is_within(Some(&all), &of("A100", 40, 1, false)));
        assert!(!is_within(Some(&all), &of("A100", 80, 1, true)));
        assert!(is_within(
            Some(&left("PREEMPTIBLE_NVIDIA_T4_GPUS", 1.0)),
            &of("T4", 16, 1, true)
        ));
        assert!(is_within(None, &of("H100", 80, 8, false)));
        assert!(!is_within(None, &of("T4", 16, 1, false)));
        assert!(is_within(None, &of("T4", 16, 0, false)));
    }
}
