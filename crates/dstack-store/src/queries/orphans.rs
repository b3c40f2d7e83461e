//! What clouds have of ours: for which rows it was made, and since when it belongs to nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use dstack_model::runs::JobProvisioningData;
use dstack_plan::orphans::Sighting;
use dstack_units::{ProjectId, Time};
use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::Reads;
use super::select::Select;
use crate::entities::{DRIVEN, DrivenTable};
use crate::entity::{read_column, read_field};
use crate::rows::OperationKind;
use crate::{Column, EntityRef, EventTarget, Result, Sealed, Tx};

/// The last 12 digits of an id, in the very words of the index.
const ID_END: &str = "substr(id, 25)";

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

    /// Reads what [`Display`](std::fmt::Display) writes.
    pub fn read(text: &str) -> Self {
        match text.parse() {
            Ok(id) => Self::Id(id),
            Err(_) => Self::End(text.to_owned()),
        }
    }

    /// Whether it is that of a row.
    pub fn is_of(&self, id: Uuid) -> bool {
        match self {
            Self::Id(own) => *own == id,
            Self::End(_) => *self == Self::end_of(id),
        }
    }
}

impl fmt::Display for MadeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::End(digits) => f.write_str(digits),
        }
    }
}

/// A row for which something may have been made.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeFor {
    /// Its id: for a replica of a gateway, that of the replica.
    pub id: Uuid,
    /// The entity; of a replica, its gateway.
    pub entity: EntityRef,
    /// Name of the row, as users know it.
    pub name: String,
    /// Project to which the row belongs.
    pub project: ProjectId,
    /// It is not over, or a call is still to be made for it.
    pub is_live: bool,
    /// Since when it is over, if it is known.
    pub ended_at: Option<Time>,
    /// Of an instance that is live: where it is, unless it is still being made.
    pub place: Option<Sealed<JobProvisioningData>>,
}

impl MadeFor {
    /// The entity, for events; `None`: clients of dstack 0.22.5 know nothing of its kind.
    pub fn target(&self) -> Option<EventTarget> {
        Some(EventTarget {
            entity_type: self.entity.kind().parse().ok()?,
            entity_id: self.entity.uuid().to_string(),
            entity_name: self.name.clone(),
            project_id: Some(self.project.to_string()),
            run_id: None,
            fleet_id: None,
            gateway_id: None,
        })
    }
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
        let columns = "key, account, description, first_seen_at, last_seen_at, is_reported, is_ending";
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
                        is_ending: read_column(row, 6, "orphans", "is_ending")?,
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
        let being_made = self.keep_intended(&mut found).await?;
        self.add_places(&mut found, &being_made).await?;
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
            "SELECT id, {name_of}, CAST(CASE WHEN {driven} THEN 1 ELSE 0 END AS BIGINT), CAST({ended_at} AS BIGINT), project_id \
             FROM {name}"
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
                project: read_column(row, 4, name, "project_id")?,
                is_live: read_column::<bool>(row, 2, name, "status")?,
                ended_at: read_column(row, 3, name, "deleted_at")?,
                place: None,
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
            query.filter(format_args!("{ID_END} IN {list}"));
            if !matches!(name, "instances" | "volumes") {
                query.filter(driven);
            }
            found.extend(query.fetch_as(self.0, read).await?);
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Rows that are over while a call for them is still to be made are live. Those that a call is to be made for that makes them.
    async fn keep_intended(self, found: &mut BTreeMap<Uuid, MadeFor>) -> Result<BTreeSet<EntityRef>> {
        let subjects: BTreeSet<String> = found.values().map(|row| row.entity.to_raw()).collect();
        if subjects.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut query = Select::new("SELECT subject, kind FROM operations");
        let list = query.bind_list(subjects.iter().map(String::as_str));
        query.filter(format_args!("state = 'intended' AND subject IN {list}"));
        let calls: Vec<(EntityRef, OperationKind)> = query
            .fetch_as(self.0, |row| {
                let subject = read_column(row, 0, "operations", "subject")?;
                Ok((subject, read_column(row, 1, "operations", "kind")?))
            })
            .await?;
        let subjects: BTreeSet<EntityRef> = calls.iter().map(|(subject, _)| *subject).collect();
        for row in found.values_mut().filter(|row| subjects.contains(&row.entity)) {
            row.is_live = true;
        }
        let makes =
            |(subject, kind): (EntityRef, OperationKind)| (kind == OperationKind::Create).then_some(subject);
        Ok(calls.into_iter().filter_map(makes).collect())
    }

