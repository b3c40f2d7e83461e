//! [Amazon Web Services](https://aws.amazon.com): machines of EC2, volumes of EBS, placement groups.
//!
//! `client` makes calls, `signing` signs them with `keys`, which may be of a role that `sts` gives, `errors` says what refusals mean, `ec2` and `elb` have the answers that are read. `configure` checks
//! configurations, `network`, `groups` and `images` find what machines are made in and of, `offers` what can be had, `reservations` what
//! was reserved. `efa` knows the types whose jobs need its libraries. `run_instances` is the call that makes a machine, `machines` and `addresses` its life; `gateways`, `load_balancers`, `placements`,
//! `volumes` and `attachments` are those of the others. `inventory` finds what was left behind.

#![warn(missing_docs)]

mod addresses;
mod attachments;
mod cached;
mod client;
mod configure;
mod ec2;
mod efa;
mod elb;
mod errors;
mod gateways;
mod groups;
mod images;
mod inventory;
mod keys;
mod load_balancers;
mod machines;
mod network;
mod offers;
mod placements;
mod reservations;
mod run_instances;
mod signing;
mod sts;
mod tags;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{CloudKind, Env, Kind};
use dstack_compute::config::AwsConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, GatewayMachine, Inventory, JobNeeds,
    Lifecycle, LoadBalancers, Machine, Owned, Placement, Removal, Volumes,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use cached::CachedByKey;
use client::Client;
use ec2::Image;
use network::Network;
use offers::Quotas;

/// How long what an account has (networks, groups, images, quotas) is taken for true.
const LOOKUP_LIFETIME: Duration = Duration::from_secs(600);

/// How long what AWS has (zones, types) is taken for true.
const CATALOG_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The kind of backends for AWS.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(AwsKind { env })
}

#[derive(Debug)]
struct AwsKind {
    env: Env,
}

#[async_trait]
impl CloudKind for AwsKind {
    type Config = AwsConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            reservations: true,
            placement_groups: true,
            volumes: true,
            gateways: true,
            private_gateways: true,
            load_balancers: true,
            ..Capabilities::default()
        }
    }

    fn job_needs(instance_type: &str) -> JobNeeds {
        JobNeeds {
            has_efa: efa::is_in_image(instance_type),
            ..JobNeeds::NONE
        }
    }

    async fn check(&self, config: AwsConfig) -> Result<AwsConfig, ConfigureError> {
        let client = Client::new(&self.env, &config).map_err(ConfigureError::Invalid)?;
        configure::check(&client, &config).await?;
        Ok(AwsConfig {
            regions: Some(configure::regions(&config)),
            ..config
        })
    }

    fn open(kind: Kind<Self>, config: AwsConfig) -> Result<Arc<dyn Backend>, String> {
        let client = Client::new(&kind.env, &config)?;
        let clock = || Arc::clone(&kind.env.clock);
        Ok(Arc::new(Aws {
            regions: configure::regions(&config),
            config,
            client,
            networks: CachedByKey::new(clock(), LOOKUP_LIFETIME),
            security_groups: CachedByKey::new(clock(), LOOKUP_LIFETIME),
            images: CachedByKey::new(clock(), LOOKUP_LIFETIME),
            quotas: CachedByKey::new(clock(), LOOKUP_LIFETIME),
            zones: CachedByKey::new(clock(), CATALOG_LIFETIME),
            efa: CachedByKey::new(clock(), CATALOG_LIFETIME),
            kind,
        }))
    }
}

/// The backend of one account: its client, and what was looked up of late with it.
#[derive(Debug)]
struct Aws {
    kind: Kind<AwsKind>,
    config: AwsConfig,
    regions: Vec<String>,
    client: Client,
    networks: CachedByKey<Network>,
    security_groups: CachedByKey<String>,
    images: CachedByKey<Image>,
    quotas: CachedByKey<Quotas>,
    /// Zones of regions.
    zones: CachedByKey<Vec<String>>,
    /// Most EFA interfaces of types.
    efa: CachedByKey<u32>,
}

impl Aws {
    /// Networks, groups and images are looked up again.
    fn forget_lookups(&self) {
        self.networks.forget();
        self.security_groups.forget();
        self.images.forget();
    }
}

#[async_trait]
impl Backend for Aws {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.find_offers(requirements).await
    }

    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        Some(self)
    }

    fn volumes(&self) -> Option<&dyn Volumes> {
        Some(self)
    }

    fn placements(&self) -> Option<&dyn Lifecycle<Placement>> {
        Some(self)
    }

    fn gateways(&self) -> Option<&dyn Lifecycle<GatewayMachine>> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await?.into_whole()
    }

    async fn inventory_by_region(&self) -> Result<Inventory, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.remove_by_kind(owned).await
    }
}
