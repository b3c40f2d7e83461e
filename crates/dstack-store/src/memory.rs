//! The engine's store in memory, for simulation: same rules, no I/O, so that virtual time never runs ahead of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::hosts::HostKey;
use dstack_units::{
    AttachmentId, ComputeGroupId, FleetId, GatewayId, GatewayReplicaId, InstanceId, JobId, OperationId,
    PlacementGroupId, ProjectId, RunId, Time, VolumeId,
};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;
use uuid::Uuid;

use crate::changes::Tracked as _;
use crate::entities::with_entities;
use crate::lease::{Acquired, Claim, Lease, LeaseRequest};
use crate::queries::health::StoredCheck;
use crate::queries::metrics::MetricsPoint;
use crate::queries::orphans::{MadeFor, MadeKey, OrphanRow};
use crate::rows::{
    AttachmentRow, ComputeGroupRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow,
    OperationKind, OperationRow, OperationState, PlacementGroupRow, RunRow, VolumeRow,
};
use crate::writes::Change;
use crate::{
    AttachmentSnapshot, AttachmentsOf, ChangeFeed, Commit, ComputeGroupSnapshot, EngineStore, Entity,
    EntityRef, FleetSnapshot, GatewayReplicaSnapshot, GatewaySnapshot, GroupOfInstance, InstanceSnapshot,
    JobSnapshot, NewEvent, PlacementGroupSnapshot, PlacementSnapshot, Put, Removal, Result, RunSnapshot,
    Sealed, StoreError, VolumeJob, VolumeSnapshot, VolumeUse,
};

/// Of a lease that does not run out.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A lease, and when it runs out by the clock of the store.
#[derive(Debug, Clone)]
struct HeldLease {
    process: Uuid,
    generation: i64,
    expires_at: Instant,
}

macro_rules! generate_tables {
    ($($name:ident($row:ident, $id:ident) in $table:ident as $kind:literal, driven $driven:literal, is_over |$it:ident| $is_over:expr;)*) => {
        /// All rows, operations and events in memory, by table.
        #[derive(Debug, Clone, Default)]
        pub struct Tables {
            $(
                #[doc = concat!("Rows of `", stringify!($table), "`, by id.")]
                pub $table: BTreeMap<$id, $row>,
            )*
            /// Operations, by id.
            pub operations: BTreeMap<OperationId, OperationRow>,
            /// Events, in order.
            pub events: Vec<NewEvent>,
            /// What jobs used, oldest first.
            pub metrics: BTreeMap<JobId, Vec<MetricsPoint>>,
            /// What agents said of the GPUs of instances, oldest first.
            pub health_checks: BTreeMap<InstanceId, Vec<StoredCheck>>,
            /// Default gateways of projects: the only part of the directory that is kept.
            pub default_gateways: BTreeMap<ProjectId, GatewayId>,
            /// Which projects import which fleets.
            pub imports: BTreeSet<(ProjectId, FleetId)>,
            /// Names of projects, where some import from others.
            pub project_names: BTreeMap<ProjectId, String>,
            /// Backends that commits expected to be there: there are no rows of them, and none is ever gone.
            pub expected_backends: BTreeSet<(ProjectId, String)>,
            /// What is remembered of things in clouds that belong to nobody, by key.
            pub orphans: BTreeMap<String, OrphanRow>,
            duties: BTreeMap<&'static str, String>,
            owners: BTreeMap<EntityRef, String>,
            servers: BTreeMap<String, HeldLease>,
            index: Index,
        }

        impl Tables {
            fn check(&self, put: &Put) -> Result<()> {
                match put {
                    $(Put::$name(row) => check(&self.$table, row),)*
                    Put::Operation(row) => self.check_operation(row),
                }
            }

            fn write_row(&mut self, put: &Put) {
                match put {
                    $(Put::$name(row) => write(&mut self.$table, row),)*
                    Put::Operation(row) => write(&mut self.operations, row),
                }
            }

            fn check_removal(&self, removal: &Removal) -> Result<()> {
                let stored = match removal.entity {
                    $(EntityRef::$name(id) => self.$table.get(&id).map(Entity::version),)*
                };
                match stored == Some(removal.version) {
                    true => Ok(()),
                    false => Err(StoreError::Conflict {
                        entity: removal.entity.table(),
                        id: removal.entity.uuid().to_string(),
                    }),
                }
            }

            fn remove(&mut self, removal: &Removal) {
                match removal.entity {
                    $(EntityRef::$name(id) => drop(self.$table.remove(&id)),)*
                }
                self.operations.retain(|_, row| row.subject != removal.entity);
                if let EntityRef::Gateway(id) = removal.entity {
                    self.default_gateways.retain(|_, default| *default != id);
                    self.gateway_replicas.retain(|_, row| row.gateway_id != id);
                }
            }

            /// The rows that have one of these keys.
            fn made_for(&self, keys: &BTreeSet<MadeKey>) -> Vec<MadeFor> {
                let is_asked = |id: Uuid| keys.iter().any(|key| key.is_of(id));
                let mut found = Vec::new();
                $(
                    let asked = self.$table.values().filter(|row| is_asked(row.id.uuid()));
                    found.extend(asked.map(|$it| MadeFor {
                        id: $it.id.uuid(),
                        entity: EntityRef::$name($it.id),
                        name: $it.name().to_owned(),
                        project: $it.project_id,
                        is_live: !$is_over || self.is_intended(EntityRef::$name($it.id)),
                        ended_at: None,
                        place: self.made_place(EntityRef::$name($it.id)),
                    }));
                )*
                found
            }

            /// Rows that are not over, with their next wake.
            fn live(&self) -> Vec<(EntityRef, Option<Time>)> {
                let mut live = Vec::new();
                $(
                    let not_over = self.$table.values().filter(|$it| !$is_over);
                    live.extend(not_over.map(|row| (EntityRef::$name(row.id), row.next_wake_at())));
                )*
                live
            }
        }
    };
}
with_entities!(generate_tables);

