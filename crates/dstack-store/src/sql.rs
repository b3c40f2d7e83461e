//! The engine's store on SQL.

pub(crate) mod add;
mod servers;
pub(crate) mod write;

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_plan::fleets::is_cluster;
use dstack_plan::hosts::HostKey;
use dstack_units::{
    AttachmentId, ComputeGroupId, FleetId, GatewayId, GatewayReplicaId, InstanceId, JobId, PlacementGroupId,
    ProjectId, RunId, Time, VolumeId,
};
use sqlx::{AssertSqlSafe, SqlStr};
use uuid::Uuid;

pub(crate) use write::put_events;

use crate::entity::select_sql;
use crate::lease::{Acquired, Claim, Lease, LeaseRequest};
use crate::queries::Reads;
use crate::queries::health::{self, StoredCheck};
use crate::queries::metrics::{self, MetricsPoint};
use crate::queries::orphans::{MadeFor, MadeKey, OrphanRow};
use crate::rows::{
    AttachmentRow, ComputeGroupRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow,
    OperationRow, PlacementGroupRow, RunRow, VolumeRow,
};
use crate::{
    AttachmentSnapshot, AttachmentsOf, ChangeFeed, Column, Commit, ComputeGroupSnapshot, Database,
    EngineStore, Entity, EntityRef, FleetSnapshot, GatewayReplicaSnapshot, GatewaySnapshot, GroupOfInstance,
    InstanceSnapshot, JobSnapshot, PlacementGroupSnapshot, PlacementSnapshot, Result, RunSnapshot, VolumeJob,
    VolumeSnapshot, VolumeUse,
};

/// The engine's store on SQL.
#[derive(Debug, Clone)]
pub struct SqlStore {
    database: Database,
}

impl SqlStore {
    /// On an open database.
    pub const fn new(database: Database) -> Self {
        Self { database }
    }

    /// The database underneath.
    pub const fn database(&self) -> &Database {
        &self.database
    }

    async fn by_id<E: Entity>(&self, id: E::Key) -> Result<Option<E>> {
        let row = sqlx::query(statement::<E>("WHERE t.id = $1"))
            .bind(id.to_raw())
            .fetch_optional(self.database.pool())
            .await?;
        row.as_ref()
            .map(|row| E::read(row, self.database.keys()))
            .transpose()
    }

    /// A fleet alone; `None`: there is none.
    ///
    /// # Errors
    /// The database cannot be read, or a stored value of the row cannot.
    pub async fn fleet_row(&self, id: FleetId) -> Result<Option<FleetRow>> {
        self.database.asked(self.by_id(id)).await
    }

    /// All rows of a table that match; `clause` is trusted text with `$1`.
    async fn where_text<E: Entity>(&self, clause: &'static str, value: String) -> Result<Vec<E>> {
        let rows = sqlx::query(statement::<E>(clause))
            .bind(value)
            .fetch_all(self.database.pool())
            .await?;
        let keys = self.database.keys();
        rows.iter().map(|row| E::read(row, keys)).collect()
    }
}

/// Rows by a column, read in one statement; `column` and `order` are trusted text.
pub(crate) async fn by_column<E: Entity>(
    reads: Reads<'_>,
    column: &'static str,
    values: &[String],
    order: &'static str,
) -> Result<Vec<E>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let places = filled(values);
    let list: Vec<String> = (1..=places.len()).map(|place| format!("${place}")).collect();
    let text = format!(
        "{} WHERE t.{column} IN ({}) {order}",
        select_sql::<E>(),
        list.join(", ")
    );
    let mut query = sqlx::query(AssertSqlSafe(text));
    for value in places {
        query = query.bind(value.clone());
    }
    let rows = query.fetch_all(reads.pool()).await?;
    rows.iter().map(|row| E::read(row, reads.keys())).collect()
}

/// So many values that there are few different texts, and they stay prepared: the last fills the places that are left.
pub(crate) fn filled<T>(values: &[T]) -> Vec<&T> {
    let places = values.len().next_power_of_two();
    (0..places)
        .filter_map(|place| values.get(place).or(values.last()))
        .collect()
}

