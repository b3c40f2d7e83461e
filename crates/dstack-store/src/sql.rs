//! The engine's store on SQL.

pub(crate) mod write;

use std::any::TypeId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use async_trait::async_trait;
use dstack_units::{FleetId, InstanceId, JobId, ProjectId, RunId, Time};
use sqlx::{AssertSqlSafe, SqlStr};

pub use write::apply;
pub(crate) use write::put_row;

use crate::commit::Lease;
use crate::entity::select_sql;
use crate::rows::{FleetRow, InstanceRow, JobRow, OperationRow, RunRow};
use crate::{
    Column, Commit, Database, EngineStore, Entity, EntityRef, FleetSnapshot, InstanceSnapshot, JobSnapshot,
    PlacementSnapshot, Result, RunSnapshot,
};

/// Final statuses, as SQL lists.
const RUN_FINISHED: &str = "('terminated', 'failed', 'done')";
const JOB_FINISHED: &str = "('terminated', 'aborted', 'failed', 'done')";

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
        row.as_ref().map(E::read).transpose()
    }

    /// Rows by key, read in one statement.
    async fn by_ids<E: Entity>(&self, ids: &[String]) -> Result<BTreeMap<E::Key, E>> {
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        // Few different texts, so that they stay prepared: the last id fills the places that are left.
        let places = ids.len().next_power_of_two();
        let list: Vec<String> = (1..=places).map(|place| format!("${place}")).collect();
        let text = format!("{} WHERE t.id IN ({})", select_sql::<E>(), list.join(", "));
        let mut query = sqlx::query(AssertSqlSafe(text));
        for place in 0..places {
            query = query.bind(ids.get(place).or(ids.last()).cloned());
        }
        let rows = query.fetch_all(self.database.pool()).await?;
        rows.iter()
            .map(|row| E::read(row).map(|read| (read.key(), read)))
            .collect()
    }

    /// All rows of a table that match; `clause` is trusted text with `$1`.
    async fn where_text<E: Entity>(&self, clause: &'static str, value: String) -> Result<Vec<E>> {
        let rows = sqlx::query(statement::<E>(clause))
            .bind(value)
            .fetch_all(self.database.pool())
            .await?;
        rows.iter().map(E::read).collect()
    }
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

#[async_trait]
impl EngineStore for SqlStore {
    async fn commit(&self, commit: Commit) -> Result<()> {
        if commit.is_empty() {
            return Ok(());
        }
        self.database.commit(commit).await
    }

    async fn run(&self, id: RunId) -> Result<Option<RunSnapshot>> {
        let Some(run) = self.by_id::<RunRow>(id).await? else {
            return Ok(None);
        };
        let jobs = self
            .where_text::<JobRow>(
                "WHERE t.run_id = $1 ORDER BY t.replica_num, t.job_num, t.submission_num",
                id.to_raw(),
            )
            .await?;
        Ok(Some(RunSnapshot { run, jobs }))
    }

    async fn job(&self, id: JobId) -> Result<Option<JobSnapshot>> {
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
        let operations = self
            .where_text::<OperationRow>("WHERE t.job_id = $1 ORDER BY t.created_at, t.id", id.to_raw())
            .await?;
        Ok(Some(JobSnapshot {
            job,
            run,
            instance,
            operations,
        }))
    }

    async fn instance(&self, id: InstanceId) -> Result<Option<InstanceSnapshot>> {
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
        Ok(Some(InstanceSnapshot {
            instance,
            fleet,
            jobs,
        }))
    }

