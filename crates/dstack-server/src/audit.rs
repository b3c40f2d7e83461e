//! EventMaker of users, projects and secrets; those of the engine's entities are built by the engine's own maker.

use std::time::Duration;

use dstack_store::EventMaker;
use dstack_store::directory::events;
use dstack_store::directory::projects::ProjectRow;
use dstack_store::directory::secrets::SecretRow;
use dstack_store::directory::users::UserRow;
use dstack_store::{EventTarget, NewEvent, Tx};
use dstack_units::Time;

use crate::state::AppState;

/// What happened now, by this user.
pub(crate) fn by(state: &AppState, user: &UserRow) -> EventMaker {
    EventMaker {
        now: state.clock.now(),
        actor: Some(user.id),
        random: state.random.clone(),
    }
}

/// What happened now, by the server itself.
pub(crate) fn by_system(state: &AppState) -> EventMaker {
    EventMaker::system(state.clock.now(), state.random.clone())
}

/// The events of one change, unless none are kept.
pub(crate) fn kept(state: &AppState, events: Vec<NewEvent>) -> Vec<NewEvent> {
    if state.settings.events_ttl > 0 {
        in_order(events)
    } else {
        Vec::new()
    }
}

/// Lists are sorted by time: what comes later in a change is later, however quick it was.
fn in_order(mut events: Vec<NewEvent>) -> Vec<NewEvent> {
    let mut earliest = Time::from_micros(i64::MIN);
    for event in &mut events {
        event.recorded_at = event.recorded_at.max(earliest);
        earliest = event.recorded_at + Duration::from_micros(1);
    }
    events
}

/// Writes an event, unless none are kept.
pub(crate) async fn write(tx: &mut Tx, event: Option<NewEvent>) -> dstack_store::Result<()> {
    match event {
        Some(event) => events::insert(tx, event).await,
        None => Ok(()),
    }
}

/// Writes events that are kept.
pub(crate) async fn write_all(tx: &mut Tx, events: Vec<NewEvent>) -> dstack_store::Result<()> {
    for event in events {
        events::insert(tx, event).await?;
    }
    Ok(())
}

/// An event of one target.
pub(crate) fn event(
    state: &AppState,
    actor: &UserRow,
    message: impl Into<String>,
    target: EventTarget,
) -> Option<NewEvent> {
    kept(state, vec![by(state, actor).event(message, vec![target])]).pop()
}

/// An event for those who govern a project: of changes for which dstack 0.22.5 writes none. Its users, who list events as
/// they always did, see what they always saw.
pub(crate) fn for_managers(
    state: &AppState,
    actor: &UserRow,
    message: impl Into<String>,
    targets: Vec<EventTarget>,
) -> Option<NewEvent> {
    let event = NewEvent {
        for_managers: true,
        ..by(state, actor).event(message, targets)
    };
    kept(state, vec![event]).pop()
}

/// Any target.
pub(crate) fn target(
    kind: &'static str,
    id: &dyn ToString,
    name: &str,
    project: Option<String>,
) -> EventTarget {
    EventTarget {
        entity_type: kind,
        entity_id: id.to_string(),
        entity_name: name.to_owned(),
        project_id: project,
        run_id: None,
        fleet_id: None,
        gateway_id: None,
    }
}

/// A user.
pub(crate) fn user(row: &UserRow) -> EventTarget {
    target("user", &row.id, &row.name, None)
}

/// A project.
pub(crate) fn project(row: &ProjectRow) -> EventTarget {
    target("project", &row.id, &row.name, Some(row.id.to_string()))
}

/// A secret.
pub(crate) fn secret(row: &SecretRow) -> EventTarget {
    target("secret", &row.id, &row.name, Some(row.project_id.to_string()))
}

/// The name that a deleted user or project gets, so that its own is free again.
pub(crate) fn deleted_name(state: &AppState, now: Time) -> String {
    format!(
        "_deleted_{}_{}",
        now.as_millis() / 1000,
        hex::encode(state.random.bytes::<8>())
    )
}
