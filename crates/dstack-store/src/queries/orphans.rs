//! What clouds have of ours: for which rows it was made, and since when it belongs to nobody.

use std::collections::{BTreeMap, BTreeSet};

use dstack_plan::orphans::Sighting;
use dstack_units::{GatewayId, Time};
use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::Reads;
use super::select::Select;
use crate::entities::{DRIVEN, DrivenTable};
use crate::entity::read_column;
use crate::{Column, EntityRef, Result, Tx};

/// Under which key something was made, as far as its marks tell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MadeKey {
    /// The id of the row.
    Id(Uuid),
    /// The last 12 hexadecimal digits of the id.
    End(String),
}

impl MadeKey {
    /// What names tell of an id.
    pub fn end_of(id: Uuid) -> Self {
        Self::End(format!("{:012x}", id.as_u128() & 0xffff_ffff_ffff))
    }

    /// Whether it is that of a row.
    pub fn is_of(&self, id: Uuid) -> bool {
        match self {
            Self::Id(own) => *own == id,
            Self::End(_) => *self == Self::end_of(id),
        }
    }
}

/// A row for which something may have been made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeFor {
    /// Its id: for a replica of a gateway, that of the replica.
    pub id: Uuid,
    /// The entity; of a replica, its gateway.
    pub entity: EntityRef,
    /// Its name.
    pub name: String,
    /// It is not over, or a call is still to be made for it.
    pub is_live: bool,
    /// Since when it is over, if it is known.
    pub ended_at: Option<Time>,
}

/// Something in a cloud that belongs to nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanRow {
    /// What tells it from all others: backend, kind, region, id and mark.
    pub key: String,
    /// The account that lists it.
    pub account: String,
    /// What it is, for people.
    pub description: String,
    /// When it was seen.
    pub sighting: Sighting,
}

/// What clouds have of ours: see [`crate::Database::orphans`].
#[derive(Debug, Clone, Copy)]
pub struct Orphans<'a>(pub(crate) Reads<'a>);

