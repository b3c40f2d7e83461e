//! [Slurm](https://slurm.schedmd.com): containers, and groups of containers, as batch jobs of clusters.
//!
//! There is no API but the commands of a login node, which are reached over SSH. `login` is what runs scripts there (`ssh`, or an
//! emulator), `framing` what they say, `commands` those of Slurm. `nodes`, `jobs`, `gpu`, `partitions`, `share`, `image`, `batch` and
//! `login_keys` decide and write texts, without calls. `cluster` is one configured cluster, `offers` what it has, `submission` the life of
//! a job, of which `containers` and `groups` are made.

#![warn(missing_docs)]

mod batch;
mod cluster;
mod commands;
mod configure;
mod containers;
mod framing;
mod gpu;
mod groups;
mod image;
mod jobs;
mod login;
mod login_keys;
mod nodes;
mod offers;
mod partitions;
mod share;
mod ssh;
mod submission;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{CloudKind, Env, Kind, look_by_place};
use dstack_compute::config::SlurmConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Group, Lifecycle, Owned,
    Removal, Sign,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use futures_util::StreamExt as _;
use futures_util::stream;

use cluster::Cluster;
pub use login::{LoginError, LoginNode, LoginNodes, Output};
use submission::{KEYS_KIND, Named};

/// So many clusters are talked to at the same time.
const MAX_CLUSTERS_AT_ONCE: usize = 16;

/// The kind of backends for Slurm.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    kind_through(env, Arc::new(ssh::SshLogins))
}

/// As [`kind`], with other login nodes than those over SSH.
pub fn kind_through(env: Env, logins: Arc<dyn LoginNodes>) -> Arc<dyn BackendKind> {
    Kind::of(SlurmKind { env, logins })
}

#[derive(Debug)]
struct SlurmKind {
    env: Env,
    logins: Arc<dyn LoginNodes>,
}

impl SlurmKind {
    fn clusters(&self, config: &SlurmConfig) -> Result<Vec<Arc<Cluster>>, String> {
        let cluster = |cluster| Cluster::new(cluster, &self.env, self.logins.as_ref()).map(Arc::new);
        config.clusters.iter().map(cluster).collect()
    }
}

#[async_trait]
impl CloudKind for SlurmKind {
    type Config = SlurmConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            multinode: true,
            compute_groups: true,
            ..Capabilities::default()
        }
    }

    /// Images are imported first.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(20 * 60)
    }

    async fn check(&self, config: SlurmConfig) -> Result<SlurmConfig, ConfigureError> {
        configure::check(self, &config).await?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: SlurmConfig) -> Result<Arc<dyn Backend>, String> {
        let clusters = kind.clusters(&config)?;
        Ok(Arc::new(Slurm { kind, clusters }))
    }
}

/// The clusters of one configuration.
#[derive(Debug)]
struct Slurm {
    kind: Kind<SlurmKind>,
    clusters: Vec<Arc<Cluster>>,
}

impl Slurm {
    fn cluster(&self, name: &str) -> Result<&Cluster, ComputeError> {
        let found = self.clusters.iter().find(|cluster| cluster.name == name);
        found.map(Arc::as_ref).ok_or_else(|| {
            ComputeError::Configuration(format!(
                "the backend has no cluster '{name}' any more: add it to `clusters` again, at least until nothing runs there"
            ))
        })
    }

    /// How jobs are, each cluster asked once.
    async fn look_at<K, P>(
        &self,
        known: &[K],
        place: impl Fn(&K) -> (String, Option<Named>),
    ) -> Result<Vec<Option<Sign<P>>>, ComputeError> {
        let jobs: Vec<(String, Option<Named>)> = known.iter().map(place).collect();
        let cluster = |(cluster, job): &'_ (String, Option<Named>)| job.as_ref().map(|_| cluster.clone());
        look_by_place(&jobs, cluster, |cluster, jobs| async move {
            let jobs: Vec<&Named> = jobs.into_iter().filter_map(|(_, job)| job.as_ref()).collect();
            self.cluster(&cluster)?.look(&jobs).await
        })
        .await
    }
}

#[async_trait]
impl Backend for Slurm {
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

    fn groups(&self) -> Option<&dyn Lifecycle<Group>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        let owned = |cluster: &Arc<Cluster>| {
            let cluster = Arc::clone(cluster);
            async move { cluster.owned().await }
        };
        let lists = stream::iter(self.clusters.iter().map(owned)).buffered(MAX_CLUSTERS_AT_ONCE);
        let lists: Vec<Result<Vec<Owned>, ComputeError>> = lists.collect().await;
        let lists: Vec<Vec<Owned>> = lists.into_iter().collect::<Result<_, _>>()?;
        Ok(lists.into_iter().flatten().collect())
    }

    fn is_at(&self, owned: &Owned, place: &JobProvisioningData) -> bool {
        let job = Named::of_instance(&place.instance_id);
        job.is_some_and(|job| job.id == owned.id && job.name == owned.name) && owned.region == place.region
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        let cluster = self.cluster(&owned.region)?;
        match owned.kind == KEYS_KIND {
            true => cluster.remove_keys(&owned.name).await,
            false => cluster.cancel(&owned.id, &owned.name).await,
        }
    }
}
