//! AWS without AWS.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_catalog_offers::{CatalogQuery, DiskSize};
use dstack_compute::config::{AwsConfig, BackendConfig, SplitConfig};
use dstack_compute::{
    Backend, BackendKind, Call, Capabilities, ComputeError, ConfigureError, Known, Lifecycle, Machine, Owned,
    Removal, Step, Volume, VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use dstack_model::volumes::VolumeProvisioningData;
use dstack_units::Memory;

use crate::Offers;
use crate::no_capacity::NoCapacity;

/// Instance families that dstack 0.22.5 offers.
const FAMILIES: &[&str] = &[
    "m7i.", "c7i.", "r7i.", "t3.", "t2.small", "c5.", "m5.", "p6-b300.", "p6-b200.", "p5.", "p5e.", "p5en.",
    "p4d.", "p4de.", "g7.", "g7e.", "g6.", "g6e.", "gr6.", "g5.", "g4dn.",
];

const LARGEST_VOLUME: f64 = 1000.0;
const EXTERNAL_VOLUME: i64 = 100;

#[derive(Debug, Clone)]
pub(crate) struct Aws(pub(crate) Offers);

#[async_trait]
impl BackendKind for Aws {
    fn kind(&self) -> BackendType {
        BackendType::Aws
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            reservations: true,
            placement_groups: true,
            compute_groups: false,
            volumes: true,
            gateways: true,
            private_gateways: true,
            load_balancers: false,
        }
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        Ok(config.split())
    }

    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        match BackendConfig::join(stored).map_err(ComputeError::Configuration)? {
            BackendConfig::Aws(config) => Ok(Arc::new(AwsBackend {
                kind: self.clone(),
                config,
            })),
            _ => Err(ComputeError::Configuration("not of this type".to_owned())),
        }
    }
}

#[derive(Debug)]
struct AwsBackend {
    kind: Aws,
    config: AwsConfig,
}

/// us-west-2 has no quota for P, eu-west-1 none for G and P.
fn availability(offer: &InstanceOffer) -> InstanceAvailability {
    let family = offer.instance.name.chars().next();
    match (&*offer.region, family) {
        ("us-west-2", Some('p')) | ("eu-west-1", Some('g' | 'p')) => InstanceAvailability::NoQuota,
        _ => InstanceAvailability::Unknown,
    }
}

fn zones(region: &str) -> Vec<String> {
    vec![format!("{region}a"), format!("{region}b")]
}

#[async_trait]
impl Backend for AwsBackend {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        if requirements.reservation.is_some() {
            return Ok(Vec::new());
        }
        let disk = DiskSize::Configurable(dstack_units::Range {
            min: Some(Memory::from_gb(100.0)),
            max: Some(Memory::from_gb(16.0 * 1024.0)),
        });
        let found = self
            .kind
            .0
            .find(&CatalogQuery {
                backend: BackendType::Aws,
                locations: self.config.regions.as_deref(),
                requirements,
                accept: &|row| {
                    FAMILIES
                        .iter()
                        .any(|family| row.instance_name().starts_with(family))
                },
                disk: &|_| disk,
            })
            .await?;
        let with_zones = |offer: InstanceOffer| {
            let (availability, zones) = (availability(&offer), zones(&offer.region));
            InstanceOfferWithAvailability {
                availability_zones: Some(zones),
                ..offer.with_availability(availability, InstanceRuntime::Shim)
            }
        };
        Ok(found.into_iter().map(with_zones).collect())
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

fn volume(request: &VolumeRequest, volume_id: String, size_gb: i64) -> VolumeProvisioningData {
    let configuration = &request.configuration;
    let zone = configuration.availability_zone().map(str::to_owned);
    let first = || {
        zones(configuration.region().unwrap_or_default())
            .into_iter()
            .next()
    };
    VolumeProvisioningData {
        backend: Some(BackendType::Aws),
        volume_id,
        size_gb: Some(size_gb),
        availability_zone: zone.or_else(first),
        price: Some(8.0),
        attachable: true,
        detachable: true,
        backend_data: Some(r#"{"volume_type":"gp3","iops":3000}"#.to_owned()),
    }
}

impl AwsBackend {
    fn make(&self, request: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let size = request.configuration.size().map_or(0.0, Memory::gb);
        if size > LARGEST_VOLUME {
            return Err(ComputeError::Configuration(
                "Golden setup: volume too large".to_owned(),
            ));
        }
        Ok(volume(
            request,
            format!("vol-golden-{}", request.marks.name),
            crate::runpod::whole(size),
        ))
    }
}

#[async_trait]
impl Lifecycle<Volume> for AwsBackend {
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
impl Volumes for AwsBackend {
    async fn register(&self, request: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let id = request.configuration.external_volume_id().unwrap_or_default();
        Ok(volume(request, id.to_owned(), EXTERNAL_VOLUME))
    }
}