/// `SELECT … FROM table t` + clause, built once.
fn statement<E: Entity>(clause: &'static str) -> SqlStr {
    static TEXTS: LazyLock<Mutex<HashMap<(TypeId, &'static str), &'static str>>> =
        LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = texts
        .entry((TypeId::of::<E>(), clause))
        .or_insert_with(|| Box::leak(format!("{} {clause}", select_sql::<E>()).into_boxed_str()));
    sqlx::SqlSafeStr::into_sql_str(*text)
}

impl SqlStore {
    /// The operations made for an entity, oldest first.
    async fn operations_of(&self, subject: EntityRef) -> Result<Vec<OperationRow>> {
        self.where_text(
            "WHERE t.subject = $1 ORDER BY t.created_at, t.id",
            subject.to_raw(),
        )
        .await
    }

    async fn read_volume(&self, id: VolumeId) -> Result<Option<VolumeSnapshot>> {
        let Some(listed) = self.database.volumes().by_id(id).await? else {
            return Ok(None);
        };
        Ok(Some(VolumeSnapshot {
            volume: listed.row,
            project_name: listed.project_name,
            user_name: listed.user_name,
            is_attached: self
                .attachments_of("volume_id", &id)
                .await?
                .iter()
                .any(AttachmentRow::takes_volume),
            operations: self.operations_of(EntityRef::Volume(id)).await?,
        }))
    }

    /// Attachments by one of their columns, oldest first.
    async fn attachments_of(
        &self,
        column: &'static str,
        value: &impl ToString,
    ) -> Result<Vec<AttachmentRow>> {
        let reads = self.database.reads();
        by_column(reads, column, &[value.to_string()], "ORDER BY t.created_at, t.id").await
    }

    /// As [`Self::attachments_of`], with the jobs.
    async fn uses(&self, column: &'static str, value: &impl ToString) -> Result<Vec<VolumeUse>> {
        let rows = self.attachments_of(column, value).await?;
        let ids: Vec<String> = rows.iter().map(|row| row.job_id.to_string()).collect();
        let jobs: Vec<JobRow> = by_column(self.database.reads(), "id", &ids, "").await?;
        let with_job = |row: AttachmentRow| VolumeUse {
            job: jobs.iter().find(|job| job.id == row.job_id).map(VolumeJob::from),
            row,
        };
        Ok(rows.into_iter().map(with_job).collect())
    }

    async fn read_attachment(&self, id: AttachmentId) -> Result<Option<AttachmentSnapshot>> {
        let Some(attachment) = self.by_id::<AttachmentRow>(id).await? else {
            return Ok(None);
        };
        // Before the others: see `AttachmentSnapshot::volume`.
        let Some(volume) = self.by_id::<VolumeRow>(attachment.volume_id).await? else {
            return Ok(None);
        };
        let mut others = self.uses("volume_id", &volume.id).await?;
        others.retain(|other| other.row.id != id);
        let job = self.by_id::<JobRow>(attachment.job_id).await?;
        Ok(Some(AttachmentSnapshot {
            job: job.as_ref().map(VolumeJob::from),
            others,
            instance: self.by_id(attachment.instance_id).await?,
            operations: self.operations_of(EntityRef::Attachment(id)).await?,
            attachment,
            volume,
        }))
    }

    async fn read_gateway(&self, id: GatewayId) -> Result<Option<GatewaySnapshot>> {
        let Some(gateway) = self.by_id::<GatewayRow>(id).await? else {
            return Ok(None);
        };
        let replicas = self
            .where_text::<GatewayReplicaRow>(
                "WHERE t.gateway_id = $1 ORDER BY t.created_at, t.replica_num, t.id",
                id.to_raw(),
            )
            .await?;
        let hosts = self.hosts_of(&gateway).await?;
        let ids: Vec<InstanceId> = hosts.iter().flatten().map(|row| row.id).collect();
        Ok(Some(GatewaySnapshot {
            replicas,
            taken: self.database.gateways().hosts_taken(&ids).await?,
            operations: self.operations_of(EntityRef::Gateway(id)).await?,
            hosts,
            gateway,
        }))
    }

    /// The hosts of the fleet that a gateway names.
    async fn hosts_of(&self, gateway: &GatewayRow) -> Result<Option<Vec<InstanceRow>>> {
        let Some(fleet) = gateway.configuration.fleet() else {
            return Ok(Some(Vec::new()));
        };
        let Some(fleet) = self.fleet_by_name(gateway.project_id, fleet).await? else {
            return Ok(None);
        };
        let found = self.read_fleet(fleet.id).await?;
        Ok(found.map(|found| found.instances))
    }

    async fn read_gateway_replica(&self, id: GatewayReplicaId) -> Result<Option<GatewayReplicaSnapshot>> {
        let Some(replica) = self.by_id::<GatewayReplicaRow>(id).await? else {
            return Ok(None);
        };
        let Some(gateway) = self.by_id::<GatewayRow>(replica.gateway_id).await? else {
            return Ok(None);
        };
        Ok(Some(GatewayReplicaSnapshot {
            operations: self.operations_of(EntityRef::GatewayReplica(id)).await?,
            replica,
            gateway,
        }))
    }

    async fn read_job(&self, id: JobId) -> Result<Option<JobSnapshot>> {
        let Some(job) = self.by_id::<JobRow>(id).await? else {
            return Ok(None);
        };
        let Some(run) = self.by_id::<RunRow>(job.run_id).await? else {
            return Ok(None);
        };
        let instance = match job.instance_id.or(job.used_instance_id) {
            Some(instance) => self.by_id::<InstanceRow>(instance).await?,
            None => None,
        };
        let operations = self.operations_of(EntityRef::Job(id)).await?;
        let attachments = match job.mounts_volumes() {
            true => self.attachments_of("job_id", &id).await?,
            false => Vec::new(),
        };
        Ok(Some(JobSnapshot {
            attachments,
            job,
            run,
            instance,
            operations,
        }))
    }

    async fn read_instance(&self, id: InstanceId) -> Result<Option<InstanceSnapshot>> {
        let Some(instance) = self.by_id::<InstanceRow>(id).await? else {
            return Ok(None);
        };
        let fleet = match instance.fleet_id {
            Some(fleet) => self.by_id::<FleetRow>(fleet).await?,
            None => None,
        };
        let jobs = self
            .where_text::<JobRow>(
                "WHERE t.instance_id = $1 ORDER BY t.submitted_at, t.id",
                id.to_raw(),
            )
            .await?;
        let operations = self.operations_of(EntityRef::Instance(id)).await?;
        let group = match instance.compute_group_id {
            Some(group) => self.group_of_instance(group).await?,
            None => None,
        };
        Ok(Some(InstanceSnapshot {
            instance,
            fleet,
            jobs,
            operations,
            group,
        }))
    }

    async fn read_fleet(&self, id: FleetId) -> Result<Option<FleetSnapshot>> {
        let Some(fleet) = self.by_id::<FleetRow>(id).await? else {
            return Ok(None);
        };
        let instances = self
            .where_text::<InstanceRow>(
                "WHERE t.fleet_id = $1 AND t.deleted = 0 ORDER BY t.instance_num",
                id.to_raw(),
            )
            .await?;
        let runs: Vec<(String,)> = sqlx::query_as(
            "SELECT DISTINCT r.id FROM runs r LEFT JOIN jobs j ON j.run_id = r.id \
             WHERE r.status NOT IN ('terminated', 'failed', 'done') AND (r.fleet_id = $1 OR j.fleet_id = $1)",
        )
        .bind(id.to_raw())
        .fetch_all(self.database.pool())
        .await?;
        let active_runs = runs.into_iter().filter_map(|(run,)| run.parse().ok()).collect();
        Ok(Some(FleetSnapshot {
            placement_groups: match is_cluster(&fleet.spec) {
                true => self.placement_groups_of(id).await?,
                false => Vec::new(),
            },
            fleet,
            instances,
            active_runs,
        }))
    }

    async fn placement_groups_of(&self, fleet: FleetId) -> Result<Vec<PlacementGroupRow>> {
        self.where_text(
            "WHERE t.fleet_id = $1 AND t.status NOT IN ('failed', 'deleted') ORDER BY t.created_at, t.id",
            fleet.to_raw(),
        )
        .await
    }

    async fn read_placement_group(&self, id: PlacementGroupId) -> Result<Option<PlacementGroupSnapshot>> {
        let Some(group) = self.by_id::<PlacementGroupRow>(id).await? else {
            return Ok(None);
        };
        let Some(fleet) = self.by_id::<FleetRow>(group.fleet_id).await? else {
            return Ok(None);
        };
        let mut instances = self
            .where_text::<InstanceRow>("WHERE t.fleet_id = $1 AND t.deleted = 0", fleet.id.to_raw())
            .await?;
        instances.retain(|row| row.placement_group_id == Some(id));
        Ok(Some(PlacementGroupSnapshot {
            operations: self.operations_of(EntityRef::PlacementGroup(id)).await?,
            group,
            fleet,
            instances,
        }))
    }

    async fn read_compute_group(&self, id: ComputeGroupId) -> Result<Option<ComputeGroupSnapshot>> {
        let Some(group) = self.by_id::<ComputeGroupRow>(id).await? else {
            return Ok(None);
        };
        let mut instances = Vec::new();
        for member in group.members.iter() {
            instances.extend(self.by_id::<InstanceRow>(*member).await?);
        }
        Ok(Some(ComputeGroupSnapshot {
            fleet: self.by_id::<FleetRow>(group.fleet_id).await?,
            operations: self.operations_of(EntityRef::ComputeGroup(id)).await?,
            group,
            instances,
        }))
    }

    async fn group_of_instance(&self, id: ComputeGroupId) -> Result<Option<GroupOfInstance>> {
        let Some(row) = self.by_id::<ComputeGroupRow>(id).await? else {
            return Ok(None);
        };
        let operations = self.operations_of(EntityRef::ComputeGroup(id)).await?;
        Ok(Some(GroupOfInstance { row, operations }))
    }

    async fn read_placement(&self, project: ProjectId) -> Result<PlacementSnapshot> {
        let fleets = self
            .where_text::<FleetRow>(
                "WHERE t.project_id = $1 AND t.deleted = 0 ORDER BY t.created_at, t.id",
                project.to_raw(),
            )
            .await?;
        let instances = self
            .where_text::<InstanceRow>(
                "WHERE t.project_id = $1 AND t.deleted = 0 ORDER BY t.price, t.created_at, t.instance_num, t.id",
                project.to_raw(),
            )
            .await?;
        let mut placement = PlacementSnapshot {
            project,
            fleets,
            instances,
            project_names: BTreeMap::new(),
        };
        self.add_imported(&mut placement).await?;
        Ok(placement)
    }

    async fn add_imported(&self, placement: &mut PlacementSnapshot) -> Result<()> {
        let imported = self.database.exports().imported_fleets(placement.project).await?;
        if imported.is_empty() {
            return Ok(());
        }
        if let Some(own) = self.database.projects().by_id(placement.project).await? {
            placement.project_names.insert(own.id, own.name);
        }
        for fleet in imported {
            let rows = self
                .where_text::<FleetRow>("WHERE t.id = $1 AND t.deleted = 0", fleet.id.to_raw())
                .await?;
            let instances = self
                .where_text::<InstanceRow>("WHERE t.fleet_id = $1 AND t.deleted = 0", fleet.id.to_raw())
                .await?;
            placement.project_names.insert(fleet.project, fleet.project_name);
            placement.fleets.extend(rows);
            placement.instances.extend(instances);
        }
        placement.sort_instances();
        Ok(())
    }

    async fn read_waiting(
        &self,
        owner: &str,
        project: ProjectId,
        limit: usize,
    ) -> Result<Vec<(JobId, RunId)>> {
        // The second condition follows from the first; SQLite finds its index of active jobs only by these very words.
        // And the third is put so that no index is taken for it: most jobs of all time have no instance.
        let found: Vec<(String, String)> = sqlx::query_as(
            "SELECT j.id, j.run_id FROM jobs j JOIN runs r ON r.id = j.run_id WHERE j.project_id = $1 \
             AND j.status = 'submitted' AND j.status NOT IN ('terminated', 'aborted', 'failed', 'done') \
             AND COALESCE(j.instance_id, '') = '' AND j.lease_owner = $2 ORDER BY r.priority DESC, j.submitted_at, j.id LIMIT $3",
        )
        .bind(project.to_raw())
        .bind(owner.to_owned())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(self.database.keyed().pool())
        .await?;
        let ids = |(job, run): (String, String)| Some((job.parse().ok()?, run.parse().ok()?));
        Ok(found.into_iter().filter_map(ids).collect())
    }
}

#[async_trait]
impl EngineStore for SqlStore {
    async fn commit(&self, commit: Commit) -> Result<()> {
        if commit.is_empty() {
            return Ok(());
        }
        self.database.commit(commit).await
    }

    async fn run(&self, id: RunId) -> Result<Option<RunSnapshot>> {
        self.database.asked(self.database.batched().runs.get(id)).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobSnapshot>> {
        self.database.asked(self.read_job(id)).await
    }

    async fn instance(&self, id: InstanceId) -> Result<Option<InstanceSnapshot>> {
        self.database.asked(self.read_instance(id)).await
    }

    async fn fleet(&self, id: FleetId) -> Result<Option<FleetSnapshot>> {
        self.database.asked(self.read_fleet(id)).await
    }

    async fn volume(&self, id: VolumeId) -> Result<Option<VolumeSnapshot>> {
        self.database.asked(self.read_volume(id)).await
    }

    async fn attachment(&self, id: AttachmentId) -> Result<Option<AttachmentSnapshot>> {
        self.database.asked(self.read_attachment(id)).await
    }

    async fn attachments(&self, of: AttachmentsOf) -> Result<Vec<VolumeUse>> {
        let database = &self.database;
        match of {
            AttachmentsOf::Project(id) => database.asked(self.uses("project_id", &id)).await,
            AttachmentsOf::Volume(id) => database.asked(self.uses("volume_id", &id)).await,
            AttachmentsOf::Instance(id) => database.asked(self.uses("instance_id", &id)).await,
        }
    }

    async fn gateway(&self, id: GatewayId) -> Result<Option<GatewaySnapshot>> {
        self.database.asked(self.read_gateway(id)).await
    }

    async fn gateway_replica(&self, id: GatewayReplicaId) -> Result<Option<GatewayReplicaSnapshot>> {
        self.database.asked(self.read_gateway_replica(id)).await
    }

    async fn placement_group(&self, id: PlacementGroupId) -> Result<Option<PlacementGroupSnapshot>> {
        self.database.asked(self.read_placement_group(id)).await
    }

    async fn compute_group(&self, id: ComputeGroupId) -> Result<Option<ComputeGroupSnapshot>> {
        self.database.asked(self.read_compute_group(id)).await
    }

    async fn placement(&self, project: ProjectId) -> Result<PlacementSnapshot> {
        self.database.asked(self.read_placement(project)).await
    }

    async fn imports_fleet(&self, project: ProjectId, fleet: FleetId) -> Result<bool> {
        let imported = self.database.exports().imported_fleets(project);
        let imported = self.database.asked(imported).await?;
        Ok(imported.iter().any(|imported| imported.id == fleet))
    }

    async fn waiting(&self, owner: &str, project: ProjectId, limit: usize) -> Result<Vec<(JobId, RunId)>> {
        self.database
            .asked(self.read_waiting(owner, project, limit))
            .await
    }

    async fn run_by_name(&self, project: ProjectId, name: &str) -> Result<Option<RunRow>> {
        let found = self.database.run_by_name(project, name).await?;
        Ok(found.map(|listed| listed.run))
    }

    async fn runs_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<RunRow>> {
        let found = self.database.views().runs_by_names(project, names);
        let found = self.database.asked(found).await?;
        Ok(found.into_iter().map(|listed| listed.run).collect())
    }

    async fn run_names(&self, project: ProjectId, prefix: &str) -> Result<Vec<String>> {
        let names = self.database.views().run_names(project, prefix);
        self.database.asked(names).await
    }

    async fn fleet_by_name(&self, project: ProjectId, name: &str) -> Result<Option<FleetRow>> {
        let found = self.database.views().fleet_by_name(project, name);
        let found = self.database.asked(found).await?;
        Ok(found.map(|listed| listed.fleet))
    }

    async fn fleets_by_names(&self, project: ProjectId, names: &[String]) -> Result<Vec<FleetRow>> {
        let found = self.database.views().fleets_by_names(project, names);
        let found = self.database.asked(found).await?;
        Ok(found.into_iter().map(|listed| listed.fleet).collect())
    }

    async fn fleet_names(&self, project: ProjectId) -> Result<Vec<String>> {
        let names = self.database.views().fleet_names(project);
        self.database.asked(names).await
    }

    async fn volumes(&self, project: ProjectId) -> Result<Vec<VolumeRow>> {
        let found = self.database.volumes().of_project(project);
        let found = self.database.asked(found).await?;
        Ok(found.into_iter().map(|listed| listed.row).collect())
    }

    async fn remote_hosts(&self) -> Result<Vec<(Option<FleetId>, HostKey)>> {
        self.database.asked(self.database.views().remote_hosts()).await
    }

    async fn hosts_on(&self, machine: &str) -> Result<Vec<InstanceRow>> {
        let clause =
            "WHERE t.machine = $1 AND t.deleted = 0 AND t.status NOT IN ('terminating', 'terminated')";
        let found = self.where_text::<InstanceRow>(clause, machine.to_owned());
        self.database.asked(found).await
    }

    async fn all_volumes(&self) -> Result<Vec<VolumeRow>> {
        let found = self.where_text::<VolumeRow>("WHERE t.deleted = 0 AND t.id > $1", String::new());
        self.database.asked(found).await
    }

    async fn made_for(&self, keys: &BTreeSet<MadeKey>) -> Result<Vec<MadeFor>> {
        self.database.asked(self.database.orphans().made_for(keys)).await
    }

    async fn orphans(&self) -> Result<Vec<OrphanRow>> {
        self.database.asked(self.database.orphans().list()).await
    }

    async fn acquire(&self, request: &LeaseRequest) -> Result<Acquired> {
        self.database.asked(self.acquire_lease(request)).await
    }

    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<bool> {
        self.database.asked(self.renew_lease(lease, duration)).await
    }

    async fn first_expiry(&self, owner: &str) -> Result<Option<Duration>> {
        self.database.asked(self.first_expiry_but(owner)).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Vec<(EntityRef, Time)>> {
        self.database.asked(self.claim_rows(claim)).await
    }

    async fn take_duty(&self, duty: &'static str, owner: &str) -> Result<bool> {
        self.database.asked(self.take_one_duty(duty, owner)).await
    }

    async fn owner_of(&self, entity: EntityRef) -> Result<Option<String>> {
        self.database.asked(self.read_owner(entity)).await
    }

    async fn add_metrics(&self, job: JobId, point: MetricsPoint) -> Result<()> {
        self.database
            .write(move |tx| Box::pin(async move { metrics::add(tx, job, &point).await }))
            .await
    }

    async fn metrics_since(&self, job: JobId, after: Time) -> Result<Vec<MetricsPoint>> {
        let newest_first = self.database.metrics().between(job, Some(after), None, i64::MAX);
        let mut points = self.database.asked(newest_first).await?;
        points.reverse();
        Ok(points)
    }

    async fn add_health_check(&self, id: Uuid, instance: InstanceId, check: StoredCheck) -> Result<()> {
        self.database
            .write(move |tx| Box::pin(async move { health::add(tx, id, instance, &check).await }))
            .await
    }

    async fn notify_owner(&self, entity: EntityRef) -> Result<()> {
        self.notify(entity).await
    }

    async fn subscribe(&self) -> Result<Option<Box<dyn ChangeFeed>>> {
        self.change_feed().await
    }
}