    async fn add_places(
        self,
        found: &mut BTreeMap<Uuid, MadeFor>,
        being_made: &BTreeSet<EntityRef>,
    ) -> Result<()> {
        let is_made = |row: &&MadeFor| {
            row.is_live && matches!(row.entity, EntityRef::Instance(_)) && !being_made.contains(&row.entity)
        };
        let made: Vec<Uuid> = found.values().filter(is_made).map(|row| row.id).collect();
        if made.is_empty() {
            return Ok(());
        }
        let mut query = Select::new("SELECT id, job_provisioning_data FROM instances");
        let list = query.bind_list(made);
        query.filter(format_args!("id IN {list}"));
        let (reads, keys) = (self.0, self.0.keys());
        let read = |row: &AnyRow| {
            let id: String = row.try_get(0)?;
            let place: Option<Sealed<JobProvisioningData>> =
                read_field(row, keys, 1, "instances", "job_provisioning_data")?;
            Ok(id.parse::<Uuid>().ok().zip(place))
        };
        for (id, place) in query.fetch_as(reads, read).await?.into_iter().flatten() {
            if let Some(row) = found.get_mut(&id) {
                row.place = Some(place);
            }
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
        "INSERT INTO orphans (key, account, description, first_seen_at, last_seen_at, is_reported, is_ending) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (key) DO UPDATE SET account = excluded.account, \
         description = excluded.description, first_seen_at = excluded.first_seen_at, \
         last_seen_at = excluded.last_seen_at, is_reported = excluded.is_reported, is_ending = excluded.is_ending",
    )
    .bind(row.key.clone())
    .bind(row.account.clone())
    .bind(row.description.clone())
    .bind(row.sighting.first.as_micros())
    .bind(row.sighting.last.as_micros())
    .bind(i64::from(row.sighting.is_reported))
    .bind(i64::from(row.sighting.is_ending))
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

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a database without keys, and its plan of a query
mod tests {
    use super::*;
    use crate::{Database, raw};

    #[tokio::test]
    async fn rows_are_found_by_the_ends_of_their_ids_without_a_look_at_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open_file(&folder.path().join("db.sqlite"))
            .await
            .unwrap();
        for table in ["instances", "volumes"] {
            let explain = format!("EXPLAIN QUERY PLAN SELECT name FROM {table} WHERE {ID_END} IN ('1', '2')");
            let plan = raw::fetch(&database, &explain).await.unwrap();
            let plan: Vec<String> = plan.into_iter().flatten().flatten().collect();
            let index = format!("ix_{table}_id_end");
            assert!(plan.iter().any(|step| step.contains(&index)), "{plan:?}");
        }
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let id = Uuid::from_u128(0x0195_6fd2_6b2c_7ad1_8f3e_0123_4567_89ab);
        for key in [MadeKey::Id(id), MadeKey::end_of(id)] {
            assert_eq!(MadeKey::read(&key.to_string()), key);
            assert!(key.is_of(id));
        }
    }

    #[test]
    fn events_are_about_what_clients_know() {
        use dstack_model::events::EventTargetType as Type;
        let id = Uuid::from_u128(7);
        let kind = |entity| {
            let row = MadeFor {
                id,
                entity,
                name: "cloud-1".to_owned(),
                project: Uuid::from_u128(1).into(),
                is_live: false,
                ended_at: None,
                place: None,
            };
            row.target().map(|target| target.entity_type)
        };
        assert_eq!(kind(EntityRef::Instance(id.into())), Some(Type::Instance));
        assert_eq!(kind(EntityRef::Volume(id.into())), Some(Type::Volume));
        assert_eq!(kind(EntityRef::Gateway(id.into())), Some(Type::Gateway));
        assert_eq!(kind(EntityRef::PlacementGroup(id.into())), None);
        assert_eq!(kind(EntityRef::ComputeGroup(id.into())), None);
    }
}
