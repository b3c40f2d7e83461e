//! What can be had: types of the catalogue, in the zones of the account, within its quotas.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use dstack_backend::find_offers;
use dstack_catalog::Offer;
use dstack_catalog_offers::DiskSize;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;

use crate::Aws;
use crate::ec2::CapacityReservation;

/// Types whose names begin so are known to work: those with a dot are families.
const TYPES: &[&str] = &[
    "m7i.", "c7i.", "r7i.", "t3.", "t2.small", "c5.", "m5.", "p6-b300.", "p6-b200.", "p5.", "p5e.", "p5en.",
    "p4d.", "p4de.", "g7.", "g7e.", "g6.", "g6e.", "gr6.", "g5.", "g4dn.",
];

/// Sizes of disks, in GB: images need 100, gp3 volumes had 16 TB at most for long.
const DISK_GB: (f64, f64) = (100.0, 16.0 * 1024.0);

/// Regions that are asked at the same time.
pub(crate) const PARALLEL: usize = 12;

/// A quota of EC2 in vCPUs, by its code in Service Quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Quota(&'static str);

const STANDARD: Quota = Quota("L-1216C47A");
const P: Quota = Quota("L-417A185B");
const G: Quota = Quota("L-DB2E81BA");
const QUOTAS: [Quota; 3] = [STANDARD, P, G];

/// Quotas of a region, as far as they are known.
pub(crate) type Quotas = HashMap<Quota, f64>;

/// The quota that a type counts against. Quotas of spot instances are others, and are not looked at.
fn quota_of(instance_type: &str) -> Quota {
    match instance_type.as_bytes().first() {
        Some(b'p') => P,
        Some(b'g') => G,
        _ => STANDARD,
    }
}

/// Answer of `GetServiceQuota`.
#[derive(Debug, Deserialize)]
struct QuotaAnswer {
    #[serde(rename = "Quota")]
    quota: QuotaValue,
}

#[derive(Debug, Deserialize)]
struct QuotaValue {
    #[serde(rename = "Value")]
    value: Option<f64>,
}

/// A region, as far as offers depend on it.
#[derive(Debug)]
struct Region {
    zones: Arc<Vec<String>>,
    quotas: Arc<Quotas>,
    /// That is asked for, if the region has it.
    reservation: Option<CapacityReservation>,
}

