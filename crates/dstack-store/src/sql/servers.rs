//! Which server drives which row, and what servers that share a database tell each other.
//!
//! A server lives as long as its row in `servers` is not out of date. What it drives names it in `lease_owner`, so that
//! staying alive is the change of one row, however many it drives.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use dstack_units::{InstanceId, Time};
use sqlx::{AssertSqlSafe, Database as _};

use super::SqlStore;
use crate::entities::{DRIVEN, DrivenTable};
use crate::lease::{Acquired, Claim, Lease, LeaseRequest};
use crate::notices::Listener;
use crate::snapshot::ChangeFeed;
use crate::{Column, Commit, Dialect, EntityRef, Result, StoreError, Tx};

/// Name of the channel of notifications.
const CHANNEL: &str = "dstack_changed";

/// The time by PostgreSQL's clock, in microseconds: servers' own clocks may differ. That of the begin of the transaction, so
/// that a lease never runs longer than its server thinks.
const NOW: &str = "(EXTRACT(EPOCH FROM now()) * 1000000)::BIGINT";

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl SqlStore {
    fn is_alone(&self) -> bool {
        self.database.dialect() == Dialect::Sqlite
    }

    /// On SQLite there are no others to know it.
    pub(super) async fn acquire_lease(&self, request: &LeaseRequest) -> Result<Acquired> {
        if self.is_alone() {
            return Ok(Acquired::Alone);
        }
        let sql = format!(
            "INSERT INTO servers (owner, process, generation, expires_at) VALUES ($1, $2, $3, {NOW} + $4) \
             ON CONFLICT (owner) DO UPDATE SET process = excluded.process, generation = excluded.generation, \
             expires_at = excluded.expires_at WHERE servers.process IN ($5, $6) OR servers.expires_at <= {NOW}"
        );
        let Lease {
            owner,
            process,
            generation,
        } = &request.lease;
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(owner.clone())
            .bind(process.to_string())
            .bind(*generation)
            .bind(micros(request.duration))
            .bind(process.to_string())
            .bind(request.predecessor.unwrap_or(*process).to_string())
            .execute(self.database.pool())
            .await?;
        if done.rows_affected() > 0 {
            return Ok(Acquired::Held);
        }
        let remaining = self.remaining("owner = $1", owner).await?.unwrap_or_default();
        Ok(Acquired::Refused { remaining })
    }

    /// How long until the first of these leases runs out.
    async fn remaining(&self, leases: &'static str, owner: &str) -> Result<Option<Duration>> {
        let sql = format!("SELECT MIN(expires_at) - {NOW} FROM servers WHERE {leases}");
        let (left,): (Option<i64>,) = sqlx::query_as(AssertSqlSafe(sql))
            .bind(owner.to_owned())
            .fetch_one(self.database.pool())
            .await?;
        Ok(left.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    }

    pub(super) async fn renew_lease(&self, lease: &Lease, duration: Duration) -> Result<bool> {
        if self.is_alone() {
            return Ok(true);
        }
        let sql = format!(
            "UPDATE servers SET expires_at = {NOW} + $1 WHERE owner = $2 AND process = $3 AND generation = $4 \
             AND expires_at > {NOW}"
        );
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(micros(duration))
            .bind(lease.owner.clone())
            .bind(lease.process.to_string())
            .bind(lease.generation)
            .execute(self.database.pool())
            .await?;
        Ok(done.rows_affected() > 0)
    }

    /// When the first lease of another server runs out.
    pub(super) async fn first_expiry_but(&self, owner: &str) -> Result<Option<Duration>> {
        match self.is_alone() {
            true => Ok(None),
            false => self.remaining("owner <> $1", owner).await,
        }
    }

    pub(super) async fn claim_rows(&self, claim: &Claim) -> Result<Vec<(EntityRef, Time)>> {
        let (owner, home, is_alone) = (claim.owner.clone(), claim.home, self.is_alone());
        self.database
            .write(move |tx| {
                Box::pin(async move {
                    // Before any row is taken: a commit locks its server's lease first, and the rows after it.
                    if !is_alone {
                        delete_expired(tx, &owner).await?;
                    }
                    for table in DRIVEN {
                        take_over(tx, table, &owner).await?;
                    }
                    if let Some(home) = home {
                        take_home(tx, home, &owner).await?;
                    }
                    Ok(())
                })
            })
            .await?;
        let mut found = Vec::new();
        for DrivenTable { name, driven, entity } in DRIVEN {
            let sql = format!("SELECT id, next_wake_at FROM {name} WHERE {driven} AND lease_owner = $1");
            let rows: Vec<(String, Option<i64>)> = sqlx::query_as(AssertSqlSafe(sql))
                .bind(claim.owner.clone())
                .fetch_all(self.database.pool())
                .await?;
            let wake = |at: Option<i64>| Time::from_micros(at.unwrap_or(0));
            found.extend(
                rows.into_iter()
                    .filter_map(|(id, at)| Some((entity(&id)?, wake(at)))),
            );
        }
        Ok(found)
    }

    pub(super) async fn take_one_duty(&self, duty: &'static str, owner: &str) -> Result<bool> {
        let (owner, is_alone) = (owner.to_owned(), self.is_alone());
        self.database
            .write(move |tx| {
                Box::pin(async move {
                    if !is_alone {
                        delete_expired(tx, &owner).await?;
                    }
                    let done = sqlx::query(
                        "INSERT INTO duties (name, lease_owner) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE \
                         SET lease_owner = excluded.lease_owner WHERE duties.lease_owner = excluded.lease_owner \
                         OR duties.lease_owner NOT IN (SELECT s.owner FROM servers s)",
                    )
                    .bind(duty.to_owned())
                    .bind(owner)
                    .execute(tx)
                    .await?;
                    Ok(done.rows_affected() > 0)
                })
            })
            .await
    }

    pub(super) async fn read_owner(&self, entity: EntityRef) -> Result<Option<String>> {
        let (table, id) = (entity.table(), entity.uuid().to_string());
        let row: Option<(Option<String>,)> = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT lease_owner FROM {table} WHERE id = $1"
        )))
        .bind(id)
        .fetch_optional(self.database.pool())
        .await?;
        Ok(row.and_then(|(owner,)| owner))
    }

    pub(super) async fn notify(&self, entity: EntityRef) -> Result<()> {
        self.database.tell(CHANNEL, &entity.to_string()).await
    }

    pub(super) async fn change_feed(&self) -> Result<Option<Box<dyn ChangeFeed>>> {
        let listener = self.database.listen(CHANNEL).await?;
        Ok(listener.map(|listener| Box::new(ChangedRows(listener)) as Box<dyn ChangeFeed>))
    }
}

