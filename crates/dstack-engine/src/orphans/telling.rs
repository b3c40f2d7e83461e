//! What is told of orphans, and whom.

use dstack_compute::{Account, AccountProject};
use dstack_model::events::EventTargetType;
use dstack_store::queries::orphans::{MadeFor, OrphanRow};
use dstack_store::{Changes, EventMaker, EventTarget, NewEvent};

use super::listing::Listed;
use crate::context::Context;

/// Changes by nobody but the server.
pub(super) fn changes(ctx: &Context) -> Changes {
    Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()))
}

/// It has belonged to nobody for a grace.
pub(super) fn found(changes: &Changes, account: &Account, thing: &Listed) -> NewEvent {
    let reason = capitalized(&thing.reason());
    let text = format!(
        "Orphan found in {}: {}. {reason}",
        account.kind,
        thing.description()
    );
    event(changes, account, thing.made_for.as_ref(), text)
}

/// Its cloud is about to be asked to end it.
pub(super) fn is_being_ended(changes: &Changes, account: &Account, thing: &Listed) -> NewEvent {
    let text = format!(
        "Orphan is being ended in {}: {}",
        account.kind,
        thing.description()
    );
    event(changes, account, thing.made_for.as_ref(), text)
}

/// Its cloud says that it is gone, or does not list it any more.
pub(super) fn ended(
    changes: &Changes,
    account: &Account,
    orphan: &OrphanRow,
    made_for: Option<&MadeFor>,
) -> NewEvent {
    let text = format!("Orphan ended in {}: {}", account.kind, orphan.description);
    event(changes, account, made_for, text)
}

/// Those who govern the project for which it was made see it. Where that is not known, those of the project that has the account;
/// of an account that several have, only admins of the server: what one project has there, and at what price, is not the others'
/// business.
fn event(changes: &Changes, account: &Account, made_for: Option<&MadeFor>, text: String) -> NewEvent {
    let targets = match (made_for, account.projects.as_slice()) {
        (Some(row), _) => vec![row.target().unwrap_or_else(|| project(&project_of(account, row)))],
        (None, [only]) => vec![project(only)],
        (None, _) => Vec::new(),
    };
    NewEvent {
        for_managers: true,
        ..changes.maker().event(text, targets)
    }
}

fn project_of(account: &Account, row: &MadeFor) -> AccountProject {
    let mut projects = account.projects.iter();
    let found = projects.find(|project| project.id == row.project).cloned();
    found.unwrap_or_else(|| AccountProject {
        id: row.project,
        name: row.project.to_string(),
    })
}

fn project(project: &AccountProject) -> EventTarget {
    EventTarget {
        entity_type: EventTargetType::Project,
        entity_id: project.id.to_string(),
        entity_name: project.name.clone(),
        project_id: Some(project.id.to_string()),
        run_id: None,
        fleet_id: None,
        gateway_id: None,
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}
