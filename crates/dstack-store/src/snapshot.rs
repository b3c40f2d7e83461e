//! What the engine reads and writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use dstack_model::runs::JobStatus;
use dstack_plan::hosts::HostKey;
use dstack_units::{
    AttachmentId, ComputeGroupId, FleetId, GatewayId, GatewayReplicaId, InstanceId, JobId, PlacementGroupId,
    ProjectId, RunId, Time, VolumeId,
};
use uuid::Uuid;

use crate::lease::{Acquired, Claim, Lease, LeaseRequest};
use crate::queries::health::StoredCheck;
use crate::queries::metrics::MetricsPoint;
use crate::queries::orphans::{MadeFor, MadeKey, OrphanRow};
use crate::rows::{
    AttachmentRow, ComputeGroupRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow,
    OperationRow, PlacementGroupRow, RunRow, VolumeRow,
};
use crate::{Commit, EntityRef, Result};

/// All that decides about a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSnapshot {
    /// The run.
    pub run: RunRow,
    /// All its submissions, by (replica, job, submission).
    pub jobs: Vec<JobRow>,
}

/// All that decides about a job that has been placed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSnapshot {
    /// The job.
    pub job: JobRow,
    /// Its run.
    pub run: RunRow,
    /// The instance it occupies, or did last.
    pub instance: Option<InstanceRow>,
    /// Its network volumes, as far as they are on their way to the instance, there, or on their way back, and those that could not be
    /// attached as long as it has not taken note; oldest first. Read after the job: whoever takes one for it changes its row.
    pub attachments: Vec<AttachmentRow>,
    /// The operations intended for it.
    pub operations: Vec<OperationRow>,
}

/// All that decides where a job is placed.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementSnapshot {
    /// The project whose jobs are placed.
    pub project: ProjectId,
    /// Its fleets that are not deleted, oldest first; after them those that it imports.
    pub fleets: Vec<FleetRow>,
    /// Their instances that are not deleted, cheapest first.
    pub instances: Vec<InstanceRow>,
    /// Names of the project and of those that imported fleets belong to; empty where it imports none.
    pub project_names: BTreeMap<ProjectId, String>,
}

impl PlacementSnapshot {
    /// Sorts instances as placement looks at them: cheapest first, then oldest.
    pub(crate) fn sort_instances(&mut self) {
        self.instances.sort_by(|a, b| {
            a.price
                .unwrap_or(0.0)
                .total_cmp(&b.price.unwrap_or(0.0))
                .then((a.created_at, a.instance_num, a.id).cmp(&(b.created_at, b.instance_num, b.id)))
        });
    }
}

/// All that decides about an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceSnapshot {
    /// The instance.
    pub instance: InstanceRow,
    /// Row of the fleet whose machines are in the group.
    pub fleet: Option<FleetRow>,
    /// Jobs that occupy it.
    pub jobs: Vec<JobRow>,
    /// The operations intended for the instance itself.
    pub operations: Vec<OperationRow>,
    /// The compute group that it belongs to.
    pub group: Option<GroupOfInstance>,
}

/// The compute group of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupOfInstance {
    /// Row of the group.
    pub row: ComputeGroupRow,
    /// The operations intended for it: its members are made and removed with it.
    pub operations: Vec<OperationRow>,
}

/// All that decides about a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSnapshot {
    /// The fleet.
    pub fleet: FleetRow,
    /// Its instances that are not deleted.
    pub instances: Vec<InstanceRow>,
    /// Runs that are placed in it and not finished.
    pub active_runs: Vec<RunId>,
    /// Its placement groups that are not over, oldest first: only those of a cluster are read.
    pub placement_groups: Vec<PlacementGroupRow>,
}

/// All that decides about a placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementGroupSnapshot {
    /// Row of the placement group.
    pub group: PlacementGroupRow,
    /// Its fleet.
    pub fleet: FleetRow,
    /// The instances of the fleet that are, or are to be, in it; of those that are over, the ones that are still shown.
    pub instances: Vec<InstanceRow>,
    /// The operations intended for it.
    pub operations: Vec<OperationRow>,
}

/// All that decides about a compute group.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeGroupSnapshot {
    /// Row of the compute group.
    pub group: ComputeGroupRow,
    /// The fleet of its instances.
    pub fleet: Option<FleetRow>,
    /// Its instances, in the order of the nodes.
    pub instances: Vec<InstanceRow>,
    /// The operations intended for it.
    pub operations: Vec<OperationRow>,
}

/// All that decides about a volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSnapshot {
    /// The volume.
    pub volume: VolumeRow,
    /// Name of its project.
    pub project_name: String,
    /// Name of the user who created it.
    pub user_name: String,
    /// Whether instances have it, or are to have it.
    pub is_attached: bool,
    /// The operations intended for it.
    pub operations: Vec<OperationRow>,
}