#[derive(Debug)]
struct ChangedRows(Listener);

#[async_trait]
impl ChangeFeed for ChangedRows {
    async fn next(&mut self) -> Result<Option<EntityRef>> {
        while let Some(text) = self.0.next().await? {
            // What a newer version tells may be unknown here.
            if let Ok(entity) = text.parse() {
                return Ok(Some(entity));
            }
        }
        Ok(None)
    }
}

/// Refuses commits of a server that no longer has the lease under which it decided on them. One statement for all commits of
/// a transaction, as they are of one server.
///
/// The lease is locked until the end of the transaction, so that nobody takes over in between; renewing it does not wait for
/// such a lock (`FOR KEY SHARE`), to delete it does.
pub(super) async fn check_fences(tx: &mut Tx, commits: &[Commit]) -> Result<()> {
    if tx.backend_name() == sqlx::Sqlite::NAME {
        return Ok(());
    }
    let fences: BTreeSet<&Lease> = commits
        .iter()
        .filter_map(|commit| commit.fence.as_ref())
        .collect();
    for lease in fences {
        let sql = format!(
            "SELECT generation FROM servers WHERE owner = $1 AND process = $2 AND generation = $3 AND expires_at > {NOW} \
             FOR KEY SHARE"
        );
        let held: Option<(i64,)> = sqlx::query_as(AssertSqlSafe(sql))
            .bind(lease.owner.clone())
            .bind(lease.process.to_string())
            .bind(lease.generation)
            .fetch_optional(&mut *tx)
            .await?;
        if held.is_none() {
            return Err(StoreError::LeaseLost {
                owner: lease.owner.clone(),
            });
        }
    }
    Ok(())
}

async fn delete_expired(tx: &mut Tx, owner: &str) -> Result<()> {
    let sql = format!("DELETE FROM servers WHERE expires_at <= {NOW} AND owner <> $1");
    sqlx::query(AssertSqlSafe(sql))
        .bind(owner.to_owned())
        .execute(tx)
        .await?;
    Ok(())
}

/// Takes what nobody drives, or a server that lives no more.
async fn take_over(tx: &mut Tx, table: &DrivenTable, owner: &str) -> Result<()> {
    let DrivenTable { name, driven, .. } = table;
    let sql = format!(
        "UPDATE {name} SET lease_owner = $1 WHERE {driven} AND (lease_owner IS NULL \
         OR (lease_owner <> $2 AND lease_owner NOT IN (SELECT s.owner FROM servers s)))"
    );
    sqlx::query(AssertSqlSafe(sql))
        .bind(owner.to_owned())
        .bind(owner.to_owned())
        .execute(tx)
        .await?;
    Ok(())
}

/// Takes the machine that only this server can reach, and the jobs on it, from whoever drove them meanwhile.
async fn take_home(tx: &mut Tx, home: InstanceId, owner: &str) -> Result<()> {
    for sql in [
        "UPDATE instances SET lease_owner = $1 WHERE id = $2",
        "UPDATE jobs SET lease_owner = $1 WHERE instance_id = $2",
    ] {
        sqlx::query(sql)
            .bind(owner.to_owned())
            .bind(home.to_raw())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

/// A job that got a place is driven by whoever drives the instance.
pub(super) async fn hand_over(tx: &mut Tx, job: dstack_units::JobId) -> Result<()> {
    sqlx::query(
        "UPDATE jobs SET lease_owner = COALESCE((SELECT i.lease_owner FROM instances i WHERE i.id = jobs.instance_id), \
         lease_owner) WHERE id = $1",
    )
    .bind(job.to_raw())
    .execute(tx)
    .await?;
    Ok(())
}
