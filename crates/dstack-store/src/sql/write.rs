//! Writing commits: each table's rows together, since a statement costs more than a row.

use std::any::TypeId;
use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use dstack_model::events::EventTargetType;
use dstack_model::runs::JobStatus;
use dstack_units::{JobId, RunId};
use sqlx::{AssertSqlSafe, Database as _, SqlStr};

use super::servers::{check_fences, hand_over};
use crate::encryption::RowKeys;
use crate::entities::with_entities;
use crate::entity::{Statement, Update, insert_sql, places, update_sql, without_numbers};
use crate::queries::gateways;
use crate::rows::{
    AttachmentRow, ComputeGroupRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow,
    OperationRow, PlacementGroupRow, RunRow, VolumeRow,
};
use crate::{
    Column, Commit, Dialect, Entity, EntityRef, EventTarget, NewEvent, Put, Removal, Result, StoreError, Tx,
};

/// Most rows of one statement. Beyond [`ANY_NUMBER`] numbers of rows are powers of two, so that there are few different
/// texts and all of them stay prepared.
const ROWS_AT_ONCE: usize = 64;
const ANY_NUMBER: usize = 8;

/// Applies a commit inside a transaction that the caller owns: for writes that change other tables as well.
pub(crate) async fn apply(tx: &mut Tx, keys: &RowKeys, commit: &Commit) -> Result<()> {
    apply_all(tx, keys, std::slice::from_ref(commit)).await
}

/// Applies commits that have no row in common. If one cannot be applied, none is.
///
/// Always in the same order of tables, so that servers that share a database do not wait for each other in a circle.
pub(crate) async fn apply_all(tx: &mut Tx, keys: &RowKeys, commits: &[Commit]) -> Result<()> {
    check_fences(tx, commits).await?;
    let mut writes = Writes::default();
    let mut touched = BTreeSet::new();
    for commit in commits {
        writes.add(commit);
        touched.extend(commit.runs_of_jobs());
    }
    let placed: Vec<JobId> = writes
        .jobs
        .updates
        .iter()
        .filter(|job| is_placed(job))
        .map(|job| job.id)
        .collect();
    let operations = std::mem::take(&mut writes.operations);
    writes.write_entities(tx, keys, &touched).await?;
    for job in placed {
        hand_over(tx, job).await?;
    }
    operations.write(tx, keys, false).await?;
    for removal in commits.iter().flat_map(Commit::removals) {
        remove(tx, removal).await?;
    }
    let dialect = Dialect::of(tx);
    for change in commits.iter().flat_map(Commit::directory) {
        change.clone().write(tx, keys, dialect).await?;
    }
    let events: Vec<&NewEvent> = commits.iter().flat_map(|commit| &commit.events).collect();
    put_events(tx, &events).await
}

/// Deletes a row, and the operations that were made for it.
async fn remove(tx: &mut Tx, removal: &Removal) -> Result<()> {
    let (table, id) = (removal.entity.table(), removal.entity.uuid().to_string());
    let sql = format!("DELETE FROM {table} WHERE id = $1 AND version = $2");
    let deleted = sqlx::query(AssertSqlSafe(sql))
        .bind(id.clone())
        .bind(removal.version)
        .execute(&mut *tx)
        .await?;
    if deleted.rows_affected() == 0 {
        return Err(StoreError::Conflict { entity: table, id });
    }
    if let EntityRef::Gateway(gateway) = removal.entity {
        gateways::forget_default(tx, gateway).await?;
    }
    sqlx::query("DELETE FROM operations WHERE subject = $1")
        .bind(removal.entity.to_raw())
        .execute(tx)
        .await?;
    Ok(())
}

/// Whether the job has just got its place.
fn is_placed(job: &JobRow) -> bool {
    job.status() == JobStatus::Provisioning && job.instance_id.is_some()
}

/// Rows of one table.
pub(super) struct Rows<'a, E> {
    updates: Vec<&'a E>,
    pub(super) inserts: Vec<(&'a E, Option<&'a String>)>,
}

impl<E> Default for Rows<'_, E> {
    fn default() -> Self {
        Self {
            updates: Vec::new(),
            inserts: Vec::new(),
        }
    }
}