/// Which rows belong to what, so that thousands of them are found without a look at all others.
#[derive(Debug, Clone, Default)]
struct Index {
    /// Jobs by the ids of their run and of their instance.
    jobs: BTreeMap<Uuid, BTreeSet<JobId>>,
    /// Operations by their subject.
    operations: BTreeMap<EntityRef, BTreeSet<OperationId>>,
    /// Operations by their keys.
    keys: BTreeMap<String, OperationId>,
}

impl Index {
    fn put_job(&mut self, before: Option<&JobRow>, row: &JobRow) {
        if let Some(left) = before.and_then(|before| before.instance_id)
            && row.instance_id != Some(left)
            && let Some(jobs) = self.jobs.get_mut(&left.uuid())
        {
            jobs.remove(&row.id);
        }
        let of = [Some(row.run_id.uuid()), row.instance_id.map(InstanceId::uuid)];
        for id in of.into_iter().flatten() {
            self.jobs.entry(id).or_default().insert(row.id);
        }
    }

    fn put_operation(&mut self, row: &OperationRow) {
        self.operations.entry(row.subject).or_default().insert(row.id);
        self.keys.insert(row.key.clone(), row.id);
    }
}

/// A store that forgets everything with the process.
#[derive(Debug)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
    changed: Notify,
    told: broadcast::Sender<EntityRef>,
    /// As on SQLite: one server at a time, whose lease does not run out, and nobody to be told of changes by.
    is_alone: bool,
    /// How long a commit takes.
    commit_time: Duration,
    are_reads_failing: AtomicBool,
    pace: Mutex<BTreeMap<EntityRef, Pace>>,
}

/// How often an entity was written.
#[derive(Debug)]
struct Pace {
    /// When the present second began.
    began: Instant,
    /// Commits of the present second.
    commits: usize,
    /// The most that any second had.
    most: usize,
}

impl Pace {
    fn count(&mut self, now: Instant) {
        if now.duration_since(self.began) >= Duration::from_secs(1) {
            (self.began, self.commits) = (now, 0);
        }
        self.commits += 1;
        self.most = self.most.max(self.commits);
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            tables: Mutex::default(),
            changed: Notify::new(),
            told: broadcast::Sender::new(1024),
            is_alone: false,
            commit_time: Duration::ZERO,
            are_reads_failing: AtomicBool::new(false),
            pace: Mutex::default(),
        }
    }
}

struct MemoryFeed(broadcast::Receiver<EntityRef>);

#[async_trait]
impl ChangeFeed for MemoryFeed {
    async fn next(&mut self) -> Result<Option<EntityRef>> {
        Ok(self.0.recv().await.ok())
    }
}

impl MemoryStore {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one that behaves as SQLite does: the process that takes the lease is the only one there can be.
    pub fn of_one_server() -> Self {
        Self {
            is_alone: true,
            ..Self::default()
        }
    }

    /// The same, with commits that take so long, as those of a database do.
    #[must_use]
    pub fn with_commit_time(self, commit_time: Duration) -> Self {
        Self { commit_time, ..self }
    }

    /// From now on all reads fail, as if the database were away, or no longer. Tests look at [`MemoryStore::tables`].
    pub fn fail_reads(&self, fail: bool) {
        self.are_reads_failing.store(fail, Ordering::Relaxed);
    }

    /// The entity that was written most often within a second, and how often.
    pub fn most_commits(&self) -> Option<(EntityRef, usize)> {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let entities = pace.iter().map(|(entity, pace)| (*entity, pace.most));
        entities.max_by_key(|(_, most)| *most)
    }

    fn count(&self, commit: &Commit) {
        let now = Instant::now();
        let entities: BTreeSet<EntityRef> = commit.puts().iter().map(Put::entity).collect();
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        for entity in entities {
            let new = || Pace {
                began: now,
                commits: 0,
                most: 0,
            };
            pace.entry(entity).or_insert_with(new).count(now);
        }
    }

    /// Names a project.
    pub fn name_project(&self, project: ProjectId, name: &str) {
        self.lock().project_names.insert(project, name.to_owned());
    }