impl Aws {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let own = self.config.experimental_instance_types.as_deref();
        let range = Range {
            min: Some(Memory::from_gb(DISK_GB.0)),
            max: Some(Memory::from_gb(DISK_GB.1)),
        };
        let offers = find_offers(
            &self.kind.env.catalog,
            BackendType::Aws,
            Some(&self.regions),
            requirements,
            &|row: &Offer<'_>| is_known(row.instance_name(), own.unwrap_or_default()),
            &|_| DiskSize::Configurable(range),
        )?;
        let regions = self.describe_regions(&offers, requirements).await?;
        let available = |offer: InstanceOffer| {
            let region = regions.get(&*offer.region)?;
            if requirements.reservation.is_some() {
                let reservation = region.reservation.as_ref()?;
                return reserved(offer, reservation, region);
            }
            Some(within_quota(offer, region))
        };
        Ok(offers.into_iter().filter_map(available).collect())
    }

    /// The regions of offers. One that does not answer has no offers; an error only when none answers.
    async fn describe_regions(
        &self,
        offers: &[InstanceOffer],
        requirements: &Requirements,
    ) -> Result<HashMap<String, Region>, ComputeError> {
        let names: BTreeSet<String> = offers.iter().map(|offer| offer.region.to_string()).collect();
        let reservation = requirements.reservation.as_deref();
        let described: Vec<_> = stream::iter(names)
            .map(|name| async move {
                let described = self.describe_region(&name, reservation).await;
                (name, described)
            })
            .buffered(PARALLEL)
            .collect()
            .await;
        let mut regions = HashMap::new();
        let mut first_error = None;
        for (name, described) in described {
            match described {
                Ok(region) => drop(regions.insert(name, region)),
                Err(error) => {
                    tracing::warn!(region = %name, %error, "a region of AWS does not tell what it has");
                    first_error.get_or_insert(error);
                }
            }
        }
        match first_error {
            Some(error) if regions.is_empty() => Err(error),
            _ => Ok(regions),
        }
    }

    async fn describe_region(&self, name: &str, reservation: Option<&str>) -> Result<Region, ComputeError> {
        let zones = self.region_zones(name).await?;
        let quotas = self.region_quotas(name).await?;
        let reservation = match reservation {
            Some(id) => self.reservation(name, id).await?,
            None => None,
        };
        Ok(Region {
            zones,
            quotas,
            reservation,
        })
    }

    pub(crate) async fn region_zones(&self, region: &str) -> Result<Arc<Vec<String>>, ComputeError> {
        let fetch = async || {
            self.client
                .zones(region)
                .await
                .map_err(|error| error.compute_error())
        };
        self.zones.get(region.to_owned(), fetch).await
    }

    /// Quotas that cannot be asked for are not known: whether there is enough of it shows when it is tried.
    async fn region_quotas(&self, region: &str) -> Result<Arc<Quotas>, ComputeError> {
        let fetch = async || {
            let mut quotas = Quotas::new();
            for quota in QUOTAS {
                let body = json!({"ServiceCode": "ec2", "QuotaCode": quota.0});
                let answer = self
                    .client
                    .read_quotas::<QuotaAnswer>(region, "GetServiceQuota", &body)
                    .await;
                match answer {
                    Ok(answer) => quotas.extend(answer.quota.value.map(|value| (quota, value))),
                    Err(error) => {
                        tracing::debug!(region, code = quota.0, %error, "a quota of AWS is not known");
                    }
                }
            }
            Ok(quotas)
        };
        self.quotas.get(region.to_owned(), fetch).await
    }
}

fn is_known(instance_type: &str, own: &[String]) -> bool {
    TYPES.iter().any(|start| instance_type.starts_with(start)) || own.iter().any(|name| name == instance_type)
}

fn within_quota(offer: InstanceOffer, region: &Region) -> InstanceOfferWithAvailability {
    let quota = region.quotas.get(&quota_of(&offer.instance.name));
    let availability = match quota {
        Some(vcpus) if *vcpus <= 0.0 => InstanceAvailability::NoQuota,
        _ => InstanceAvailability::Unknown,
    };
    let mut offer = offer.with_availability(availability, InstanceRuntime::Shim);
    offer.availability_zones = Some(region.zones.to_vec());
    offer
}

/// As it is reserved; `None`: it is not.
fn reserved(
    offer: InstanceOffer,
    reservation: &CapacityReservation,
    region: &Region,
) -> Option<InstanceOfferWithAvailability> {
    let is_it = !offer.instance.resources.spot
        && offer.instance.name == reservation.instance_type
        && reservation.available_instance_count > 0;
    is_it.then(|| {
        let mut offer = within_quota(offer, region);
        if let Some(zone) = &reservation.availability_zone {
            offer.availability_zones = Some(vec![zone.clone()]);
        }
        offer
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_are_known_to_work_are_offered() {
        for (name, known) in [
            ("p5.48xlarge", true),
            ("p5en.48xlarge", true),
            ("t2.small", true),
            ("t2.medium", false),
            ("m7i-flex.large", false),
            ("m6i.large", false),
            ("c6i.large", true),
        ] {
            assert_eq!(is_known(name, &["c6i.large".to_owned()]), known, "{name}");
        }
    }

    #[test]
    fn types_count_against_the_quota_of_their_class() {
        for (name, quota) in [
            ("p6-b200.48xlarge", P),
            ("gr6.4xlarge", G),
            ("g4dn.xlarge", G),
            ("t3.medium", STANDARD),
        ] {
            assert_eq!(quota_of(name), quota, "{name}");
        }
    }
}
