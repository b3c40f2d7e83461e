//! [Google Cloud](https://cloud.google.com): machines and persistent disks of Compute Engine, TPUs.
//!
//! `client` is the API as far as it is used, `auth` gives its tokens, `federation` those for tokens of others, `errors` says what refusals mean. `configure` checks configurations,
//! `offers` says what can be had, `reservations` what was reserved, `network` where machines are put, `startup` what they are made of,
//! `job_needs` what jobs on them get.
//! `instance` and `tpu` are the requests for one, `machines` its life; `slices` says which TPUs have several hosts, `pods` is their life; `volumes` and `attachments` are those of disks, `placements` that of
//! groups, `gateways` that of machines of gateways. `balancers` is the life of what is before those, `pieces` what it consists of, `members` which
//! machines are behind it. `inventory` finds what was left behind.

#![warn(missing_docs)]

mod attachments;
mod auth;
mod balancers;
mod client;
mod configure;
mod errors;
mod federation;
mod gateways;
mod instance;
mod inventory;
mod job_needs;
mod labels;
mod machines;
mod members;
mod network;
mod offers;
mod pieces;
mod placements;
mod pods;
mod reservations;
mod slices;
mod startup;
mod tpu;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind};
use dstack_compute::config::GcpConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, GatewayMachine, Group, JobNeeds,
    Lifecycle, LoadBalancers, Machine, Owned, PROVISIONING_TIMEOUT, Placement, Removal, Volumes,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};

use attachments::DiskChanges;
use client::Client;
use members::GroupChanges;
use network::Subnets;
use offers::Quotas;

/// How long the list of subnetworks is taken for true: Google allows few calls for it (as in dstack 0.22.5).
const SUBNETS_LIFETIME: Duration = Duration::from_secs(120);

/// How long a rule that is there is taken for it.
const FIREWALL_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of backends for Google Cloud.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(GcpKind { env })
}

#[derive(Debug)]
struct GcpKind {
    env: Env,
}

#[async_trait]
impl CloudKind for GcpKind {
    type Config = GcpConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            gateways: true,
            private_gateways: true,
            load_balancers: true,
            multinode: true,
            compute_groups: true,
            privileged: true,
            instance_volumes: true,
            reservations: true,
            placement_groups: true,
            volumes: true,
        }
    }

    /// Machines with eight B200 start slowly (dstack 0.22.5). The hosts of a pod download the image first.
    fn provisioning_timeout(instance_type: &str) -> Duration {
        match instance_type {
            "a4-highgpu-8g" => Duration::from_secs(16 * 60),
            pod if tpu::is_pod(pod) => Duration::from_secs(20 * 60),
            _ => PROVISIONING_TIMEOUT,
        }
    }

    fn job_needs(instance_type: &str) -> JobNeeds {
        job_needs::of_type(instance_type)
    }

    async fn check(&self, config: GcpConfig) -> Result<GcpConfig, ConfigureError> {
        let client = Client::new(&self.env, &config.creds, &config.project_id)
            .map_err(|error| configure::no_client(&config.creds, error))?;
        configure::check(&client, &config).await?;
        Ok(GcpConfig {
            regions: Some(configure::regions(&config)),
            ..config
        })
    }

    fn open(kind: Kind<Self>, config: GcpConfig) -> Result<Arc<dyn Backend>, String> {
        if let Some(problem) = configure::names_problem(&config) {
            return Err(problem);
        }
        let client = Client::new(&kind.env, &config.creds, &config.project_id);
        let clock = || Arc::clone(&kind.env.clock);
        Ok(Arc::new(Gcp {
            regions: configure::regions(&config),
            client: client.map_err(|error| error.to_string())?,
            quotas: Cached::of_offers(&kind.env),
            subnets: Cached::new(clock(), SUBNETS_LIFETIME, Duration::ZERO),
            disk_changes: DiskChanges::default(),
            group_changes: GroupChanges::default(),
            firewall: Cached::new(clock(), FIREWALL_LIFETIME, Duration::ZERO),
            gateway_firewall: Cached::new(clock(), FIREWALL_LIFETIME, Duration::ZERO),
            config,
            kind,
        }))
    }
}

/// The backend of one project, and what was looked up of late in it.
#[derive(Debug)]
struct Gcp {
    kind: Kind<GcpKind>,
    config: GcpConfig,
    regions: Vec<String>,
    client: Client,
    quotas: Cached<Quotas>,
    subnets: Cached<Subnets>,
    /// TPUs whose disks are being changed.
    disk_changes: DiskChanges,
    /// Groups of instances that are being changed.
    group_changes: GroupChanges,
    /// The rule that lets SSH in is there.
    firewall: Cached<()>,
    /// The rule that lets clients of gateways in is there.
    gateway_firewall: Cached<()>,
}

#[async_trait]
impl Backend for Gcp {
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

    fn groups(&self) -> Option<&dyn Lifecycle<Group>> {
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
        self.list_owned().await
    }

    /// Names are those of a zone.
    fn is_at(&self, owned: &Owned, place: &JobProvisioningData) -> bool {
        owned.id == machines::id_of(place)
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.remove_by_id(owned).await
    }
}
