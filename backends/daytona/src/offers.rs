//! What can be had: resources are metered one by one, and an offer has what a request asks for, within the organization's limits.

use dstack_backend::{compute_error, vendor_offers};
use dstack_catalog::Filter;
use dstack_catalog::collectors::daytona::items;
use dstack_catalog_offers::{VendorRows, filter};
use dstack_compute::ComputeError;
use dstack_http::ApiError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime, InstanceType};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::Memory;
use serde_json::{Map, Value};

use crate::Daytona;

/// The class of sandboxes that are containers.
const CLASS: &str = "container";

/// What the vendor answers, as it does.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Dollars an hour.
    pricing: Value,
    /// GPUs that are free, of all customers.
    capacity: Value,
    /// Where sandboxes without GPUs are.
    regions: Value,
    /// What the organization has and may have, by region and class.
    usage: Value,
    /// What it may have at all.
    classes: Value,
}

fn told<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    answer.map_err(|error| compute_error(&error))
}

impl Daytona {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let facts = self.facts.get(|| self.fetch()).await?;
        let disk = requirements.resources.disk.unwrap_or_default().size;
        let filter = Filter {
            min_disk_size: disk.min.map(Memory::gb),
            max_disk_size: disk.max.map(Memory::gb),
            ..filter(requirements)
        };
        let (pricing, regions) = (&facts.pricing, &facts.regions);
        let items = items(pricing, Some(&facts.capacity), regions, &filter, false);
        let items = items.map_err(|error| ComputeError::Unclear(error.to_string()))?;
        let rows = VendorRows::new(items);
        let offers = vendor_offers(&rows, BackendType::Daytona, self.regions.as_deref(), requirements)?;
        let with_availability = |offer: InstanceOffer| {
            let availability = match has_quota(&offer, &facts) {
                true => InstanceAvailability::Available,
                false => InstanceAvailability::NoQuota,
            };
            offer.with_availability(availability, InstanceRuntime::Runner)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }

    async fn fetch(&self) -> Result<Facts, ComputeError> {
        let key = told(self.client.current_key().await)?;
        let organization = key.organization_id.unwrap_or_default();
        // It becomes a part of a path.
        let of_id = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if organization.is_empty() || !organization.bytes().all(of_id) {
            return Err(ComputeError::Unclear(
                "Daytona does not say which organization the API key is of".to_owned(),
            ));
        }
        let of = async |what: &str| told(self.client.of_organization(&organization, what).await);
        Ok(Facts {
            pricing: told(self.client.pricing().await)?,
            capacity: of("gpu-capacity").await?,
            regions: told(self.client.shared_regions().await)?,
            usage: of("usage").await?,
            classes: of("available-sandbox-classes").await?,
        })
    }
}

/// The type of GPUs as Daytona calls it.
pub(crate) fn gpu_type<'a>(instance: &'a InstanceType, data: &'a Map<String, Value>) -> Option<&'a str> {
    let gpu = instance.resources.gpus.first()?;
    let called = data.get("gpu_type").and_then(Value::as_str);
    Some(called.unwrap_or(&gpu.name))
}

/// The row of a region, for containers.
fn row<'a>(rows: &'a Value, region: &str) -> Option<&'a Value> {
    let mut rows = rows.as_array()?.iter();
    rows.find(|row| {
        let has = |field: &str, value: &str| row.get(field).and_then(Value::as_str) == Some(value);
        has("regionId", region) && has("sandboxClass", CLASS)
    })
}

fn number(row: &Value, field: &str) -> Option<f64> {
    row.get(field)?.as_f64()
}

/// Whether the organization may have it now, besides what it has.
#[allow(clippy::cast_precision_loss)] // sizes of machines
fn has_quota(offer: &InstanceOffer, facts: &Facts) -> bool {
    let usage = facts
        .usage
        .get("regionUsage")
        .and_then(|rows| row(rows, &offer.region));
    let (Some(usage), Some(class)) = (usage, row(&facts.classes, &offer.region)) else {
        return false;
    };
    let resources = &offer.instance.resources;
    let gpus = resources.gpus.len() as f64;
    let left = |what: &str| {
        let total = number(usage, &format!("total{what}Quota"));
        Some(total? - number(usage, &format!("current{what}Usage")).unwrap_or(0.0))
    };
    if let Some(kind) = gpu_type(&offer.instance, &offer.backend_data) {
        let allows = |row: &Value| match row.get("allowedGpuTypes").and_then(Value::as_array) {
            Some(allowed) => allowed.iter().any(|one| one.as_str() == Some(kind)),
            None => true,
        };
        let has_class = class.get("gpuAvailable").and_then(Value::as_bool) == Some(true);
        let is_within = resources.spot || left("Gpu").is_some_and(|left| gpus <= left);
        if !has_class || !is_within || !allows(usage) || !allows(class) {
            return false;
        }
    }
    let sizes = [
        ("Cpu", resources.cpus as f64),
        ("Memory", resources.memory_mib as f64 / 1024.0),
        ("Disk", resources.disk.size_mib as f64 / 1024.0),
    ];
    sizes.into_iter().all(|(what, size)| {
        let of_sandbox = number(usage, &format!("max{what}PerSandbox"));
        match resources.gpus.is_empty() {
            true => left(what).is_some_and(|left| size <= left) && of_sandbox.is_none_or(|most| size <= most),
            // Of GPU sandboxes, these are not counted together.
            false => {
                let of_gpu = number(usage, &format!("max{what}PerGpu")).map(|most| most * gpus);
                of_gpu.or(of_sandbox).is_none_or(|most| size <= most)
            }
        }
    })
}
