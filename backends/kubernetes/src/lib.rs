//! [Kubernetes](https://kubernetes.io): a pod for each job, on nodes that are there.
//!
//! `kubeconfig` says which clusters, `check` whether one can be used, `client` is its API as far as it is used, `errors` what that
//! means by its errors, `offers` what its nodes have, `manifests` what is made, `pieces` and `homes` how that is noted, `jump` how pods
//! are reached from outside, `containers`, `gateways` and `volumes` their lives, `inventory` what is ours.

#![warn(missing_docs)]

mod check;
mod client;
mod containers;
mod errors;
mod gateways;
mod gpus;
mod homes;
mod inventory;
mod jump;
mod kubeconfig;
mod labels;
mod manifests;
mod objects;
mod offers;
mod pieces;
mod places;
mod quantity;
mod rights;
mod state;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, RecentFailures};
use dstack_compute::config::KubernetesConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, GatewayMachine, Lifecycle,
    Owned, Removal, Volumes,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use dstack_system::Random;
use futures_util::future::try_join_all;

use client::Cluster;
use homes::Home;
use offers::Capacity;

/// What could not be had is not tried again for so long, as in dstack 0.22.5.
const FAILURE_LIFETIME: Duration = Duration::from_secs(60);

/// The kind of backends for Kubernetes.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(KubernetesKind { env })
}

#[derive(Debug)]
struct KubernetesKind {
    env: Env,
}

impl KubernetesKind {
    fn clusters(&self, config: &KubernetesConfig) -> Result<Vec<Cluster>, String> {
        let all = kubeconfig::clusters(config)?.into_iter();
        all.map(|access| Cluster::new(&self.env, access)).collect()
    }
}

#[async_trait]
impl CloudKind for KubernetesKind {
    type Config = KubernetesConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            multinode: true,
            privileged: true,
            instance_volumes: true,
            volumes: true,
            gateways: true,
            ..Capabilities::default()
        }
    }

    /// Images are pulled first, and clusters may add a node.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: KubernetesConfig) -> Result<KubernetesConfig, ConfigureError> {
        let clusters = self.clusters(&config).map_err(ConfigureError::Invalid)?;
        try_join_all(clusters.iter().map(check::check)).await?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: KubernetesConfig) -> Result<Arc<dyn Backend>, String> {
        let known = |cluster| Known {
            cluster,
            capacity: Cached::of_offers(&kind.env),
            failures: RecentFailures::new(Arc::clone(&kind.env.clock), FAILURE_LIFETIME),
            random: kind.env.random.clone(),
        };
        let clusters = kind.clusters(&config)?.into_iter().map(known).collect();
        Ok(Arc::new(Kubernetes {
            clusters,
            gateway_image: config.gateway_image,
            kind,
        }))
    }
}

/// The clusters of one kubeconfig.
#[derive(Debug)]
struct Kubernetes {
    kind: Kind<KubernetesKind>,
    clusters: Vec<Known>,
    /// Unset: the usual one.
    gateway_image: Option<String>,
}

/// A cluster, and what its nodes were seen to have.
#[derive(Debug)]
struct Known {
    cluster: Cluster,
    capacity: Cached<Capacity>,
    /// What could not be had.
    failures: RecentFailures,
    random: Random,
}

impl Known {
    /// The cluster as it is to be asked for what was made in this home.
    ///
    /// # Errors
    /// `Configuration`: the context leads to another cluster now.
    async fn cluster_of(&self, home: Option<&Home>) -> Result<Cluster, ComputeError> {
        match home {
            None => Ok(self.cluster.clone()),
            Some(home) => self.cluster.at(home).await,
        }
    }
}

impl Kubernetes {
    /// Instances of early versions of dstack have the region `-`: they are in the cluster without a name.
    fn region(&self, region: &str) -> Result<&Known, ComputeError> {
        let region = if region == "-" { "" } else { region };
        let found = self
            .clusters
            .iter()
            .find(|known| known.cluster.access.region == region);
        found.ok_or_else(|| {
            ComputeError::Configuration(format!(
                "the context {region:?} is not configured any more: add it to `contexts` of the backend"
            ))
        })
    }
}

#[async_trait]
impl Backend for Kubernetes {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.find_offers(requirements).await
    }

    fn containers(&self) -> Option<&dyn Lifecycle<Container>> {
        Some(self)
    }

    fn gateways(&self) -> Option<&dyn Lifecycle<GatewayMachine>> {
        Some(self)
    }

    fn volumes(&self) -> Option<&dyn Volumes> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    /// Pods are known by their names, which the cluster gives once.
    fn is_at(&self, owned: &Owned, place: &JobProvisioningData) -> bool {
        owned.name == place.instance_id && owned.region == place.region
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.delete_owned(owned).await
    }
}
