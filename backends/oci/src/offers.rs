use std::collections::{BTreeMap, BTreeSet};

use dstack_backend::find_offers;
use dstack_catalog::{CpuArch, Offer};
use dstack_catalog_offers::DiskSize;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};
use futures_util::future::{join_all, try_join_all};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Oci;
use crate::client::{Service, told};

/// Shapes that are tested (dstack 0.22.5). Those of flexible size (`Flex`) are not.
const FAMILIES: &[&str] = &[
    "VM.Standard2.",
    "BM.Standard2.",
    "BM.Standard3.",
    "BM.Standard.E3.",
    "BM.Standard.E4.",
    "BM.Standard.E5.",
    "BM.Optimized3.",
    "VM.GPU3.",
    "BM.GPU3.",
    "BM.GPU4.",
    "VM.GPU.A10.",
    "BM.GPU.A10.",
];

/// The most shapes that a capacity report tells of (found by dstack 0.22.5).
const SHAPES_OF_REPORT: usize = 10;

/// Sizes of boot volumes.
const DISKS: Range<Memory> = Range {
    min: Some(Memory::from_gb(50.0)),
    max: Some(Memory::from_gb(32.0 * 1024.0)),
};

/// What there is in a region now, by availability domain.
pub(crate) type Domains = Vec<Domain>;

/// An availability domain.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    name: String,
    /// Shapes that the tenancy may have there.
    within_limits: BTreeSet<String>,
    /// Of these, those that are free.
    free: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Shape {
    shape: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    shape_availabilities: Vec<ShapeAvailability>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShapeAvailability {
    #[serde(default)]
    instance_shape: String,
    #[serde(default)]
    availability_status: String,
}

impl Oci {
    /// What the catalogue has, with the availability domains in which it is free.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let offers = find_offers(
            &self.kind.env.catalog,
            BackendType::Oci,
            Some(&self.regions),
            requirements,
            // There is no image for others.
            &|row: &Offer<'_>| row.cpu_arch() == CpuArch::X86 && self.is_supported(row.instance_name()),
            &|_| DiskSize::Configurable(DISKS),
        )?;
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let stock = self.stock.get(|| self.fetch_stock()).await?;
        let with_availability = |offer: InstanceOffer| {
            let domains = stock.get(&*offer.region)?;
            let shape = offer.instance.name.clone();
            let free = domains.iter().filter(|domain| domain.free.contains(&shape));
            let zones: Vec<String> = free.map(|domain| domain.name.clone()).collect();
            let availability = match () {
                () if !zones.is_empty() => InstanceAvailability::Available,
                () if domains.iter().any(|domain| domain.within_limits.contains(&shape)) => {
                    InstanceAvailability::NotAvailable
                }
                () => InstanceAvailability::NoQuota,
            };
            Some(InstanceOfferWithAvailability {
                availability_zones: Some(zones),
                ..offer.with_availability(availability, InstanceRuntime::Shim)
            })
        };
        Ok(offers.into_iter().filter_map(with_availability).collect())
    }

    fn is_supported(&self, shape: &str) -> bool {
        let is_tested = !shape.contains("Flex") && FAMILIES.iter().any(|family| shape.starts_with(family));
        is_tested || self.experimental.iter().any(|name| name == shape)
    }

    /// Of regions that do not answer nothing is known: there is nothing to be had.
    async fn fetch_stock(&self) -> Result<BTreeMap<String, Domains>, ComputeError> {
        let asked = self.regions.iter().map(|region| async move {
            let told = self.fetch_domains(region).await;
            (region, told)
        });
        let (mut stock, mut failed) = (BTreeMap::new(), None);
        for (region, told) in join_all(asked).await {
            match told {
                Ok(domains) => {
                    stock.insert(region.clone(), domains);
                }
                Err(error) => {
                    tracing::warn!(region, %error, "OCI does not tell what is free there");
                    failed = Some(error);
                }
            }
        }
        match failed.filter(|_| stock.is_empty()) {
            Some(error) => Err(error),
            None => Ok(stock),
        }
    }

    async fn fetch_domains(&self, region: &str) -> Result<Domains, ComputeError> {
        let query = [("compartmentId", self.compartment.as_str())];
        let domains = self
            .client
            .list::<Named>(Service::Identity, region, "availabilityDomains", &query);
        let domains = told(domains.await)?;
        try_join_all(
            domains
                .into_iter()
                .map(|domain| self.fetch_domain(region, domain.name)),
        )
        .await
    }

    async fn fetch_domain(&self, region: &str, name: String) -> Result<Domain, ComputeError> {
        let query = [
            ("compartmentId", self.compartment.as_str()),
            ("availabilityDomain", &name),
        ];
        let shapes: Vec<Shape> = told(
            self.client
                .list_long(Service::Core, region, "shapes", &query)
                .await,
        )?;
        let shapes = shapes.into_iter().map(|shape| shape.shape);
        let within_limits: BTreeSet<String> = shapes.filter(|shape| self.is_supported(shape)).collect();
        let shapes: Vec<&String> = within_limits.iter().collect();
        let reports = shapes
            .chunks(SHAPES_OF_REPORT)
            .map(|some| self.fetch_free(region, &name, some));
        let free = try_join_all(reports).await?.into_iter().flatten().collect();
        Ok(Domain {
            name,
            within_limits,
            free,
        })
    }

    /// Those of so many shapes that are free in an availability domain.
    async fn fetch_free(
        &self,
        region: &str,
        domain: &str,
        shapes: &[&String],
    ) -> Result<Vec<String>, ComputeError> {
        let asked: Vec<Value> = shapes
            .iter()
            .map(|shape| json!({"instanceShape": shape}))
            .collect();
        let ask = json!({"compartmentId": self.compartment, "availabilityDomain": domain, "shapeAvailabilities": asked});
        let report: Report = told(
            self.client
                .ask(Service::Core, region, "computeCapacityReports", &ask)
                .await,
        )?;
        let told = report.shape_availabilities.into_iter();
        let free = told.filter(|one| one.availability_status == "AVAILABLE");
        Ok(free.map(|one| one.instance_shape).collect())
    }
}
