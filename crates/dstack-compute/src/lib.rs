//! The contract between the control plane and a cloud.
//!
//! A [`Backend`] is one configured cloud of one project. What it can do beyond offers, its [`BackendKind`] says
//! ([`Capabilities`]); the control plane never asks which cloud it talks to. All that costs money has the same three verbs
//! ([`Lifecycle`]), and a backend notes what it is about to make before it makes it ([`Call`]).

#![warn(missing_docs)]

mod call;
mod capabilities;
pub mod config;
mod containers;
mod error;
mod gateways;
mod inventory;
mod job_needs;
mod lifecycle;
mod load_balancers;
mod machines;
mod marks;
mod placements;
mod registry;
mod setup;
mod volumes;
mod yaml;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_model::backends::BackendType;
#[cfg(doc)]
use dstack_model::instances::InstanceRuntime;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use dstack_units::ProjectId;

pub use call::{CALL_LIMIT, Call, Journal, LISTED_WITHIN};
pub use capabilities::Capabilities;
pub use containers::{
    CONTAINER_SSH_PORT, Container, ContainerRequest, Group, GroupRequest, MountedFolder, MountedVolume,
    RegistryLogin, Workload,
};
pub use error::ComputeError;
pub use gateways::{GATEWAY_USER, GatewayMachine, GatewayRequest};
pub use inventory::{Inventory, MissingRegion, Owned, OwnedKind, OwnedMark};
pub use job_needs::{JobNeeds, MountedPath};
pub use lifecycle::{Known, Lifecycle, Removal, Resource, Sign, Step};
pub use load_balancers::{Balancing, LoadBalancer, LoadBalancerRequest, LoadBalancers};
pub use machines::{Machine, MachineRequest, Owner};
pub use marks::{INSTALLATION_TAG, KEY_TAG, Marks, NameCode};
pub use placements::{Placement, PlacementRequest, placement_name};
pub use registry::{BackendKind, ConfigureError, PROVISIONING_TIMEOUT, Registry};
pub use setup::MachineSetup;
pub use volumes::{Attachment, AttachmentSite, Volume, VolumeRequest, Volumes};

/// One configured cloud of one project.
#[async_trait]
pub trait Backend: Send + Sync + Debug {
    /// Returns the kind that opened it.
    fn backend_kind(&self) -> &dyn BackendKind;

    /// Returns the type of the backend: that of its kind.
    fn kind(&self) -> BackendType {
        self.backend_kind().kind()
    }

    /// Returns what it can do beyond offers: what all backends of its kind can.
    fn capabilities(&self) -> Capabilities {
        self.backend_kind().capabilities()
    }

    /// What could be had for these requirements, in the backend's own order (by price unless the cloud has reasons
    /// for another). Availability and quotas are filled in as far as they are known without a call per offer.
    ///
    /// # Errors
    /// The cloud does not answer, refuses the credentials, or answers nonsense.
    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError>;

    /// Its machines, if it makes any.
    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        None
    }

    /// Its containers without a host of ours, if it runs any: of offers with [`InstanceRuntime::Runner`].
    fn containers(&self) -> Option<&dyn Lifecycle<Container>> {
        None
    }

    /// Its groups of containers, if it makes such.
    fn groups(&self) -> Option<&dyn Lifecycle<Group>> {
        None
    }

    /// Its network volumes, if it has such.
    fn volumes(&self) -> Option<&dyn Volumes> {
        None
    }

    /// Its groups of machines that are close to each other, if it has such.
    fn placements(&self) -> Option<&dyn Lifecycle<Placement>> {
        None
    }

    /// Its machines for gateways, if it makes such.
    fn gateways(&self) -> Option<&dyn Lifecycle<GatewayMachine>> {
        None
    }

    /// Its load balancers for such machines, if it makes such.
    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        None
    }

    /// All that carries marks of any installation, of every kind and in every region, with the pieces of each.
    ///
    /// # Errors
    /// The cloud does not tell all of it: nothing is concluded from what it does tell.
    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError>;

    /// As [`Backend::inventory`], where regions are asked one by one: one that does not tell is named, and hides no other.
    ///
    /// # Errors
    /// No region tells.
    async fn inventory_by_region(&self) -> Result<Inventory, ComputeError> {
        self.inventory().await.map(Inventory::whole)
    }

    /// Whether a machine or container of the inventory is the one at this place: another with the marks of the same row is one too
    /// many.
    fn is_at(&self, owned: &Owned, place: &JobProvisioningData) -> bool {
        owned.id == place.instance_id
    }

    /// Removes something of the inventory that nobody knows of; asked again until it is gone.
    ///
    /// # Errors
    /// It may still be there.
    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError>;
}

/// The configured backends of projects.
#[async_trait]
pub trait Backends: Send + Sync + Debug {
    /// Of one project, in the order in which they were configured.
    ///
    /// # Errors
    /// The configurations cannot be read.
    async fn of_project(&self, project: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError>;

    /// Of all projects, by account.
    ///
    /// # Errors
    /// The configurations cannot be read.
    async fn accounts(&self) -> Result<Vec<Account>, ComputeError>;

    /// [`BackendKind::provisioning_timeout`] of this type of backends, configured or not.
    fn provisioning_timeout(&self, _kind: BackendType, _instance_type: &str) -> Duration {
        PROVISIONING_TIMEOUT
    }

    /// [`BackendKind::job_needs`] of this type of backends, configured or not.
    fn job_needs(&self, _kind: BackendType, _instance_type: &str) -> JobNeeds {
        JobNeeds::NONE
    }
}

/// One account of a cloud, as far as anybody can tell: what these projects have configured alike, credentials included.
#[derive(Debug, Clone)]
pub struct Account {
    /// Stays the same while the project that has had it longest keeps it.
    pub id: String,
    /// Type of the backend, such as `aws`.
    pub kind: String,
    /// The backend; or why what is stored cannot be used.
    pub backend: Result<Arc<dyn Backend>, ComputeError>,
    /// Who has it, that which has had it longest first.
    pub projects: Vec<AccountProject>,
}

/// A project that has an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountProject {
    /// Id of the project.
    pub id: ProjectId,
    /// Name of the project.
    pub name: String,
}

/// No backends at all.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoBackends;

#[async_trait]
impl Backends for NoBackends {
    async fn of_project(&self, _project: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError> {
        Ok(Vec::new())
    }

    async fn accounts(&self) -> Result<Vec<Account>, ComputeError> {
        Ok(Vec::new())
    }
}
