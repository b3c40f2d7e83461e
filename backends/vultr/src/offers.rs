use std::collections::BTreeMap;

use dstack_backend::{compute_error, vendor_offers};
use dstack_catalog::{CpuArch, Item, collectors::vultr::items};
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use futures_util::future::join_all;
use futures_util::try_join;
use serde_json::Value;

use crate::Vultr;

/// The one plan that cannot be attached to a VPC.
const WITHOUT_VPC: &str = "vbm-4c-32gb";

/// GPUs with which nobody has seen the images to work that machines start with: dstack 0.22.5 does not offer them either.
const UNVERIFIED: [&str; 3] = ["B200", "MI325X", "MI355X"];

impl Vultr {
    /// What the vendor sells. A plan's list of regions is that of those that have it now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let rows = self.sold.get(async || self.fetch_rows().await).await?;
        let offers = vendor_offers(&rows, BackendType::Vultr, self.regions.as_deref(), requirements)?;
        let available = |offer: InstanceOffer| {
            offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(available).collect())
    }

    async fn fetch_rows(&self) -> Result<VendorRows, ComputeError> {
        let lists = async { try_join!(self.client.metal_plans(), self.client.plans()) };
        let (metal, plans) = lists.await.map_err(|error| compute_error(&error))?;
        let is_dedicated = |plan: &Value| plan.get("type").and_then(Value::as_str) == Some("vdm");
        let dedicated = match plans.iter().any(is_dedicated) {
            true => self.dedicated_regions().await?,
            false => BTreeMap::new(),
        };
        let mut rows = items(&metal, &plans, Some(&dedicated));
        rows.retain(can_be_used);
        Ok(VendorRows::new(rows))
    }

    /// Regions by plan of dedicated GPUs, which depend on the account. A region that does not tell has none; a key that is refused is an
    /// error, as lists of plans are told to everybody.
    async fn dedicated_regions(&self) -> Result<BTreeMap<String, Vec<String>>, ComputeError> {
        let regions = match self.regions.as_deref() {
            Some(regions) if !regions.is_empty() => regions.to_vec(),
            _ => self
                .client
                .regions()
                .await
                .map_err(|error| compute_error(&error))?,
        };
        let asked = regions.iter().map(|region| self.client.dedicated_plans(region));
        let mut by_plan: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (region, plans) in regions.iter().zip(join_all(asked).await) {
            let plans = match plans.map_err(|error| compute_error(&error)) {
                Ok(plans) => plans,
                Err(error @ ComputeError::Credentials(_)) => return Err(error),
                Err(error) => {
                    tracing::warn!(region, %error, "Vultr does not tell which dedicated GPUs it has there");
                    Vec::new()
                }
            };
            for plan in plans {
                by_plan.entry(plan).or_default().push(region.clone());
            }
        }
        Ok(by_plan)
    }
}

/// The images that machines start with are for x86 only. Small plans that end in `-v6` have no address of IPv4.
fn can_be_used(item: &Item) -> bool {
    let has_ipv4 = !(item.instance_name.starts_with("vc2-") && item.instance_name.ends_with("-v6"));
    let gpu = item.gpu_name.as_deref().unwrap_or_default();
    item.cpu_arch == CpuArch::X86
        && has_ipv4
        && item.instance_name != WITHOUT_VPC
        && !UNVERIFIED.contains(&gpu)
}