/// All that decides about an attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct AttachmentSnapshot {
    /// The attachment.
    pub attachment: AttachmentRow,
    /// The volume, read before the others that have it: whoever gets the volume changes its row.
    pub volume: VolumeRow,
    /// The instance that has the volume, or is to have it; `None`: its row is gone.
    pub instance: Option<InstanceRow>,
    /// The job for which it is; `None`: it has no row.
    pub job: Option<VolumeJob>,
    /// All other attachments of the volume, oldest first, those that have failed as well.
    pub others: Vec<VolumeUse>,
    /// The operations intended for it.
    pub operations: Vec<OperationRow>,
}

impl AttachmentSnapshot {
    /// Whether its job is not over: the job takes care of it.
    pub fn has_job(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.status.is_finished())
    }
}

/// The job for which an attachment is, as far as the volume is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeJob {
    /// How users know it, such as `train-0-0`.
    pub name: String,
    /// What it is in now: a job that ends gives its volumes back, one that is finished has none.
    pub status: JobStatus,
    /// When it began to end; unset of one that does not end, and of those that began before this was written down.
    pub ending_since: Option<Time>,
}

impl VolumeJob {
    /// Whether it uses its volumes, or is going to: it has not begun to end.
    pub const fn uses_volumes(&self) -> bool {
        !matches!(self.status, JobStatus::Terminating) && !self.status.is_finished()
    }
}

impl From<&JobRow> for VolumeJob {
    fn from(job: &JobRow) -> Self {
        Self {
            name: job.job_name.clone(),
            status: job.status(),
            ending_since: job.ending_since,
        }
    }
}

/// An attachment with the job for which it is.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeUse {
    /// The attachment.
    pub row: AttachmentRow,
    /// The job; `None`: it has no row.
    pub job: Option<VolumeJob>,
}

impl VolumeUse {
    /// The job that uses the volume, unless it ends; no other instance gets the volume soon.
    pub fn user(&self) -> Option<&str> {
        let job = self.job.as_ref().filter(|job| job.uses_volumes())?;
        self.row.is_wanted().then_some(&job.name)
    }

    /// Since when the volume is on its way back: since its job began to end, or since the attachment was given up of a job that
    /// goes on.
    pub fn leaving_since(&self) -> Option<Time> {
        let job = self.job.as_ref().and_then(|job| job.ending_since);
        [job, self.row.detaching_since].into_iter().flatten().min()
    }
}

/// Which attachments are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachmentsOf {
    /// Of the volumes of a project.
    Project(ProjectId),
    /// Of a volume.
    Volume(VolumeId),
    /// To an instance.
    Instance(InstanceId),
}

/// All that decides about a gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewaySnapshot {
    /// The gateway.
    pub gateway: GatewayRow,
    /// All its replicas, also those that are gone, oldest first.
    pub replicas: Vec<GatewayReplicaRow>,
    /// The hosts of the fleet on which its replicas run; none where they have machines of their own. `None`: there is no such fleet.
    pub hosts: Option<Vec<InstanceRow>>,
    /// Those of them that have a replica of a gateway.
    pub taken: Vec<InstanceId>,
    /// The operations intended for its load balancer, oldest first.
    pub operations: Vec<OperationRow>,
}

/// All that decides about a replica of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayReplicaSnapshot {
    /// The replica.
    pub replica: GatewayReplicaRow,
    /// The gateway.
    pub gateway: GatewayRow,
    /// Its operations, oldest first.
    pub operations: Vec<OperationRow>,
}

/// Changes of rows made by other servers.
#[async_trait]
pub trait ChangeFeed: Send {
    /// The next row that has changed or has another owner now; `None` when the connection was lost, and with it what was
    /// told meanwhile.
    async fn next(&mut self) -> Result<Option<EntityRef>>;
}

/// Where the engine's state is kept. Reads see everything committed before; a commit is all or nothing.
#[async_trait]
pub trait EngineStore: Send + Sync + Debug {
    /// Writes the rows, events and operations, if every updated row still has the version read.
    async fn commit(&self, commit: Commit) -> Result<()>;

