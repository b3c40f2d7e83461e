//! The engine's store in memory, for simulation: same rules, no I/O, so that virtual time never runs ahead of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dstack_units::{FleetId, InstanceId, JobId, OperationId, ProjectId, RunId, Time};

use crate::commit::Lease;
use crate::rows::{FleetRow, InstanceRow, JobRow, OperationRow, RunRow};
use crate::{
    Commit, EngineStore, Entity, EntityRef, FleetSnapshot, InstanceSnapshot, JobSnapshot, NewEvent,
    PlacementSnapshot, Put, Result, RunSnapshot, StoreError,
};

/// Everything stored.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// Runs.
    pub runs: BTreeMap<RunId, RunRow>,
    /// Jobs.
    pub jobs: BTreeMap<JobId, JobRow>,
    /// Instances.
    pub instances: BTreeMap<InstanceId, InstanceRow>,
    /// Fleets.
    pub fleets: BTreeMap<FleetId, FleetRow>,
    /// Operations.
    pub operations: BTreeMap<OperationId, OperationRow>,
    /// Events, in order.
    pub events: Vec<NewEvent>,
    leases: BTreeMap<EntityRef, Lease>,
}

/// A store that forgets everything with the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
}

impl MemoryStore {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy of all tables, for invariants.
    pub fn tables(&self) -> Tables {
        self.lock().clone()
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

impl Tables {
    fn check(&self, put: &Put) -> Result<()> {
        match put {
            Put::Run(row) => check(&self.runs, row),
            Put::Job(row) => check(&self.jobs, row),
            Put::Instance(row) => check(&self.instances, row),
            Put::Fleet(row) => check(&self.fleets, row),
            Put::Operation(row) => {
                let taken = |other: &OperationRow| other.key == row.key && other.id != row.id;
                if self.operations.values().any(taken) {
                    return Err(StoreError::Conflict {
                        entity: "operations",
                        id: row.key.clone(),
                    });
                }
                check(&self.operations, row)
            }
        }
    }

    fn write(&mut self, put: &Put) {
        match put {
            Put::Run(row) => write(&mut self.runs, row),
            Put::Job(row) => write(&mut self.jobs, row),
            Put::Instance(row) => write(&mut self.instances, row),
            Put::Fleet(row) => write(&mut self.fleets, row),
            Put::Operation(row) => write(&mut self.operations, row),
        }
    }

    /// Non-terminal rows with their next wake.
    fn live(&self) -> Vec<(EntityRef, Option<Time>)> {
        let runs = self
            .runs
            .values()
            .filter(|r| !r.status.is_finished())
            .map(|r| (EntityRef::Run(r.id), r.next_wake_at));
        let jobs = self
            .jobs
            .values()
            .filter(|r| !r.status.is_finished())
            .map(|r| (EntityRef::Job(r.id), r.next_wake_at));
        let instances = self
            .instances
            .values()
            .filter(|r| r.status != dstack_model::instances::InstanceStatus::Terminated)
            .map(|r| (EntityRef::Instance(r.id), r.next_wake_at));
        let fleets = self
            .fleets
            .values()
            .filter(|r| {
                use dstack_model::fleets::FleetStatus::{Failed, Terminated};
                !matches!(r.status, Terminated | Failed)
            })
            .map(|r| (EntityRef::Fleet(r.id), r.next_wake_at));
        runs.chain(jobs).chain(instances).chain(fleets).collect()
    }

    fn jobs_where(&self, keep: impl Fn(&JobRow) -> bool) -> Vec<JobRow> {
        let mut jobs: Vec<JobRow> = self.jobs.values().filter(|job| keep(job)).cloned().collect();
        jobs.sort_by_key(|job| (job.replica_num, job.job_num, job.submission_num, job.id));
        jobs
    }
}

#[async_trait]
impl EngineStore for MemoryStore {
    async fn commit(&self, commit: Commit) -> Result<()> {
        let mut tables = self.lock();
        for put in &commit.puts {
            tables.check(put)?;
        }
        for put in &commit.puts {
            tables.write(put);
            if let (Some(lease), true, Some(entity)) = (&commit.lease, put.is_insert(), put.entity()) {
                tables.leases.insert(entity, lease.clone());
            }
        }
        for run in commit.runs_of_jobs() {
            if let Some(run) = tables.runs.get_mut(&run) {
                run.version += 1;
            }
        }
        tables.events.extend(commit.events);
        Ok(())
    }

    async fn run(&self, id: RunId) -> Result<Option<RunSnapshot>> {
        let tables = self.lock();
        Ok(tables.runs.get(&id).cloned().map(|run| RunSnapshot {
            run,
            jobs: tables.jobs_where(|job| job.run_id == id),
        }))
    }

    async fn job(&self, id: JobId) -> Result<Option<JobSnapshot>> {
        let tables = self.lock();
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
        let mut operations: Vec<OperationRow> = tables
            .operations
            .values()
            .filter(|row| row.job_id == Some(id))
            .cloned()
            .collect();
        operations.sort_by_key(|row| (row.created_at, row.id));
        Ok(Some(JobSnapshot {
            job,
            run,
            instance,
            operations,
        }))
    }

    async fn instance(&self, id: InstanceId) -> Result<Option<InstanceSnapshot>> {
        let tables = self.lock();
        let Some(instance) = tables.instances.get(&id).cloned() else {
            return Ok(None);
        };
        let fleet = instance.fleet_id.and_then(|id| tables.fleets.get(&id).cloned());
        Ok(Some(InstanceSnapshot {
            instance,
            fleet,
            jobs: tables.jobs_where(|job| job.instance_id == Some(id)),
        }))
    }

    async fn fleet(&self, id: FleetId) -> Result<Option<FleetSnapshot>> {
        let tables = self.lock();
        let Some(fleet) = tables.fleets.get(&id).cloned() else {
            return Ok(None);
        };
        let instances = tables
            .instances
            .values()
            .filter(|row| row.fleet_id == Some(id) && !row.deleted)
            .cloned()
            .collect();
        let in_fleet = |run: &&RunRow| {
            run.fleet_id == Some(id)
                || tables
                    .jobs
                    .values()
                    .any(|job| job.run_id == run.id && job.fleet_id == Some(id))
        };
        let active_runs = tables
            .runs
            .values()
            .filter(|run| !run.status.is_finished())
            .filter(in_fleet)
            .map(|run| run.id)
            .collect();
        Ok(Some(FleetSnapshot {
            fleet,
            instances,
            active_runs,
        }))
    }

    async fn placement(&self, project: ProjectId) -> Result<PlacementSnapshot> {
        let tables = self.lock();
        let mut fleets: Vec<FleetRow> = tables
            .fleets
            .values()
            .filter(|row| row.project_id == project && !row.deleted)
            .cloned()
            .collect();
        fleets.sort_by_key(|row| (row.created_at, row.id));
        let mut instances: Vec<InstanceRow> = tables
            .instances
            .values()
            .filter(|row| row.project_id == project && !row.deleted)
            .cloned()
            .collect();
        instances.sort_by(|a, b| {
            a.price
                .unwrap_or(0.0)
                .total_cmp(&b.price.unwrap_or(0.0))
                .then((a.created_at, a.instance_num, a.id).cmp(&(b.created_at, b.instance_num, b.id)))
        });
        Ok(PlacementSnapshot { fleets, instances })
    }

    async fn waiting(&self, project: ProjectId, limit: usize) -> Result<Vec<(JobRow, RunRow)>> {
        let tables = self.lock();
        let waiting = |job: &JobRow| {
            job.project_id == project && job.status == dstack_model::runs::JobStatus::Submitted
        };
        let with_run = |job: JobRow| Some((tables.runs.get(&job.run_id)?.clone(), job));
        let mut found: Vec<(RunRow, JobRow)> = tables
            .jobs_where(waiting)
            .into_iter()
            .filter_map(with_run)
            .collect();
        found.sort_by_key(|(run, job)| (-run.priority, job.submitted_at, job.id));
        Ok(found
            .into_iter()
            .take(limit)
            .map(|(run, job)| (job, run))
            .collect())
    }

    async fn claim(&self, lease: &Lease, now: Time) -> Result<Vec<(EntityRef, Time)>> {
        let mut tables = self.lock();
        let live = tables.live();
        let mut found = Vec::new();
        for (entity, wake) in live {
            let mine = match tables.leases.get(&entity) {
                Some(other) => other.owner == lease.owner || other.until < now,
                None => true,
            };
            if mine {
                tables.leases.insert(entity, lease.clone());
                found.push((entity, wake.unwrap_or(Time::EPOCH)));
            }
        }
        Ok(found)
    }

    async fn renew(&self, lease: &Lease) -> Result<()> {
        for held in self
            .lock()
            .leases
            .values_mut()
            .filter(|held| held.owner == lease.owner)
        {
            held.until = lease.until;
        }
        Ok(())
    }
}
