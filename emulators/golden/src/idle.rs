//! A backend that can be configured and offers nothing, with the capabilities that dstack 0.22.5 gives its type.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::config::{BackendConfig, SplitConfig};
use dstack_compute::{Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Owned, Removal};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Idle(pub(crate) BackendType);

pub(crate) fn capabilities(kind: BackendType) -> Capabilities {
    use BackendType as B;
    let container_only = matches!(kind, B::Kubernetes | B::Slurm | B::VastAi | B::Lium | B::Daytona);
    Capabilities {
        create_instance: !container_only,
        privileged: !container_only || kind == B::Kubernetes,
        instance_volumes: !container_only || kind == B::Kubernetes,
        multinode: matches!(
            kind,
            B::Azure
                | B::Crusoe
                | B::Gcp
                | B::JarvisLabs
                | B::Kubernetes
                | B::Nebius
                | B::Oci
                | B::Seeweb
                | B::Slurm
                | B::Vultr
        ),
        reservations: kind == B::Gcp,
        placement_groups: matches!(kind, B::Crusoe | B::Gcp | B::Nebius),
        compute_groups: kind == B::Slurm,
        volumes: matches!(kind, B::Gcp | B::Daytona | B::Kubernetes | B::Lium),
        gateways: matches!(kind, B::Azure | B::Gcp | B::Kubernetes),
        private_gateways: kind == B::Gcp,
        load_balancers: false,
    }
}

#[async_trait]
impl BackendKind for Idle {
    fn kind(&self) -> BackendType {
        self.0
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.0)
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        Ok(config.split())
    }

    fn open(&self, _: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        Ok(Arc::new(*self))
    }
}

#[async_trait]
impl Backend for Idle {
    fn backend_kind(&self) -> &dyn BackendKind {
        self
    }

    async fn offers(&self, _: &Requirements) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        Ok(Vec::new())
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        Ok(Vec::new())
    }

    async fn remove_owned(&self, _: &Owned) -> Result<Removal, ComputeError> {
        Ok(Removal::Gone)
    }
}
