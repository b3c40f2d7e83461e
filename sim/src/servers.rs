//! One of several servers that share a store, with faults of its own.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_engine::failpoint::NoFailpoints;
use dstack_engine::{Batch, Engine, EngineDeps, Identity, Output, Result as EngineResult};
use dstack_plan::hosts::HostKey;
use dstack_store::queries::health::StoredCheck;
use dstack_store::queries::metrics::MetricsPoint;
use dstack_store::queries::orphans::{MadeFor, MadeKey, OrphanRow};
use dstack_store::rows::{FleetRow, InstanceRow, JobRow, RunRow, VolumeRow};
use dstack_store::{
    Acquired, AttachmentSnapshot, AttachmentsOf, ChangeFeed, Claim, Commit, ComputeGroupSnapshot,
    EngineStore, EntityRef, FleetSnapshot, GatewayReplicaSnapshot, GatewaySnapshot, InstanceSnapshot,
    JobSnapshot, Lease, LeaseRequest, MemoryStore, PlacementGroupSnapshot, PlacementSnapshot, Result,
    RunSnapshot, VolumeSnapshot, VolumeUse,
};
use dstack_system::Clock;
use dstack_system::clock::SharedClock;
use dstack_units::{
    AttachmentId, ComputeGroupId, FleetId, GatewayId, GatewayReplicaId, InstanceId, JobId, PlacementGroupId,
    ProjectId, RunId, Time, VolumeId,
};
use tokio::sync::watch;
use uuid::Uuid;

use crate::World;
use crate::output::SimOutput;

/// A server, and the handles of its faults.
#[derive(Debug)]
pub struct Server {
    /// The engine that this process runs.
    pub engine: Engine,
    /// Who it is.
    pub identity: Identity,
    caller: Arc<Caller>,
    hanging: watch::Sender<bool>,
    duties: Arc<AtomicUsize>,
    attachments: Arc<AtomicUsize>,
}

impl Server {
    /// How often it has asked for what one server does for all.
    pub fn duties_asked(&self) -> usize {
        self.duties.load(Ordering::SeqCst)
    }

    /// How often it has asked who has volumes.
    pub fn attachments_asked(&self) -> usize {
        self.attachments.load(Ordering::SeqCst)
    }

    /// From now on its questions about its lease get no answer, or again at once those that were asked meanwhile.
    pub fn hang_lease(&self, hangs: bool) {
        self.hanging.send_replace(hangs);
    }

    /// What it did outside, or stored, while it had no lease.
    pub fn trespasses(&self) -> Vec<String> {
        let noted = self.caller.trespasses.lock();
        noted.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often it has taken its lease.
    pub fn generation(&self) -> Option<i64> {
        let term = self.engine.context().leases.term();
        term.map(|term| term.lease().generation)
    }
}

impl World {
    /// Starts a process of the server of this name, whose clock is ahead by `skew`.
    pub async fn start_server(&self, name: &str, skew: Duration) -> EngineResult<Server> {
        self.start_process(self.identity(name), skew).await
    }

    /// Starts this process of a server.
    pub async fn start_process(&self, identity: Identity, skew: Duration) -> EngineResult<Server> {
        let caller = Arc::new(Caller {
            store: Arc::clone(&self.store),
            name: identity.name.clone(),
            process: identity.process,
            trespasses: Mutex::default(),
        });
        let hanging = watch::Sender::new(false);
        let duties = Arc::new(AtomicUsize::new(0));
        let attachments = Arc::new(AtomicUsize::new(0));
        let mut deps = self.deps(Arc::new(NoFailpoints));
        deps.settings.identity = Some(identity.clone());
        let deps = EngineDeps {
            store: Arc::new(ServerStore {
                store: Arc::clone(&self.store),
                hanging: hanging.subscribe(),
                duties: Arc::clone(&duties),
                attachments: Arc::clone(&attachments),
            }),
            agents: Arc::new(self.hosts.called_by(&caller)),
            backends: Arc::new(self.clouds.called_by(&caller)),
            output: Arc::new(ServerOutput {
                output: Arc::clone(&self.output),
                caller: Arc::clone(&caller),
            }),
            clock: Arc::new(SkewedClock {
                clock: Arc::clone(&self.clock),
                skew,
            }),
            ..deps
        };
        Ok(Server {
            engine: self.launch(deps).await?,
            identity,
            caller,
            hanging,
            duties,
            attachments,
        })
    }
}

/// Notes what a process does while it has no lease.
#[derive(Debug)]
pub(crate) struct Caller {
    store: Arc<MemoryStore>,
    name: String,
    process: Uuid,
    trespasses: Mutex<Vec<String>>,
}

impl Caller {
    pub(crate) fn acts(&self, what: &str) {
        if !self.store.lives(&self.name, self.process) {
            let mut noted = self.trespasses.lock().unwrap_or_else(PoisonError::into_inner);
            noted.push(what.to_owned());
        }
    }
}

#[derive(Debug)]
struct ServerOutput {
    output: Arc<SimOutput>,
    caller: Arc<Caller>,
}

#[async_trait]
impl Output for ServerOutput {
    async fn append(&self, job: &JobRow, batch: Batch) -> EngineResult<()> {
        self.caller.acts("append output");
        self.output.append(job, batch).await
    }
}

#[derive(Debug)]
struct SkewedClock {
    clock: SharedClock,
    skew: Duration,
}

impl Clock for SkewedClock {
    fn now(&self) -> Time {
        self.clock.now() + self.skew
    }
}

/// The store as one server reaches it.
#[derive(Debug)]
struct ServerStore {
    store: Arc<MemoryStore>,
    hanging: watch::Receiver<bool>,
    duties: Arc<AtomicUsize>,
    attachments: Arc<AtomicUsize>,
}

impl ServerStore {
    async fn lease_answers(&self) {
        // Ends with the server that has the other end.
        self.hanging.clone().wait_for(|hangs| !hangs).await.ok();
    }
}

#[async_trait]
impl EngineStore for ServerStore {
    async fn acquire(&self, request: &LeaseRequest) -> Result<Acquired> {
        self.lease_answers().await;
        self.store.acquire(request).await
    }
    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<bool> {
        self.lease_answers().await;
        self.store.renew(lease, duration).await
    }

