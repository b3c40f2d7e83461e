//! Runpod without Runpod.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_catalog_offers::{CatalogQuery, DiskSize};
use dstack_compute::config::{BackendConfig, RunpodConfig, SplitConfig};
use dstack_compute::{
    Backend, BackendKind, Call, Capabilities, ComputeError, ConfigureError, Known, Lifecycle, Machine, Owned,
    Removal, Step, Volume, VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use dstack_model::volumes::VolumeProvisioningData;
use dstack_units::{Memory, Range};
use serde_json::Value;

use crate::Offers;
use crate::no_capacity::NoCapacity;

const PRICE_OF_GB: f64 = 0.07;
const EXTERNAL_VOLUME: i64 = 50;

#[derive(Debug, Clone)]
pub(crate) struct Runpod(pub(crate) Offers);

#[async_trait]
impl BackendKind for Runpod {
    fn kind(&self) -> BackendType {
        BackendType::Runpod
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multinode: true,
            compute_groups: true,
            volumes: true,
            ..Capabilities::default()
        }
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        Ok(config.split())
    }

    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        match BackendConfig::join(stored).map_err(ComputeError::Configuration)? {
            BackendConfig::Runpod(config) => Ok(Arc::new(RunpodBackend {
                kind: self.clone(),
                config,
            })),
            _ => Err(ComputeError::Configuration("not of this type".to_owned())),
        }
    }
}

#[derive(Debug)]
struct RunpodBackend {
    kind: Runpod,
    config: RunpodConfig,
}

/// Offers of several pods at once are for several nodes, and only they are.
fn is_cluster(offer: &InstanceOfferWithAvailability) -> bool {
    let counts = offer.backend_data.get("pod_counts").and_then(Value::as_array);
    counts.is_some_and(|counts| counts.iter().any(|count| count.as_i64() != Some(1)))
}

#[async_trait]
impl Backend for RunpodBackend {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let community = self.config.community_cloud.unwrap_or(false);
        let regions = self
            .config
            .regions
            .as_deref()
            .filter(|regions| !regions.is_empty());
        let found = self
            .kind
            .0
            .find(&CatalogQuery {
                backend: BackendType::Runpod,
                locations: regions,
                requirements,
                // Regions of the community are countries; those of data centers have dashes.
                accept: &|row| community || row.location().contains('-'),
                disk: &|row| match row.disk_size() {
                    // Of instances without GPUs, the catalogue has the largest disk.
                    Some(largest) if row.gpu_count() == 0 => DiskSize::Configurable(Range {
                        min: Some(Memory::from_gb(1.0)),
                        max: Some(Memory::from_gb(largest)),
                    }),
                    _ => DiskSize::any(),
                },
            })
            .await?;
        let cluster = requirements.multinode.unwrap_or(false);
        Ok(found
            .into_iter()
            .map(|offer| offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim))
            .filter(|offer| is_cluster(offer) == cluster)
            .collect())
    }

    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        Some(&NoCapacity)
    }

    fn volumes(&self) -> Option<&dyn Volumes> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        Ok(Vec::new())
    }

    async fn remove_owned(&self, _: &Owned) -> Result<Removal, ComputeError> {
        Ok(Removal::Gone)
    }
}

#[allow(clippy::cast_possible_truncation)] // sizes of disks
pub(crate) fn whole(gb: f64) -> i64 {
    gb as i64
}

#[allow(clippy::cast_precision_loss)] // sizes of disks
fn volume(volume_id: String, size_gb: i64) -> VolumeProvisioningData {
    VolumeProvisioningData {
        backend: Some(BackendType::Runpod),
        volume_id,
        size_gb: Some(size_gb),
        availability_zone: None,
        price: Some(size_gb as f64 * PRICE_OF_GB),
        attachable: false,
        detachable: false,
        backend_data: None,
    }
}

impl RunpodBackend {
    fn make(&self, request: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let size = whole(request.configuration.size().map_or(0.0, Memory::gb));
        Ok(volume(format!("golden-{}", request.marks.name), size))
    }
}

#[async_trait]
impl Lifecycle<Volume> for RunpodBackend {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        _: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        self.make(want).map(Step::Ready)
    }

    async fn remove(&self, _: &Known<Volume>, _: &Call<'_>) -> Result<Removal, ComputeError> {
        Ok(Removal::Gone)
    }
}

#[async_trait]
impl Volumes for RunpodBackend {
    async fn register(&self, request: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let id = request.configuration.external_volume_id().unwrap_or_default();
        Ok(volume(id.to_owned(), EXTERNAL_VOLUME))
    }
}
