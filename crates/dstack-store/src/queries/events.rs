//! The audit trail.

use std::collections::HashMap;
use std::fmt::Display;

use dstack_units::{EventId, ProjectId, Time, UserId};
use sqlx::Row;

use super::Page;
use super::Reads;
use super::select::Select;
use crate::{NewEvent, Result, Tx};

/// Which events to list.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Only what this user may see; `None`: everything.
    pub visible_to: Option<UserId>,
    /// Only targets of this project.
    pub only_project: Option<ProjectId>,
    /// Targets of this type with one of these ids.
    pub targets: Option<(&'static str, Vec<String>)>,
    /// Targets inside one of these, or these themselves.
    pub within: Option<(Within, Vec<String>)>,
    /// Targets of one of these types.
    pub types: Option<Vec<String>>,
    /// Done by one of these users; `None` among them = the system.
    pub actors: Option<Vec<Option<UserId>>>,
}

/// What events can be inside of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Within {
    /// Of things of these projects.
    Project,
    /// Of instances of these fleets.
    Fleet,
    /// Of jobs of these runs.
    Run,
    /// Of replicas of these gateways.
    Gateway,
}

impl Within {
    const fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Project => ("project_id", "project"),
            Self::Fleet => ("fleet_id", "fleet"),
            Self::Run => ("run_id", "run"),
            Self::Gateway => ("gateway_id", "gateway"),
        }
    }
}

/// An event with names as they are now (of deleted users and projects: as they were).
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Tells events of the same time apart.
    pub id: EventId,
    /// What happened, as users read it.
    pub message: String,
    /// When it happened.
    pub recorded_at: Time,
    /// Who: id, name, deleted.
    pub actor: Option<(UserId, String, bool)>,
    /// What it is about.
    pub targets: Vec<EventTargetRow>,
}

/// A target of an event.
#[derive(Debug, Clone, PartialEq)]
pub struct EventTargetRow {
    /// Type of the target, such as `run`.
    pub entity_type: String,
    /// Id of the target.
    pub entity_id: String,
    /// Name at the time.
    pub entity_name: String,
    /// Project: id, name, deleted.
    pub project: Option<(ProjectId, String, bool)>,
}

/// What happened: see [`crate::Database::events`].
#[derive(Debug, Clone, Copy)]
pub struct Events<'a>(pub(crate) Reads<'a>);

impl Events<'_> {
    /// Returns a page of the events that the filter finds, each with its targets.
    pub async fn list(self, filter: &EventFilter, page: &Page) -> Result<Vec<EventRow>> {
        let mut query = Select::new(
            "SELECT e.id, e.message, e.recorded_at, e.actor_user_id, COALESCE(u.original_name, u.name), u.deleted \
             FROM events e LEFT JOIN users u ON u.id = e.actor_user_id",
        );
        // The first row of each event stands for it.
        query.filter("e.position = 0");
        filter.apply(&mut query);
        query.page("e.recorded_at", "e.id", page);
        let rows = query.fetch(self.0).await?;
        let mut events = rows.iter().map(read_event).collect::<Result<Vec<_>>>()?;
        let mut targets = self.load_targets(&events).await?;
        for event in &mut events {
            event.targets = targets.remove(&event.id).unwrap_or_default();
        }
        Ok(events)
    }
}

impl EventFilter {
    fn apply(&self, query: &mut Select) {
        if let Some(user) = self.visible_to {
            let (member, own) = (query.bind(user), query.bind(user));
            about(
                query,
                format_args!(
                    "t.project_id IN \
                 (SELECT m.project_id FROM members m WHERE m.user_id = {member} \
                 AND (e.for_managers = 0 OR m.project_role IN ('admin', 'manager'))) \
                 OR (e.for_managers = 0 AND t.entity_type = 'user' AND t.entity_id = {own})"
                ),
            );
        }
        if let Some(project) = self.only_project {
            let project = query.bind(project);
            about(query, format_args!("t.project_id = {project}"));
        }
        if let Some((kind, ids)) = &self.targets {
            let found = found_by(query, kind, ids);
            about(query, found);
        }
        if let Some((within, ids)) = &self.within {
            let (column, kind) = within.parts();
            let inside = query.bind_list(ids.iter().map(String::as_str));
            let own = found_by(query, kind, ids);
            about(query, format_args!("t.{column} IN {inside} OR ({own})"));
        }
        if let Some(types) = &self.types {
            let types = query.bind_list(types.iter().map(String::as_str));
            about(query, format_args!("t.entity_type IN {types}"));
        }
        if let Some(actors) = &self.actors {
            let users = query.bind_list(actors.iter().flatten().copied());
            let system = if actors.contains(&None) {
                " OR e.actor_user_id IS NULL"
            } else {
                ""
            };
            query.filter(format_args!("e.actor_user_id IN {users}{system}"));
        }
    }
}