macro_rules! generate_writes {
    ($($name:ident($row:ident, $id:ident) in $table:ident as $kind:literal, driven $driven:literal, is_over |$it:ident| $is_over:expr;)*) => {
        /// Rows of commits, by their tables.
        #[derive(Default)]
        pub(super) struct Writes<'a> {
            $(pub(super) $table: Rows<'a, $row>,)*
            pub(super) operations: Rows<'a, OperationRow>,
        }

        impl<'a> Writes<'a> {
            pub(super) fn add(&mut self, commit: &'a Commit) {
                let owner = commit.owner.as_ref();
                for put in &commit.puts {
                    match put {
                        $(Put::$name(row) => self.$table.add(row, owner),)*
                        Put::Operation(row) => self.operations.add(row, None),
                    }
                }
            }

            /// Writes the rows of entities, one table after the other.
            async fn write_entities(self, tx: &mut Tx, keys: &RowKeys, touched: &BTreeSet<RunId>) -> Result<()> {
                $(
                    self.$table.write(tx, keys, true).await?;
                    if $row::TABLE == RunRow::TABLE {
                        touch_runs(tx, touched).await?;
                    }
                )*
                Ok(())
            }
        }
    };
}
with_entities!(generate_writes);

impl<'a, E: Entity> Rows<'a, E> {
    fn add(&mut self, row: &'a E, owner: Option<&'a String>) {
        if row.version() == 0 {
            self.inserts.push((row, owner));
        } else {
            self.updates.push(row);
        }
    }

    /// Updates first: a new row may take the name of one that is deleted in the same commit.
    async fn write(mut self, tx: &mut Tx, keys: &RowKeys, leased: bool) -> Result<()> {
        // The same order in every transaction: see `apply_all`.
        self.updates.sort_by_key(|row| row.key());
        for kind in [Update::All, Update::Small] {
            let rows: Vec<&E> = self
                .updates
                .iter()
                .copied()
                .filter(|row| Update::of(*row) == kind)
                .collect();
            let mut updates = rows.as_slice();
            while let Some((rows, rest)) = few(updates) {
                update(tx, keys, rows, kind).await?;
                updates = rest;
            }
        }
        let mut inserts = self.inserts.as_slice();
        while let Some((rows, rest)) = few(inserts) {
            insert(tx, keys, rows, leased).await?;
            inserts = rest;
        }
        Ok(())
    }
}

/// The first few, as many as one statement takes; `None` when there are none.
fn few<T>(rows: &[T]) -> Option<(&[T], &[T])> {
    let count = match rows.len() {
        0 => return None,
        count @ 1..=ANY_NUMBER => count,
        count => 1_usize.checked_shl(count.min(ROWS_AT_ONCE).checked_ilog2()?)?,
    };
    rows.split_at_checked(count)
}

async fn update<E: Entity>(tx: &mut Tx, keys: &RowKeys, rows: &[&E], kind: Update) -> Result<()> {
    let name = match kind {
        Update::All => "update all",
        Update::Small => "update",
    };
    let mut statement = sqlx::query(text::<E>(tx, name, rows.len(), || {
        update_sql::<E>(rows.len(), kind)
    }));
    for row in rows {
        statement = row
            .bind(statement, keys, &|column| {
                E::COLUMNS.first() == Some(&column) || kind.writes::<E>(column)
            })
            .bind(row.version());
    }
    let changed = statement.execute(tx).await?.rows_affected();
    if usize::try_from(changed).is_ok_and(|changed| changed == rows.len()) {
        return Ok(());
    }
    // Of several nobody knows which; they are tried again one by one.
    let id = rows.first().map(|row| row.key().to_string()).unwrap_or_default();
    Err(StoreError::Conflict { entity: E::TABLE, id })
}

async fn insert<E: Entity>(
    tx: &mut Tx,
    keys: &RowKeys,
    rows: &[(&E, Option<&String>)],
    leased: bool,
) -> Result<()> {
    let kind = if leased { "insert leased" } else { "insert" };
    let mut statement = sqlx::query(text::<E>(tx, kind, rows.len(), || {
        insert_sql::<E>(0, rows.len(), leased)
    }));
    for (row, owner) in rows {
        statement = row.bind(statement, keys, &|_| true);
        if leased {
            statement = statement.bind(owner.cloned());
        }
    }
    statement.execute(tx).await?;
    Ok(())
}

