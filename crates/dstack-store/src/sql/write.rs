//! Writing commits: each table's rows together, since a statement costs more than a row.

use std::any::TypeId;
use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use dstack_model::runs::JobStatus;
use dstack_units::{JobId, RunId};
use sqlx::{AssertSqlSafe, Database as _, SqlStr};

use super::servers::{check_fences, hand_over};
use crate::encryption::RowKeys;
use crate::entity::{Statement, Update, insert_sql, places, update_sql, without_numbers};
use crate::rows::{FleetRow, InstanceRow, JobRow, OperationRow, RunRow};
use crate::{Column, Commit, Entity, EventTarget, NewEvent, Put, Result, StoreError, Tx};

/// Most rows of one statement. Beyond [`ANY_NUMBER`] numbers of rows are powers of two, so that there are few different
/// texts and all of them stay prepared.
const ROWS_AT_ONCE: usize = 64;
const ANY_NUMBER: usize = 8;

/// Applies a commit inside a transaction that the caller owns: for writes that change other tables as well.
pub(crate) async fn apply(tx: &mut Tx, keys: &RowKeys, commit: &Commit) -> Result<()> {
    apply_all(tx, keys, std::slice::from_ref(commit)).await
}

/// Stores a row of a table without leases: a new one when its version is 0, else one that must still be at its version.
///
/// # Errors
/// A unique violation of a new row, a conflict when an old one was changed since it was read.
pub(crate) async fn put_row<E: Entity>(tx: &mut Tx, row: &E) -> Result<()> {
    const { assert!(!E::HAS_SEALED, "rows with secrets are written with keys") };
    let keys = &RowKeys::none();
    if row.version() == 0 {
        insert(tx, keys, &[(row, None)], false).await
    } else {
        update(tx, keys, &[row], Update::All).await
    }
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
    writes.fleets.write(tx, keys, true).await?;
    writes.instances.write(tx, keys, true).await?;
    writes.runs.write(tx, keys, true).await?;
    touch_runs(tx, &touched).await?;
    let placed: Vec<JobId> = writes
        .jobs
        .updates
        .iter()
        .filter(|job| is_placed(job))
        .map(|job| job.id)
        .collect();
    writes.jobs.write(tx, keys, true).await?;
    for job in placed {
        hand_over(tx, job).await?;
    }
    writes.operations.write(tx, keys, false).await?;
    let events: Vec<&NewEvent> = commits.iter().flat_map(|commit| &commit.events).collect();
    put_events(tx, &events).await
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

#[derive(Default)]
pub(super) struct Writes<'a> {
    pub(super) fleets: Rows<'a, FleetRow>,
    pub(super) instances: Rows<'a, InstanceRow>,
    pub(super) runs: Rows<'a, RunRow>,
    pub(super) jobs: Rows<'a, JobRow>,
    pub(super) operations: Rows<'a, OperationRow>,
}

impl<'a> Writes<'a> {
    pub(super) fn add(&mut self, commit: &'a Commit) {
        let owner = commit.owner.as_ref();
        for put in &commit.puts {
            match put {
                Put::Fleet(row) => self.fleets.add(row, owner),
                Put::Instance(row) => self.instances.add(row, owner),
                Put::Run(row) => self.runs.add(row, owner),
                Put::Job(row) => self.jobs.add(row, owner),
                Put::Operation(row) => self.operations.add(row, None),
            }
        }
    }
}

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

async fn put_events(tx: &mut Tx, events: &[&NewEvent]) -> Result<()> {
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
        .bind(target.map(|target| target.entity_type))
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
        "run" => Some(target.entity_id.clone()),
        _ => target.run_id.clone(),
    }
}