/// Only events of which one target is so. That has an index, which the database takes where it finds few that way.
fn about(query: &mut Select, condition: impl Display) {
    query.filter(format_args!(
        "EXISTS (SELECT 1 FROM events t WHERE t.recorded_at = e.recorded_at AND t.id = e.id AND ({condition}))"
    ));
}

/// The condition for a target of this type with one of these ids, in the words of the index that finds it.
fn found_by(query: &mut Select, kind: &'static str, ids: &[String]) -> String {
    let list = query.bind_list(ids.iter().map(String::as_str));
    match kind {
        "run" => format!("t.entity_type = 'run' AND t.run_id IN {list}"),
        "job" => {
            let jobs = query.bind_list(ids.iter().map(String::as_str));
            format!(
                "t.entity_type = 'job' AND t.entity_id IN {list} \
                 AND t.run_id IN (SELECT j.run_id FROM jobs j WHERE j.id IN {jobs})"
            )
        }
        other => {
            let other = query.bind(other);
            format!(
                "t.entity_type NOT IN ('run', 'job') AND t.entity_type = {other} AND t.entity_id IN {list}"
            )
        }
    }
}

fn read_event(row: &sqlx::any::AnyRow) -> Result<EventRow> {
    let actor: Option<UserId> = crate::entity::read_column(row, 3, "events", "actor_user_id")?;
    let actor = match actor {
        None => None,
        Some(id) => {
            let name: Option<String> = row.try_get(4)?;
            let deleted: Option<i64> = row.try_get(5)?;
            Some((id, name.unwrap_or_default(), deleted.unwrap_or(0) != 0))
        }
    };
    Ok(EventRow {
        id: crate::entity::read_column(row, 0, "events", "id")?,
        message: row.try_get(1)?,
        recorded_at: crate::entity::read_column(row, 2, "events", "recorded_at")?,
        actor,
        targets: Vec::new(),
    })
}

impl Events<'_> {
    async fn load_targets(self, events: &[EventRow]) -> Result<HashMap<EventId, Vec<EventTargetRow>>> {
        let mut targets: HashMap<EventId, Vec<EventTargetRow>> = HashMap::new();
        if events.is_empty() {
            return Ok(targets);
        }
        let mut query = Select::new(
            "SELECT t.id, t.entity_type, t.entity_id, t.entity_name, t.project_id, COALESCE(p.original_name, p.name), p.deleted \
             FROM events t LEFT JOIN projects p ON p.id = t.project_id",
        );
        let keys: Vec<String> = events
            .iter()
            .map(|event| format!("({}, {})", query.bind(event.recorded_at), query.bind(event.id)))
            .collect();
        let keys = keys.join(", ");
        query.filter(format_args!("(t.recorded_at, t.id) IN (VALUES {keys})"));
        query.filter("t.entity_type IS NOT NULL");
        query.push(" ORDER BY t.id, t.position");
        for row in query.fetch(self.0).await? {
            let project: Option<ProjectId> = crate::entity::read_column(&row, 4, "events", "project_id")?;
            let project = match project {
                None => None,
                Some(id) => {
                    let name: Option<String> = row.try_get(5)?;
                    let deleted: Option<i64> = row.try_get(6)?;
                    Some((id, name.unwrap_or_default(), deleted.unwrap_or(0) != 0))
                }
            };
            let event: EventId = crate::entity::read_column(&row, 0, "events", "id")?;
            targets.entry(event).or_default().push(EventTargetRow {
                entity_type: row.try_get(1)?,
                entity_id: row.try_get(2)?,
                entity_name: row.try_get(3)?,
                project,
            });
        }
        Ok(targets)
    }
}

/// Writes an event in the transaction of the change it reports.
pub async fn insert(tx: &mut Tx, event: NewEvent) -> Result<()> {
    crate::sql::put_events(tx, &[&event]).await
}

/// Deletes the oldest events recorded before `time`, at most `limit` rows; returns how many rows that were: one for each
/// target.
pub async fn delete_before(tx: &mut Tx, time: Time, limit: u32) -> Result<u64> {
    let done = sqlx::query(
        "DELETE FROM events WHERE (recorded_at, id, position) IN (SELECT e.recorded_at, e.id, e.position FROM events e \
         WHERE e.recorded_at < $1 ORDER BY e.recorded_at, e.id, e.position LIMIT $2)",
    )
    .bind(time.as_micros())
    .bind(i64::from(limit))
    .execute(tx)
    .await?;
    Ok(done.rows_affected())
}