/// The text of a statement, made once for each kind of database.
fn text<E: Entity>(tx: &Tx, kind: &'static str, rows: usize, make: impl FnOnce() -> String) -> SqlStr {
    type Key = (TypeId, &'static str, usize, bool);
    static TEXTS: LazyLock<Mutex<HashMap<Key, &'static str>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = texts
        .entry((TypeId::of::<E>(), kind, rows, is_sqlite(tx)))
        .or_insert_with(|| Box::leak(as_understood(tx, make()).into_boxed_str()));
    sqlx::SqlSafeStr::into_sql_str(*text)
}

fn as_understood(tx: &Tx, text: String) -> String {
    if is_sqlite(tx) {
        without_numbers(text)
    } else {
        text
    }
}

fn is_sqlite(tx: &Tx) -> bool {
    tx.backend_name() == sqlx::Sqlite::NAME
}

/// A run's version covers its jobs: decisions about it, and ready-made answers, are stale once a job changed.
async fn touch_runs(tx: &mut Tx, runs: &BTreeSet<RunId>) -> Result<()> {
    let runs: Vec<RunId> = runs.iter().copied().collect();
    let mut runs = runs.as_slice();
    while let Some((some, rest)) = few(runs) {
        let sql = format!(
            "UPDATE runs SET version = version + 1 WHERE id IN {}",
            places(0, 1, some.len())
        );
        let mut statement = sqlx::query(AssertSqlSafe(as_understood(tx, sql)));
        for run in some {
            statement = statement.bind(run.to_raw());
        }
        statement.execute(&mut *tx).await?;
        runs = rest;
    }
    Ok(())
}

pub(crate) async fn put_events(tx: &mut Tx, events: &[&NewEvent]) -> Result<()> {
    let rows = event_rows(events.iter().copied());
    let mut left = rows.as_slice();
    while let Some((some, rest)) = few(left) {
        let text = as_understood(tx, insert_events(0, some.len()));
        let mut statement = sqlx::query(AssertSqlSafe(text));
        for event in some {
            statement = bind_event(statement, event);
        }
        statement.execute(&mut *tx).await?;
        left = rest;
    }
    Ok(())
}

/// A row of the trail: an event and one of its targets, at its place.
pub(super) type EventRow<'a> = (&'a NewEvent, i64, Option<&'a EventTarget>);

/// One for each target; one that is about nothing has a row as well.
pub(super) fn event_rows<'a>(events: impl Iterator<Item = &'a NewEvent>) -> Vec<EventRow<'a>> {
    events
        .flat_map(|event| {
            let targets = (0_i64..).zip(&event.targets);
            let about_nothing = event.targets.is_empty().then_some((event, 0, None));
            targets
                .map(move |(position, target)| (event, position, Some(target)))
                .chain(about_nothing)
        })
        .collect()
}

/// Places of a row in [`insert_events`].
pub(super) const EVENT_WIDTH: usize = 13;

pub(super) fn insert_events(before: usize, rows: usize) -> String {
    let places = places(before, rows, EVENT_WIDTH);
    format!(
        "INSERT INTO events (recorded_at, id, position, message, actor_user_id, for_managers, entity_type, entity_id, \
         entity_name, project_id, run_id, fleet_id, gateway_id) VALUES {places}"
    )
}

pub(super) fn bind_event<'q>(
    statement: Statement<'q>,
    (event, position, target): &EventRow<'_>,
) -> Statement<'q> {
    statement
        .bind(event.recorded_at.to_raw())
        .bind(event.id.to_raw())
        .bind(*position)
        .bind(event.message.clone())
        .bind(event.actor.to_raw())
        .bind(i64::from(event.for_managers))
        .bind(target.map(|target| target.entity_type.as_str()))
        .bind(target.map(|target| target.entity_id.clone()))
        .bind(target.map(|target| target.entity_name.clone()))
        .bind(target.and_then(|target| target.project_id.clone()))
        .bind(target.and_then(run_of))
        .bind(target.and_then(|target| target.fleet_id.clone()))
        .bind(target.and_then(|target| target.gateway_id.clone()))
}

/// A run is found through itself.
fn run_of(target: &EventTarget) -> Option<String> {
    match target.entity_type {
        EventTargetType::Run => Some(target.entity_id.clone()),
        _ => target.run_id.clone(),
    }
}