    /// A run with its jobs.
    async fn run(&self, id: RunId) -> Result<Option<RunSnapshot>>;
    /// A job with run, instance and operations.
    async fn job(&self, id: JobId) -> Result<Option<JobSnapshot>>;
    /// An instance with fleet and jobs.
    async fn instance(&self, id: InstanceId) -> Result<Option<InstanceSnapshot>>;
    /// A fleet with instances.
    async fn fleet(&self, id: FleetId) -> Result<Option<FleetSnapshot>>;
    /// A volume with the names around it.
    async fn volume(&self, id: VolumeId) -> Result<Option<VolumeSnapshot>>;
    /// An attachment of a volume, with what is around it.
    async fn attachment(&self, id: AttachmentId) -> Result<Option<AttachmentSnapshot>>;
    /// Attachments, oldest first.
    async fn attachments(&self, of: AttachmentsOf) -> Result<Vec<VolumeUse>>;
    /// A gateway.
    async fn gateway(&self, id: GatewayId) -> Result<Option<GatewaySnapshot>>;
    /// A replica of a gateway.
    async fn gateway_replica(&self, id: GatewayReplicaId) -> Result<Option<GatewayReplicaSnapshot>>;
    /// A placement group with its fleet.
    async fn placement_group(&self, id: PlacementGroupId) -> Result<Option<PlacementGroupSnapshot>>;
    /// A compute group with its instances.
    async fn compute_group(&self, id: ComputeGroupId) -> Result<Option<ComputeGroupSnapshot>>;
    /// Where jobs of the project may be placed.
    async fn placement(&self, project: ProjectId) -> Result<PlacementSnapshot>;
    /// Whether the project imports the fleet, which is another project's.
    async fn imports_fleet(&self, project: ProjectId, fleet: FleetId) -> Result<bool>;
    /// Up to `limit` jobs of the owner's waiting for a place in the project, each with its run: highest priority first,
    /// then oldest. Jobs for which an instance is being made have their place.
    async fn waiting(&self, owner: &str, project: ProjectId, limit: usize) -> Result<Vec<(JobId, RunId)>>;

    /// The project's run of this name that is not deleted.
    async fn run_by_name(&self, project: ProjectId, name: &str) -> Result<Option<RunRow>>;
    /// The project's runs of these names that are not deleted.
    async fn runs_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<RunRow>>;
    /// Names of the project's runs that are not deleted and begin so.
    async fn run_names(&self, project: ProjectId, prefix: &str) -> Result<Vec<String>>;
    /// The project's fleet of this name that is not deleted.
    async fn fleet_by_name(&self, project: ProjectId, name: &str) -> Result<Option<FleetRow>>;
    /// The project's fleets of these names that are not deleted.
    async fn fleets_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<FleetRow>>;
    /// Names of the project's fleets that are not deleted.
    async fn fleet_names(&self, project: ProjectId) -> Result<Vec<String>>;
    /// The project's volumes that are not deleted, oldest first.
    async fn volumes(&self, project: ProjectId) -> Result<Vec<VolumeRow>>;
    /// The volumes of all projects that are not deleted.
    async fn all_volumes(&self) -> Result<Vec<VolumeRow>>;
    /// The rows with these keys, also those that are over; see [`crate::queries::orphans::Orphans::made_for`].
    async fn made_for(&self, keys: &BTreeSet<MadeKey>) -> Result<Vec<MadeFor>>;
    /// What is remembered of things in clouds that belong to nobody.
    async fn orphans(&self) -> Result<Vec<OrphanRow>>;
    /// Host names of all instances of SSH fleets that are not over, each with its fleet; those of servers' own machines are
    /// left out.
    async fn remote_hosts(&self) -> Result<Vec<(Option<FleetId>, HostKey)>>;
    /// The hosts that are this machine, of those that are not being ended.
    async fn hosts_on(&self, machine: &str) -> Result<Vec<InstanceRow>>;

    /// Keeps what a job used.
    async fn add_metrics(&self, job: JobId, point: MetricsPoint) -> Result<()>;
    /// What a job used after a time, oldest first.
    async fn metrics_since(&self, job: JobId, after: Time) -> Result<Vec<MetricsPoint>>;
    /// Keeps, under this id, what the agent of an instance said of its GPUs.
    async fn add_health_check(&self, id: Uuid, instance: InstanceId, check: StoredCheck) -> Result<()>;

    /// Takes the lease of a server's name, unless another living process has it.
    async fn acquire(&self, request: &LeaseRequest) -> Result<Acquired>;
    /// Renews a lease for `duration` from now on by the store's clock; false when it has run out or was taken.
    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<bool>;
    /// How long until the first lease of another server runs out, unless it is renewed; zero when one has. `None`: there is no
    /// other server.
    async fn first_expiry(&self, owner: &str) -> Result<Option<Duration>>;
    /// Takes over every non-terminal row that no living server drives, and returns those that are the owner's now
    /// with the time at which each wants to be looked at (in the past = at once).
    async fn claim(&self, claim: &Claim) -> Result<Vec<(EntityRef, Time)>>;
    /// Takes what one server does for all, unless another living server has it. Whether it is the owner's now: as long as its
    /// lease lasts.
    async fn take_duty(&self, duty: &'static str, owner: &str) -> Result<bool>;
    /// Who drives the row.
    async fn owner_of(&self, entity: EntityRef) -> Result<Option<String>>;
    /// Tells whoever drives the row that it has changed, or has another owner now.
    async fn notify_owner(&self, entity: EntityRef) -> Result<()>;
    /// Hears from now on what other servers tell; `None` when there can be no others.
    async fn subscribe(&self) -> Result<Option<Box<dyn ChangeFeed>>>;
}