    async fn commit(&self, commit: Commit) -> Result<()> {
        self.store.commit(commit).await
    }
    async fn run(&self, id: RunId) -> Result<Option<RunSnapshot>> {
        self.store.run(id).await
    }
    async fn job(&self, id: JobId) -> Result<Option<JobSnapshot>> {
        self.store.job(id).await
    }
    async fn instance(&self, id: InstanceId) -> Result<Option<InstanceSnapshot>> {
        self.store.instance(id).await
    }
    async fn fleet(&self, id: FleetId) -> Result<Option<FleetSnapshot>> {
        self.store.fleet(id).await
    }
    async fn volume(&self, id: VolumeId) -> Result<Option<VolumeSnapshot>> {
        self.store.volume(id).await
    }
    async fn attachment(&self, id: AttachmentId) -> Result<Option<AttachmentSnapshot>> {
        self.store.attachment(id).await
    }
    async fn attachments(&self, of: AttachmentsOf) -> Result<Vec<VolumeUse>> {
        self.attachments.fetch_add(1, Ordering::SeqCst);
        self.store.attachments(of).await
    }
    async fn placement_group(&self, id: PlacementGroupId) -> Result<Option<PlacementGroupSnapshot>> {
        self.store.placement_group(id).await
    }
    async fn compute_group(&self, id: ComputeGroupId) -> Result<Option<ComputeGroupSnapshot>> {
        self.store.compute_group(id).await
    }
    async fn gateway(&self, id: GatewayId) -> Result<Option<GatewaySnapshot>> {
        self.store.gateway(id).await
    }
    async fn gateway_replica(&self, id: GatewayReplicaId) -> Result<Option<GatewayReplicaSnapshot>> {
        self.store.gateway_replica(id).await
    }
    async fn volumes(&self, project: ProjectId) -> Result<Vec<VolumeRow>> {
        self.store.volumes(project).await
    }
    async fn run_by_name(&self, project: ProjectId, name: &str) -> Result<Option<RunRow>> {
        self.store.run_by_name(project, name).await
    }
    async fn runs_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<RunRow>> {
        self.store.runs_by_names(project, names).await
    }
    async fn run_names(&self, project: ProjectId, prefix: &str) -> Result<Vec<String>> {
        self.store.run_names(project, prefix).await
    }
    async fn fleet_by_name(&self, project: ProjectId, name: &str) -> Result<Option<FleetRow>> {
        self.store.fleet_by_name(project, name).await
    }
    async fn fleets_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<FleetRow>> {
        self.store.fleets_by_names(project, names).await
    }
    async fn fleet_names(&self, project: ProjectId) -> Result<Vec<String>> {
        self.store.fleet_names(project).await
    }
    async fn remote_hosts(&self) -> Result<Vec<(Option<FleetId>, HostKey)>> {
        self.store.remote_hosts().await
    }
    async fn hosts_on(&self, machine: &str) -> Result<Vec<InstanceRow>> {
        self.store.hosts_on(machine).await
    }
    async fn imports_fleet(&self, project: ProjectId, fleet: FleetId) -> Result<bool> {
        self.store.imports_fleet(project, fleet).await
    }
    async fn placement(&self, project: ProjectId) -> Result<PlacementSnapshot> {
        self.store.placement(project).await
    }
    async fn waiting(&self, owner: &str, project: ProjectId, limit: usize) -> Result<Vec<(JobId, RunId)>> {
        self.store.waiting(owner, project, limit).await
    }
    async fn add_metrics(&self, job: JobId, point: MetricsPoint) -> Result<()> {
        self.store.add_metrics(job, point).await
    }
    async fn metrics_since(&self, job: JobId, after: Time) -> Result<Vec<MetricsPoint>> {
        self.store.metrics_since(job, after).await
    }
    async fn add_health_check(&self, id: Uuid, instance: InstanceId, check: StoredCheck) -> Result<()> {
        self.store.add_health_check(id, instance, check).await
    }
    async fn first_expiry(&self, owner: &str) -> Result<Option<Duration>> {
        self.store.first_expiry(owner).await
    }
    async fn claim(&self, claim: &Claim) -> Result<Vec<(EntityRef, Time)>> {
        self.store.claim(claim).await
    }
    async fn all_volumes(&self) -> Result<Vec<VolumeRow>> {
        self.store.all_volumes().await
    }
    async fn made_for(&self, keys: &BTreeSet<MadeKey>) -> Result<Vec<MadeFor>> {
        self.store.made_for(keys).await
    }
    async fn orphans(&self) -> Result<Vec<OrphanRow>> {
        self.store.orphans().await
    }
    async fn take_duty(&self, duty: &'static str, owner: &str) -> Result<bool> {
        self.duties.fetch_add(1, Ordering::SeqCst);
        self.store.take_duty(duty, owner).await
    }
    async fn owner_of(&self, entity: EntityRef) -> Result<Option<String>> {
        self.store.owner_of(entity).await
    }
    async fn notify_owner(&self, entity: EntityRef) -> Result<()> {
        self.store.notify_owner(entity).await
    }
    async fn subscribe(&self) -> Result<Option<Box<dyn ChangeFeed>>> {
        self.store.subscribe().await
    }
}
