use std::collections::HashMap;

use dstack_backend::find_offers;
use dstack_catalog::Offer;
use dstack_catalog_offers::DiskSize;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_units::{Memory, Range};

use crate::client::DataCenter;
use crate::pieces::told;
use crate::{Runpod, is_secure_cloud};

/// Flag of the catalogue's rows for clusters: they are not for single pods.
const CLUSTER_FLAG: &str = "runpod-cluster";

/// Level of stock at which there is nothing (`AvailabilityLevel`).
const NO_STOCK: &str = "NONE";

impl Runpod {
    /// What the catalogue has, without what the data centers say that they do not have now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let of_clusters = requirements.multinode == Some(true);
        let accept = |row: &Offer<'_>| {
            let is_of_cluster = row.flags().any(|flag| flag == CLUSTER_FLAG);
            is_of_cluster == of_clusters && (self.may_use_community || is_secure_cloud(row.location()))
        };
        let offers = find_offers(
            &self.kind.env.catalog,
            BackendType::Runpod,
            self.regions.as_deref(),
            requirements,
            &accept,
            &disk,
        )?;
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let fetch = async || told(self.client.data_centers().await);
        let stock = match self.stock.get(fetch).await {
            Ok(stock) => Some(stock),
            Err(error @ ComputeError::Credentials(_)) => return Err(error),
            Err(error) => {
                // The prices are known all the same, and whether it is to be had shows when it is asked for.
                tracing::warn!(%error, "Runpod does not tell what is in stock");
                None
            }
        };
        let levels = stock.as_deref().map(|centers| levels(centers));
        let with_availability = |offer: InstanceOffer| {
            let availability = match &levels {
                None => InstanceAvailability::Unknown,
                Some(levels) => availability(levels, &offer, of_clusters),
            };
            offer.with_availability(availability, InstanceRuntime::Runner)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }
}

/// GPU pods have the disk that they are asked for with; of CPU pods, the catalogue has the largest.
fn disk(row: &Offer<'_>) -> DiskSize {
    match row.disk_size() {
        Some(largest) if row.gpu_count() == 0 => {
            DiskSize::Configurable(Range::between(Memory::from_gb(1.0), Memory::from_gb(largest)))
        }
        _ => DiskSize::any(),
    }
}

/// Levels of stock by data center and type of GPU or flavor of CPU.
type Levels<'a> = HashMap<(&'a str, &'a str), &'a str>;

fn levels(centers: &[DataCenter]) -> Levels<'_> {
    let mut levels = Levels::new();
    for center in centers {
        for stock in center.gpu_availability.iter().chain(&center.cpu_availability) {
            levels.insert((&center.id, &stock.id), &stock.availability);
        }
    }
    levels
}

/// Nothing is said of clusters and countries: they are in the catalogue because they were in stock.
fn availability(levels: &Levels<'_>, offer: &InstanceOffer, is_of_cluster: bool) -> InstanceAvailability {
    let name = offer.instance.name.as_str();
    let resource = match offer.instance.resources.gpus.is_empty() {
        // The flavor of `cpu3c-2-4`.
        true => name.rsplitn(3, '-').last().unwrap_or(name),
        false => name,
    };
    match levels.get(&(&*offer.region, resource)) {
        Some(level) if *level == NO_STOCK && !is_of_cluster => InstanceAvailability::NotAvailable,
        _ => InstanceAvailability::Available,
    }
}