impl Orphans<'_> {
    /// All that are remembered.
    pub async fn list(self) -> Result<Vec<OrphanRow>> {
        let columns = "key, account, description, first_seen_at, last_seen_at, is_reported";
        let query = Select::new(format!("SELECT {columns} FROM orphans ORDER BY key"));
        query
            .fetch_as(self.0, |row| {
                Ok(OrphanRow {
                    key: read_column(row, 0, "orphans", "key")?,
                    account: read_column(row, 1, "orphans", "account")?,
                    description: read_column(row, 2, "orphans", "description")?,
                    sighting: Sighting {
                        first: read_column(row, 3, "orphans", "first_seen_at")?,
                        last: read_column(row, 4, "orphans", "last_seen_at")?,
                        is_reported: read_column(row, 5, "orphans", "is_reported")?,
                    },
                })
            })
            .await
    }

    /// The rows with these keys, also those that are over.
    ///
    /// Of keys that are known in part only, those of jobs, runs and fleets that are over are left out: nobody looks through
    /// all that there ever were.
    pub async fn made_for(self, keys: &BTreeSet<MadeKey>) -> Result<Vec<MadeFor>> {
        let ids: Vec<Uuid> = keys.iter().filter_map(MadeKey::id).collect();
        let ends: Vec<&str> = keys.iter().filter_map(MadeKey::end).collect();
        let mut found: BTreeMap<Uuid, MadeFor> = BTreeMap::new();
        for table in DRIVEN {
            for row in self.in_table(table, &ids, &ends).await? {
                found.insert(row.id, row);
            }
        }
        for row in self.replicas(&ids, &ends).await? {
            found.insert(row.id, row);
        }
        self.keep_intended(&mut found).await?;
        Ok(found.into_values().collect())
    }

    async fn in_table(self, table: &DrivenTable, ids: &[Uuid], ends: &[&str]) -> Result<Vec<MadeFor>> {
        let DrivenTable { name, driven, entity } = *table;
        let name_of = table.name_column();
        let ended_at = match name {
            "instances" => "COALESCE(finished_at, deleted_at)",
            "volumes" | "placement_groups" | "compute_groups" => "deleted_at",
            _ => "NULL",
        };
        let select = format!(
            "SELECT id, {name_of}, CAST(CASE WHEN {driven} THEN 1 ELSE 0 END AS BIGINT), CAST({ended_at} AS BIGINT) FROM {name}"
        );
        let read = |row: &AnyRow| {
            let id: String = row.try_get(0)?;
            let Some((entity, id)) = entity(&id).zip(id.parse().ok()) else {
                return Ok(None);
            };
            Ok(Some(MadeFor {
                id,
                entity,
                name: row.try_get(1)?,
                is_live: read_column::<bool>(row, 2, name, "status")?,
                ended_at: read_column(row, 3, name, "deleted_at")?,
            }))
        };
        let mut found = Vec::new();
        if !ids.is_empty() {
            let mut query = Select::new(select.as_str());
            let list = query.bind_list(ids.iter().copied());
            query.filter(format_args!("id IN {list}"));
            found.extend(query.fetch_as(self.0, read).await?);
        }
        if !ends.is_empty() {
            let mut query = Select::new(select.as_str());
            let list = query.bind_list(ends.iter().copied());
            query.filter(format_args!("substr(id, 25) IN {list}"));
            if !matches!(name, "instances" | "volumes") {
                query.filter(driven);
            }
            found.extend(query.fetch_as(self.0, read).await?);
        }
        Ok(found.into_iter().flatten().collect())
    }

    async fn replicas(self, ids: &[Uuid], ends: &[&str]) -> Result<Vec<MadeFor>> {
        let mut query = Select::new(
            "SELECT r.id, r.gateway_id, g.name FROM gateway_replicas r JOIN gateways g ON g.id = r.gateway_id",
        );
        let (ids, ends) = (
            query.bind_list(ids.iter().copied()),
            query.bind_list(ends.iter().copied()),
        );
        query.filter(format_args!(
            "r.deleted = 0 AND (r.id IN {ids} OR substr(r.id, 25) IN {ends})"
        ));
        let read = |row: &AnyRow| {
            let id: String = row.try_get(0)?;
            let gateway: GatewayId = read_column(row, 1, "gateway_replicas", "gateway_id")?;
            let name: String = row.try_get(2)?;
            Ok(id.parse().ok().map(|id| MadeFor {
                id,
                entity: EntityRef::Gateway(gateway),
                name,
                is_live: true,
                ended_at: None,
            }))
        };
        Ok(query
            .fetch_as(self.0, read)
            .await?
            .into_iter()
            .flatten()
            .collect())
    }

    /// Rows that are over while a call for them is still to be made are live.
    async fn keep_intended(self, found: &mut BTreeMap<Uuid, MadeFor>) -> Result<()> {
        let ended = found.values().filter(|row| !row.is_live);
        let subjects: Vec<String> = ended.map(|row| row.entity.to_raw()).collect();
        if subjects.is_empty() {
            return Ok(());
        }
        let mut query = Select::new("SELECT subject FROM operations");
        let list = query.bind_list(subjects.iter().map(String::as_str));
        query.filter(format_args!("state = 'intended' AND subject IN {list}"));
        let subjects: Vec<EntityRef> = query
            .fetch_as(self.0, |row| read_column(row, 0, "operations", "subject"))
            .await?;
        for row in found.values_mut().filter(|row| subjects.contains(&row.entity)) {
            row.is_live = true;
        }
        Ok(())
    }
}

impl MadeKey {
    const fn id(&self) -> Option<Uuid> {
        match self {
            Self::Id(id) => Some(*id),
            Self::End(_) => None,
        }
    }

    fn end(&self) -> Option<&str> {
        match self {
            Self::Id(_) => None,
            Self::End(digits) => Some(digits),
        }
    }
}

/// Remembers it, in place of what was remembered under its key.
pub(crate) async fn put(tx: &mut Tx, row: &OrphanRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO orphans (key, account, description, first_seen_at, last_seen_at, is_reported) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (key) DO UPDATE SET account = excluded.account, \
         description = excluded.description, first_seen_at = excluded.first_seen_at, \
         last_seen_at = excluded.last_seen_at, is_reported = excluded.is_reported",
    )
    .bind(row.key.clone())
    .bind(row.account.clone())
    .bind(row.description.clone())
    .bind(row.sighting.first.as_micros())
    .bind(row.sighting.last.as_micros())
    .bind(i64::from(row.sighting.is_reported))
    .execute(tx)
    .await?;
    Ok(())
}

/// Remembers it no more.
pub(crate) async fn delete(tx: &mut Tx, key: &str) -> Result<()> {
    sqlx::query("DELETE FROM orphans WHERE key = $1")
        .bind(key.to_owned())
        .execute(tx)
        .await?;
    Ok(())
}