    async fn fleet(&self, id: FleetId) -> Result<Option<FleetSnapshot>> {
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
            fleet,
            instances,
            active_runs,
        }))
    }

    async fn placement(&self, project: ProjectId) -> Result<PlacementSnapshot> {
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
        Ok(PlacementSnapshot { fleets, instances })
    }

    async fn waiting(&self, project: ProjectId, limit: usize) -> Result<Vec<(JobRow, RunRow)>> {
        // The second condition follows from the first; SQLite finds its index of active jobs only by these very words.
        let found: Vec<(String, String)> = sqlx::query_as(
            "SELECT j.id, j.run_id FROM jobs j JOIN runs r ON r.id = j.run_id WHERE j.project_id = $1 \
             AND j.status = 'submitted' AND j.status NOT IN ('terminated', 'aborted', 'failed', 'done') \
             ORDER BY r.priority DESC, j.submitted_at, j.id LIMIT $2",
        )
        .bind(project.to_raw())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(self.database.pool())
        .await?;
        let (ids, runs): (Vec<String>, Vec<String>) = found.into_iter().unzip();
        let mut jobs = self.by_ids::<JobRow>(&ids).await?;
        let runs = self.by_ids::<RunRow>(&runs).await?;
        let pair = |id: &String| {
            let job = jobs.remove(&id.parse().ok()?)?;
            let run = runs.get(&job.run_id)?.clone();
            Some((job, run))
        };
        Ok(ids.iter().filter_map(pair).collect())
    }

    async fn claim(&self, lease: &Lease, now: Time) -> Result<Vec<(EntityRef, Time)>> {
        let mut found = Vec::new();
        self.claim_table("runs", RUN_FINISHED, lease, now, EntityRef::Run, &mut found)
            .await?;
        self.claim_table("jobs", JOB_FINISHED, lease, now, EntityRef::Job, &mut found)
            .await?;
        self.claim_table(
            "instances",
            "('terminated')",
            lease,
            now,
            EntityRef::Instance,
            &mut found,
        )
        .await?;
        self.claim_table(
            "fleets",
            "('terminated', 'failed')",
            lease,
            now,
            EntityRef::Fleet,
            &mut found,
        )
        .await?;
        Ok(found)
    }

    async fn renew(&self, lease: &Lease) -> Result<()> {
        let lease = lease.clone();
        self.database
            .write(move |tx| {
                Box::pin(async move {
                    for (table, finished) in [
                        ("runs", RUN_FINISHED),
                        ("jobs", JOB_FINISHED),
                        ("instances", "('terminated')"),
                        ("fleets", "('terminated', 'failed')"),
                    ] {
                        let sql = format!(
                            "UPDATE {table} SET lease_expires_at = $1 WHERE lease_owner = $2 AND status NOT IN {finished}"
                        );
                        sqlx::query(AssertSqlSafe(sql))
                            .bind(lease.until.to_raw())
                            .bind(lease.owner.clone())
                            .execute(&mut *tx)
                            .await?;
                    }
                    Ok(())
                })
            })
            .await
    }
}

impl SqlStore {
    async fn claim_table<Kind: 'static>(
        &self,
        table: &'static str,
        finished: &'static str,
        lease: &Lease,
        now: Time,
        entity: fn(dstack_units::id::Id<Kind>) -> EntityRef,
        found: &mut Vec<(EntityRef, Time)>,
    ) -> Result<()> {
        let owned = lease.clone();
        let rows: Vec<(String, Option<i64>)> = self
            .database
            .write(move |tx| {
                Box::pin(async move {
                    let claim = format!(
                        "UPDATE {table} SET lease_owner = $1, lease_expires_at = $2 WHERE status NOT IN {finished} \
                         AND (lease_owner IS NULL OR lease_expires_at < $3)"
                    );
                    sqlx::query(AssertSqlSafe(claim))
                        .bind(owned.owner.clone())
                        .bind(owned.until.to_raw())
                        .bind(now.to_raw())
                        .execute(&mut *tx)
                        .await?;
                    let list = format!("SELECT id, next_wake_at FROM {table} WHERE lease_owner = $1 AND status NOT IN {finished}");
                    Ok(sqlx::query_as(AssertSqlSafe(list)).bind(owned.owner).fetch_all(&mut *tx).await?)
                })
            })
            .await?;
        for (id, wake) in rows {
            if let Ok(id) = id.parse() {
                found.push((entity(id), Time::from_micros(wake.unwrap_or(0))));
            }
        }
        Ok(())
    }
}