    /// A project imports a fleet of another's from now on, or does not any more.
    pub fn import_fleet(&self, project: ProjectId, fleet: FleetId, imports: bool) {
        let mut tables = self.lock();
        match imports {
            true => tables.imports.insert((project, fleet)),
            false => tables.imports.remove(&(project, fleet)),
        };
    }

    /// A copy of all tables.
    pub fn tables(&self) -> Tables {
        self.lock().clone()
    }

    /// Looks at the tables without a copy of them. `look` must not use the store itself.
    pub fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.lock())
    }

    /// Ends when the tables change. Whatever changes after this call counts, also before the answer is awaited.
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// Whether this process has the lease of the server of this name, by the clock of the store.
    pub fn lives(&self, owner: &str, process: Uuid) -> bool {
        let held = |held: &HeldLease| held.process == process && held.expires_at > Instant::now();
        self.lock().servers.get(owner).is_some_and(held)
    }

    /// Writes, and tells those who wait for a change.
    fn change<T>(&self, write: impl FnOnce(&mut Tables) -> T) -> T {
        let written = write(&mut self.lock());
        self.changed.notify_waiters();
        written
    }

    /// For a read by the engine.
    fn readable(&self) -> Result<MutexGuard<'_, Tables>> {
        match self.are_reads_failing.load(Ordering::Relaxed) {
            true => Err(StoreError::Closed),
            false => Ok(self.lock()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check<E: Entity>(table: &BTreeMap<E::Key, E>, row: &E) -> Result<()> {
    let stored = table.get(&row.key()).map_or(0, Entity::version);
    if stored == row.version() {
        return Ok(());
    }
    Err(StoreError::Conflict {
        entity: E::TABLE,
        id: row.key().to_string(),
    })
}

fn write<E: Entity>(table: &mut BTreeMap<E::Key, E>, row: &E) {
    let mut row = row.clone();
    row.set_version(row.version() + 1);
    table.insert(row.key(), row);
}

/// Refuses changes of tables that this store does not have, instead of dropping them.
fn check_change(tables: &Tables, change: &Change) -> Result<()> {
    match change {
        Change::ExpectFreeHosts { fleet, hosts } => {
            let mut used = tables.remote_hosts();
            match used.find(|(other, host)| *other != Some(*fleet) && hosts.contains(host)) {
                None => Ok(()),
                Some((_, host)) => Err(StoreError::conflict("instances", &host)),
            }
        }
        Change::ExpectOwnMachine {
            instance,
            machine,
            apart,
        } => {
            let is_there = |row: &InstanceRow| row.id != *instance && !apart.contains(&row.id);
            match tables.hosts_on(machine).any(is_there) {
                false => Ok(()),
                true => Err(StoreError::conflict("instances", machine)),
            }
        }
        // Clouds of a simulation are no rows, and none is deleted.
        Change::SetDefaultGateway { .. }
        | Change::ExpectBackend { .. }
        | Change::PutOrphan(_)
        | Change::DeleteOrphan(_) => Ok(()),
        _ => Err(StoreError::NotKept),
    }
}

impl Tables {
    fn check_operation(&self, row: &OperationRow) -> Result<()> {
        let other = self.index.keys.get(&row.key).filter(|other| **other != row.id);
        if other.is_some_and(|other| self.operations.contains_key(other)) {
            return Err(StoreError::Conflict {
                entity: OperationRow::TABLE,
                id: row.key.clone(),
            });
        }
        check(&self.operations, row)
    }

    fn write(&mut self, put: &Put) {
        match put {
            Put::Job(row) => self.index.put_job(self.jobs.get(&row.id), row),
            Put::Operation(row) => self.index.put_operation(row),
            _ => {}
        }
        self.write_row(put);
    }

    fn holds(&self, lease: &Lease) -> bool {
        self.servers.get(&lease.owner).is_some_and(|held| {
            (held.process, held.generation) == (lease.process, lease.generation)
                && held.expires_at > Instant::now()
        })
    }

    fn commit(&mut self, commit: Commit) -> Result<()> {
        if let Some(fence) = commit.fence.as_ref().filter(|fence| !self.holds(fence)) {
            return Err(StoreError::LeaseLost {
                owner: fence.owner.clone(),
            });
        }
        for put in &commit.puts {
            self.check(put)?;
        }
        for removal in &commit.removals {
            self.check_removal(removal)?;
        }
        for change in commit.directory() {
            check_change(self, change)?;
        }
        for put in &commit.puts {
            self.write(put);
            let is_entity = !matches!(put, Put::Operation(_));
            if let (Some(owner), true) = (&commit.owner, is_entity && put.is_insert()) {
                self.owners.insert(put.entity(), owner.clone());
            }
            self.hand_over(put);
        }
        for removal in &commit.removals {
            self.remove(removal);
        }
        for change in commit.directory() {
            self.change(change);
        }
        for run in commit.runs_of_jobs() {
            if let Some(run) = self.runs.get_mut(&run) {
                run.version += 1;
            }
        }
        self.events.extend(commit.events);
        Ok(())
    }

    /// Writes what [`check_change`] lets pass.
    fn change(&mut self, change: &Change) {
        match change {
            Change::SetDefaultGateway { project, gateway } => {
                match gateway {
                    Some(gateway) => self.default_gateways.insert(*project, *gateway),
                    None => self.default_gateways.remove(project),
                };
            }
            Change::ExpectBackend { project, kind } => {
                self.expected_backends.insert((*project, kind.clone()));
            }
            Change::PutOrphan(row) => {
                self.orphans.insert(row.key.clone(), row.clone());
            }
            Change::DeleteOrphan(key) => {
                self.orphans.remove(key);
            }
            _ => {}
        }
    }

    /// A job that got a place is driven by whoever drives the instance.
    fn hand_over(&mut self, put: &Put) {
        if let Put::Job(job) = put
            && job.status() == dstack_model::runs::JobStatus::Provisioning
            && let Some(instance) = job.instance_id
            && let Some(owner) = self.owners.get(&EntityRef::Instance(instance)).cloned()
        {
            self.owners.insert(EntityRef::Job(job.id), owner);
        }
    }

    fn remote_hosts(&self) -> impl Iterator<Item = (Option<FleetId>, HostKey)> {
        let local = |id: FleetId| self.fleets.get(&id).is_some_and(|fleet| fleet.local);
        let hosts = self.instances.values().filter(move |row| {
            row.backend.as_deref() == Some("remote")
                && !row.deleted
                && row.status() != dstack_model::instances::InstanceStatus::Terminated
                && !row.fleet_id.is_some_and(local)
        });
        let named = |row: &InstanceRow| {
            let host = HostKey::of_place(row.job_provisioning_data.as_deref()?)?;
            Some((row.fleet_id, host))
        };
        hosts.filter_map(named)
    }

    fn hosts_on<'a>(&'a self, machine: &'a str) -> impl Iterator<Item = &'a InstanceRow> {
        let is_there = |row: &&InstanceRow| !row.deleted && row.status().is_active();
        let found = self.instances.values().filter(is_there);
        found.filter(move |row| row.machine.as_deref() == Some(machine))
    }

    /// The hosts of the fleet that a gateway names; `None`: there is no such fleet.
    fn hosts_of(&self, gateway: &GatewayRow) -> Option<Vec<InstanceRow>> {
        let Some(name) = gateway.configuration.fleet() else {
            return Some(Vec::new());
        };
        let is_named =
            |row: &&FleetRow| row.project_id == gateway.project_id && row.name == name && !row.deleted;
        let fleet = self.fleets.values().find(is_named)?.id;
        let is_there = |row: &&InstanceRow| row.fleet_id == Some(fleet) && !row.deleted;
        let mut hosts: Vec<InstanceRow> = self.instances.values().filter(is_there).cloned().collect();
        hosts.sort_by_key(|row| row.instance_num);
        Some(hosts)
    }

    /// The placement groups of a fleet that are not over, oldest first.
    fn placement_groups_of(&self, fleet: FleetId) -> Vec<PlacementGroupRow> {
        let of_fleet = |row: &&PlacementGroupRow| row.fleet_id == fleet && !row.status().is_over();
        let mut found: Vec<PlacementGroupRow> =
            self.placement_groups.values().filter(of_fleet).cloned().collect();
        found.sort_by_key(|row| (row.created_at, row.id));
        found
    }

    /// The jobs of a run, or on an instance.
    fn jobs_of(&self, id: Uuid) -> Vec<JobRow> {
        let ids = self.index.jobs.get(&id).into_iter().flatten();
        let mut jobs: Vec<JobRow> = ids.filter_map(|id| self.jobs.get(id)).cloned().collect();
        jobs.sort_by_key(|job| (job.replica_num, job.job_num, job.submission_num, job.id));
        jobs
    }

    /// The attachments that are meant, oldest first.
    fn attachments_of(&self, is_meant: impl Fn(&AttachmentRow) -> bool) -> Vec<AttachmentRow> {
        let meant = self.attachments.values().filter(|row| is_meant(row));
        let mut found: Vec<AttachmentRow> = meant.cloned().collect();
        found.sort_by_key(|row| (row.created_at, row.id));
        found
    }

    fn uses(&self, is_meant: impl Fn(&AttachmentRow) -> bool) -> Vec<VolumeUse> {
        let with_job = |row: AttachmentRow| VolumeUse {
            job: self.jobs.get(&row.job_id).map(VolumeJob::from),
            row,
        };
        self.attachments_of(is_meant).into_iter().map(with_job).collect()
    }

    /// Whether a call is still to be made for an entity.
    fn is_intended(&self, subject: EntityRef) -> bool {
        let ids = self.index.operations.get(&subject).into_iter().flatten();
        let mut rows = ids.filter_map(|id| self.operations.get(id));
        rows.any(|row| row.state == OperationState::Intended)
    }

    /// Where an instance is that is not over, unless it is still being made.
    fn made_place(&self, subject: EntityRef) -> Option<Sealed<JobProvisioningData>> {
        let EntityRef::Instance(id) = subject else {
            return None;
        };
        let makes =
            |row: &OperationRow| row.kind == OperationKind::Create && row.state == OperationState::Intended;
        let row = self.instances.get(&id)?;
        let is_over = row.status() == dstack_model::instances::InstanceStatus::Terminated;
        let is_live = !is_over || self.is_intended(subject);
        let is_made = is_live && !self.operations_of(subject).iter().any(makes);
        row.job_provisioning_data.clone().filter(|_| is_made)
    }

    /// The operations made for an entity, oldest first.
    fn operations_of(&self, subject: EntityRef) -> Vec<OperationRow> {
        let ids = self.index.operations.get(&subject).into_iter().flatten();
        let mut found: Vec<OperationRow> = ids.filter_map(|id| self.operations.get(id)).cloned().collect();
        found.sort_by_key(|row| (row.created_at, row.id));
        found
    }
}

#[async_trait]
impl EngineStore for MemoryStore {
    async fn commit(&self, commit: Commit) -> Result<()> {
        // As with a database, others read and write between a decision and its commit.
        match self.commit_time {
            Duration::ZERO => tokio::task::yield_now().await,
            time => tokio::time::sleep(time).await,
        }
        self.count(&commit);
        self.change(|tables| tables.commit(commit))
    }

    async fn run(&self, id: RunId) -> Result<Option<RunSnapshot>> {
        let tables = self.readable()?;
        Ok(tables.runs.get(&id).cloned().map(|run| RunSnapshot {
            run,
            jobs: tables.jobs_of(id.uuid()),
        }))
    }

    async fn job(&self, id: JobId) -> Result<Option<JobSnapshot>> {
        let tables = self.readable()?;
        let Some(job) = tables.jobs.get(&id).cloned() else {
            return Ok(None);
        };
        let Some(run) = tables.runs.get(&job.run_id).cloned() else {
            return Ok(None);
        };
        let instance = job
            .instance_id
            .or(job.used_instance_id)
            .and_then(|id| tables.instances.get(&id).cloned());
        Ok(Some(JobSnapshot {
            attachments: match job.mounts_volumes() {
                true => tables.attachments_of(|row| row.job_id == id),
                false => Vec::new(),
            },
            job,
            run,
            instance,
            operations: tables.operations_of(EntityRef::Job(id)),
        }))
    }

    async fn instance(&self, id: InstanceId) -> Result<Option<InstanceSnapshot>> {
        let tables = self.readable()?;
        let Some(instance) = tables.instances.get(&id).cloned() else {
            return Ok(None);
        };
        let fleet = instance.fleet_id.and_then(|id| tables.fleets.get(&id).cloned());
        let group = instance.compute_group_id;
        let group = group.and_then(|id| Some((id, tables.compute_groups.get(&id)?.clone())));
        let group = group.map(|(id, row)| GroupOfInstance {
            row,
            operations: tables.operations_of(EntityRef::ComputeGroup(id)),
        });
        Ok(Some(InstanceSnapshot {
            instance,
            fleet,
            jobs: tables.jobs_of(id.uuid()),
            operations: tables.operations_of(EntityRef::Instance(id)),
            group,
        }))
    }

    async fn fleet(&self, id: FleetId) -> Result<Option<FleetSnapshot>> {
        let tables = self.readable()?;
        let Some(fleet) = tables.fleets.get(&id).cloned() else {
            return Ok(None);
        };
        let instances = tables
            .instances
            .values()
            .filter(|row| row.fleet_id == Some(id) && !row.deleted)
            .cloned()
            .collect();
        let jobs = tables.jobs.values();
        let with_jobs: BTreeSet<RunId> = jobs
            .filter(|job| job.fleet_id == Some(id))
            .map(|job| job.run_id)
            .collect();
        let active_runs = tables
            .runs
            .values()
            .filter(|run| !run.status().is_finished())
            .filter(|run| run.fleet_id == Some(id) || with_jobs.contains(&run.id))
            .map(|run| run.id)
            .collect();
        Ok(Some(FleetSnapshot {
            fleet,
            instances,
            active_runs,
            placement_groups: tables.placement_groups_of(id),
        }))
    }

    /// Simulations have one project and one user.
    async fn volume(&self, id: VolumeId) -> Result<Option<VolumeSnapshot>> {
        let tables = self.readable()?;
        Ok(tables.volumes.get(&id).cloned().map(|volume| VolumeSnapshot {
            volume,
            project_name: "main".to_owned(),
            user_name: "admin".to_owned(),
            is_attached: tables
                .attachments
                .values()
                .any(|row| row.volume_id == id && row.takes_volume()),
            operations: tables.operations_of(EntityRef::Volume(id)),
        }))
    }

    async fn attachment(&self, id: AttachmentId) -> Result<Option<AttachmentSnapshot>> {
        let tables = self.readable()?;
        let Some(attachment) = tables.attachments.get(&id).cloned() else {
            return Ok(None);
        };
        let Some(volume) = tables.volumes.get(&attachment.volume_id).cloned() else {
            return Ok(None);
        };
        let is_other = |row: &AttachmentRow| row.volume_id == volume.id && row.id != id;
        Ok(Some(AttachmentSnapshot {
            job: tables.jobs.get(&attachment.job_id).map(VolumeJob::from),
            others: tables.uses(is_other),
            instance: tables.instances.get(&attachment.instance_id).cloned(),
            operations: tables.operations_of(EntityRef::Attachment(id)),
            attachment,
            volume,
        }))
    }

    async fn attachments(&self, of: AttachmentsOf) -> Result<Vec<VolumeUse>> {
        let is_meant = |row: &AttachmentRow| match of {
            AttachmentsOf::Project(id) => row.project_id == id,
            AttachmentsOf::Volume(id) => row.volume_id == id,
            AttachmentsOf::Instance(id) => row.instance_id == id,
        };
        Ok(self.readable()?.uses(is_meant))
    }

    async fn gateway(&self, id: GatewayId) -> Result<Option<GatewaySnapshot>> {
        let tables = self.readable()?;
        let Some(gateway) = tables.gateways.get(&id).cloned() else {
            return Ok(None);
        };
        let of_gateway = |row: &&GatewayReplicaRow| row.gateway_id == id;
        let mut replicas: Vec<_> = tables
            .gateway_replicas
            .values()
            .filter(of_gateway)
            .cloned()
            .collect();
        replicas.sort_by_key(|row| (row.created_at, row.replica_num, row.id));
        let hosts = tables.hosts_of(&gateway);
        let is_taken = |host: &InstanceId| {
            let mut active = tables.gateway_replicas.values().filter(|row| !row.is_over());
            active.any(|row| row.instance_id == Some(*host))
        };
        let taken = hosts
            .iter()
            .flatten()
            .map(|row| row.id)
            .filter(is_taken)
            .collect();
        Ok(Some(GatewaySnapshot {
            operations: tables.operations_of(EntityRef::Gateway(id)),
            replicas,
            hosts,
            taken,
            gateway,
        }))
    }

    async fn gateway_replica(&self, id: GatewayReplicaId) -> Result<Option<GatewayReplicaSnapshot>> {
        let tables = self.readable()?;
        let Some(replica) = tables.gateway_replicas.get(&id).cloned() else {
            return Ok(None);
        };
        let Some(gateway) = tables.gateways.get(&replica.gateway_id).cloned() else {
            return Ok(None);
        };
        Ok(Some(GatewayReplicaSnapshot {
            operations: tables.operations_of(EntityRef::GatewayReplica(id)),
            replica,
            gateway,
        }))
    }

    async fn placement_group(&self, id: PlacementGroupId) -> Result<Option<PlacementGroupSnapshot>> {
        let tables = self.readable()?;
        let Some(group) = tables.placement_groups.get(&id).cloned() else {
            return Ok(None);
        };
        let Some(fleet) = tables.fleets.get(&group.fleet_id).cloned() else {
            return Ok(None);
        };
        let is_in = |row: &&InstanceRow| row.placement_group_id == Some(id) && !row.deleted;
        Ok(Some(PlacementGroupSnapshot {
            instances: tables.instances.values().filter(is_in).cloned().collect(),
            operations: tables.operations_of(EntityRef::PlacementGroup(id)),
            group,
            fleet,
        }))
    }

    async fn compute_group(&self, id: ComputeGroupId) -> Result<Option<ComputeGroupSnapshot>> {
        let tables = self.readable()?;
        let Some(group) = tables.compute_groups.get(&id).cloned() else {
            return Ok(None);
        };
        let members = group.members.iter();
        Ok(Some(ComputeGroupSnapshot {
            instances: members
                .filter_map(|id| tables.instances.get(id).cloned())
                .collect(),
            fleet: tables.fleets.get(&group.fleet_id).cloned(),
            operations: tables.operations_of(EntityRef::ComputeGroup(id)),
            group,
        }))
    }

    async fn placement(&self, project: ProjectId) -> Result<PlacementSnapshot> {
        let tables = self.readable()?;
        let imports = |fleet: &FleetRow| tables.imports.contains(&(project, fleet.id));
        let mut fleets: Vec<FleetRow> = tables
            .fleets
            .values()
            .filter(|row| (row.project_id == project || imports(row)) && !row.deleted)
            .cloned()
            .collect();
        fleets.sort_by_key(|row| (row.project_id != project, row.created_at, row.id));
        let of_fleets = |row: &&InstanceRow| fleets.iter().any(|fleet| row.fleet_id == Some(fleet.id));
        let imported = fleets.iter().any(|fleet| fleet.project_id != project);
        let instances: Vec<InstanceRow> = tables
            .instances
            .values()
            .filter(|row| (row.project_id == project || (imported && of_fleets(row))) && !row.deleted)
            .cloned()
            .collect();
        let mut placement = PlacementSnapshot {
            project,
            fleets,
            instances,
            project_names: tables.project_names.clone(),
        };
        placement.sort_instances();
        Ok(placement)
    }

    async fn imports_fleet(&self, project: ProjectId, fleet: FleetId) -> Result<bool> {
        Ok(self.readable()?.imports.contains(&(project, fleet)))
    }

    async fn waiting(&self, owner: &str, project: ProjectId, limit: usize) -> Result<Vec<(JobId, RunId)>> {
        let tables = self.readable()?;
        let owned = |job: &JobRow| {
            tables
                .owners
                .get(&EntityRef::Job(job.id))
                .is_some_and(|name| name == owner)
        };
        let waiting = |job: &JobRow| {
            let placeless =
                job.status() == dstack_model::runs::JobStatus::Submitted && job.instance_id.is_none();
            job.project_id == project && placeless && owned(job)
        };
        let with_run = |job: &JobRow| {
            let run = tables.runs.get(&job.run_id)?;
            Some((-run.priority, job.submitted_at, job.id, run.id))
        };
        let jobs = tables.jobs.values().filter(|job| waiting(job));
        let mut found: Vec<_> = jobs.filter_map(with_run).collect();
        found.sort_unstable();
        found.truncate(limit);
        Ok(found.into_iter().map(|(.., job, run)| (job, run)).collect())
    }

    async fn run_by_name(&self, project: ProjectId, name: &str) -> Result<Option<RunRow>> {
        let mut found = self.runs_by_names(project, &[name.to_owned()]).await?;
        Ok(found.pop())
    }

    async fn runs_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<RunRow>> {
        let tables = self.readable()?;
        let named =
            |run: &&RunRow| run.project_id == project && !run.deleted && names.contains(&run.run_name);
        Ok(tables.runs.values().filter(named).cloned().collect())
    }

    async fn run_names(&self, project: ProjectId, prefix: &str) -> Result<Vec<String>> {
        let tables = self.readable()?;
        let named =
            |run: &&RunRow| run.project_id == project && !run.deleted && run.run_name.starts_with(prefix);
        let found = tables.runs.values().filter(named);
        Ok(found.map(|run| run.run_name.clone()).collect())
    }

    async fn fleet_by_name(&self, project: ProjectId, name: &str) -> Result<Option<FleetRow>> {
        let mut found = self.fleets_by_names(project, &[name.to_owned()]).await?;
        Ok(found.pop())
    }

    async fn fleets_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<FleetRow>> {
        let tables = self.readable()?;
        let named =
            |fleet: &&FleetRow| fleet.project_id == project && !fleet.deleted && names.contains(&fleet.name);
        Ok(tables.fleets.values().filter(named).cloned().collect())
    }

    async fn fleet_names(&self, project: ProjectId) -> Result<Vec<String>> {
        let tables = self.readable()?;
        let of_project = |fleet: &&FleetRow| fleet.project_id == project && !fleet.deleted;
        let found = tables.fleets.values().filter(of_project);
        Ok(found.map(|fleet| fleet.name.clone()).collect())
    }

    async fn volumes(&self, project: ProjectId) -> Result<Vec<VolumeRow>> {
        let tables = self.readable()?;
        let of_project = |row: &&VolumeRow| row.project_id == project && !row.deleted;
        let mut found: Vec<VolumeRow> = tables.volumes.values().filter(of_project).cloned().collect();
        found.sort_by_key(|row| (row.created_at, row.id));
        Ok(found)
    }

    async fn all_volumes(&self) -> Result<Vec<VolumeRow>> {
        let tables = self.readable()?;
        let left = tables.volumes.values().filter(|row| !row.deleted);
        Ok(left.cloned().collect())
    }

    async fn made_for(&self, keys: &BTreeSet<MadeKey>) -> Result<Vec<MadeFor>> {
        Ok(self.readable()?.made_for(keys))
    }

    async fn orphans(&self) -> Result<Vec<OrphanRow>> {
        Ok(self.readable()?.orphans.values().cloned().collect())
    }

    async fn remote_hosts(&self) -> Result<Vec<(Option<FleetId>, HostKey)>> {
        Ok(self.readable()?.remote_hosts().collect())
    }

    async fn hosts_on(&self, machine: &str) -> Result<Vec<InstanceRow>> {
        Ok(self.readable()?.hosts_on(machine).cloned().collect())
    }

    async fn acquire(&self, request: &LeaseRequest) -> Result<Acquired> {
        let (mut tables, now) = (self.lock(), Instant::now());
        let lease = &request.lease;
        if self.is_alone {
            tables.servers.clear();
            let held = HeldLease {
                process: lease.process,
                generation: lease.generation,
                expires_at: now + FOR_EVER,
            };
            tables.servers.insert(lease.owner.clone(), held);
            return Ok(Acquired::Alone);
        }
        let taken = |held: &HeldLease| {
            let own = held.process == lease.process || Some(held.process) == request.predecessor;
            !own && held.expires_at > now
        };
        if let Some(held) = tables.servers.get(&lease.owner).filter(|held| taken(held)) {
            let remaining = held.expires_at - now;
            return Ok(Acquired::Refused { remaining });
        }
        let held = HeldLease {
            process: lease.process,
            generation: lease.generation,
            expires_at: now + request.duration,
        };
        tables.servers.insert(lease.owner.clone(), held);
        Ok(Acquired::Held)
    }

    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<bool> {
        let mut tables = self.lock();
        let holds = tables.holds(lease);
        if let Some(held) = tables.servers.get_mut(&lease.owner).filter(|_| holds) {
            held.expires_at = Instant::now() + duration;
        }
        Ok(holds)
    }

    async fn first_expiry(&self, owner: &str) -> Result<Option<Duration>> {
        let (tables, now) = (self.lock(), Instant::now());
        let others = tables.servers.iter().filter(|(name, _)| *name != owner);
        let remaining = others.map(|(_, held)| held.expires_at.saturating_duration_since(now));
        Ok(remaining.min())
    }

    async fn claim(&self, claim: &Claim) -> Result<Vec<(EntityRef, Time)>> {
        let (mut tables, now) = (self.lock(), Instant::now());
        tables
            .servers
            .retain(|name, held| *name == claim.owner || held.expires_at > now);
        let at_home = |tables: &Tables, entity: EntityRef| match (claim.home, entity) {
            (Some(home), EntityRef::Instance(id)) => id == home,
            (Some(home), EntityRef::Job(id)) => tables
                .jobs
                .get(&id)
                .is_some_and(|job| job.instance_id == Some(home)),
            _ => false,
        };
        let mut found = Vec::new();
        for (entity, wake) in tables.live() {
            let mine = match tables.owners.get(&entity) {
                None => true,
                Some(owner) => {
                    *owner == claim.owner || !tables.servers.contains_key(owner) || at_home(&tables, entity)
                }
            };
            if mine {
                tables.owners.insert(entity, claim.owner.clone());
                found.push((entity, wake.unwrap_or(Time::EPOCH)));
            }
        }
        Ok(found)
    }

    async fn take_duty(&self, duty: &'static str, owner: &str) -> Result<bool> {
        let (mut tables, now) = (self.lock(), Instant::now());
        tables
            .servers
            .retain(|name, held| *name == owner || held.expires_at > now);
        let lives = |other: &String| other != owner && tables.servers.contains_key(other);
        if tables.duties.get(duty).is_some_and(lives) {
            return Ok(false);
        }
        tables.duties.insert(duty, owner.to_owned());
        Ok(true)
    }

    async fn owner_of(&self, entity: EntityRef) -> Result<Option<String>> {
        Ok(self.lock().owners.get(&entity).cloned())
    }

    async fn add_metrics(&self, job: JobId, point: MetricsPoint) -> Result<()> {
        self.change(|tables| tables.metrics.entry(job).or_default().push(point));
        Ok(())
    }

    async fn metrics_since(&self, job: JobId, after: Time) -> Result<Vec<MetricsPoint>> {
        let tables = self.readable()?;
        let points = tables.metrics.get(&job).into_iter().flatten();
        Ok(points.filter(|point| point.at > after).cloned().collect())
    }

    async fn add_health_check(&self, _id: Uuid, instance: InstanceId, check: StoredCheck) -> Result<()> {
        self.change(|tables| tables.health_checks.entry(instance).or_default().push(check));
        Ok(())
    }

    async fn notify_owner(&self, entity: EntityRef) -> Result<()> {
        // Nobody listens: that is no error.
        self.told.send(entity).ok();
        Ok(())
    }

    async fn subscribe(&self) -> Result<Option<Box<dyn ChangeFeed>>> {
        let feed = || Box::new(MemoryFeed(self.told.subscribe())) as Box<dyn ChangeFeed>;
        Ok((!self.is_alone).then(feed))
    }
}

#[cfg(test)]
mod tests {
    use dstack_system::Random;

    use super::*;
    use crate::{Changes, EventMaker};

    #[tokio::test]
    async fn changes_of_the_directory_are_written_or_refused() {
        let (store, random) = (MemoryStore::new(), Random::seeded(1));
        let (project, gateway): (ProjectId, GatewayId) = (random.uuid().into(), random.uuid().into());
        let commit = |change: Change| {
            let mut changes = Changes::new(EventMaker::system(Time::EPOCH, random.clone()));
            changes.directory(change);
            store.commit(changes.into_commit())
        };
        let set = |gateway| Change::SetDefaultGateway { project, gateway };
        commit(set(Some(gateway))).await.unwrap();
        assert_eq!(store.tables().default_gateways.get(&project), Some(&gateway));
        commit(set(None)).await.unwrap();
        assert!(store.tables().default_gateways.is_empty());
        let refused = commit(Change::ClearMembers(project)).await;
        assert!(matches!(refused, Err(StoreError::NotKept)), "{refused:?}");
    }
}
