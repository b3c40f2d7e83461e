//! The audit trail.

use dstack_api::routes;
use dstack_model::events::{Event, EventTarget, EventTargetType};
use dstack_model::requests::ListEventsRequest;
use dstack_store::queries::Page;
use dstack_store::queries::events::{EventFilter, EventRow, EventTargetRow, Within};
use uuid::Uuid;

use crate::access::is_admin;
use crate::api::{Api, Call};
use crate::error::Result;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::EventsList, _, _>(list)
}

async fn list(call: Call, request: ListEventsRequest) -> Result<Vec<Event>> {
    let caller = call.user()?;
    let page = Page {
        prev_at: request.prev_recorded_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    let filter = EventFilter {
        visible_to: (!is_admin(caller)).then_some(caller.id),
        only_project: call.only_project(),
        targets: targets(&request).map(|(kind, ids)| (kind, texts(ids))),
        within: within(&request).map(|(within, ids)| (within, texts(ids))),
        types: request
            .include_target_types
            .map(|types| types.iter().map(|kind| kind.as_str().to_owned()).collect()),
        actors: request.actors,
    };
    let rows = call.state.data.database.events().list(&filter, &page).await?;
    Ok(rows.into_iter().map(event).collect())
}

fn texts(ids: &[Uuid]) -> Vec<String> {
    ids.iter().map(Uuid::to_string).collect()
}

/// The one filter by target that is set.
fn targets(request: &ListEventsRequest) -> Option<(&'static str, &[Uuid])> {
    let filters = [
        ("project", &request.target_projects),
        ("user", &request.target_users),
        ("fleet", &request.target_fleets),
        ("instance", &request.target_instances),
        ("run", &request.target_runs),
        ("job", &request.target_jobs),
        ("volume", &request.target_volumes),
        ("gateway", &request.target_gateways),
        ("gateway-replica", &request.target_gateway_replicas),
        ("secret", &request.target_secrets),
        ("preset", &request.target_presets),
    ];
    filters
        .into_iter()
        .find_map(|(kind, ids)| Some((kind, ids.as_deref()?)))
}

/// The one filter by container that is set.
fn within(request: &ListEventsRequest) -> Option<(Within, &[Uuid])> {
    let filters = [
        (Within::Project, &request.within_projects),
        (Within::Fleet, &request.within_fleets),
        (Within::Run, &request.within_runs),
        (Within::Gateway, &request.within_gateways),
    ];
    filters
        .into_iter()
        .find_map(|(within, ids)| Some((within, ids.as_deref()?)))
}

fn event(row: EventRow) -> Event {
    let (actor_user_id, actor_user, is_actor_user_deleted) = match row.actor {
        Some((id, name, deleted)) => (Some(id), Some(name), Some(deleted)),
        None => (None, None, None),
    };
    Event {
        id: row.id,
        message: row.message,
        recorded_at: row.recorded_at,
        actor_user_id,
        actor_user,
        is_actor_user_deleted,
        targets: row.targets.into_iter().filter_map(target).collect(),
    }
}

/// Left out where dstack 0.22.5 has no such type: its clients would read nothing of the whole list.
fn target(row: EventTargetRow) -> Option<EventTarget> {
    let kind: EventTargetType = row.entity_type.parse().ok()?;
    let (project_id, project_name, is_project_deleted) = match row.project {
        Some((id, name, deleted)) => (Some(id), Some(name), Some(deleted)),
        None => (None, None, None),
    };
    Some(EventTarget {
        kind: kind.as_str().to_owned(),
        project_id,
        project_name,
        is_project_deleted,
        id: Uuid::parse_str(&row.entity_id).ok()?,
        name: row.entity_name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_which_clients_know_nothing_are_left_out() {
        let row = |kind: &str| EventTargetRow {
            entity_type: kind.to_owned(),
            entity_id: Uuid::nil().to_string(),
            entity_name: "cloud-1".to_owned(),
            project: None,
        };
        for kind in EventTargetType::TEXTS {
            assert_eq!(target(row(kind)).unwrap().kind, *kind);
        }
        for kind in ["placement-group", "compute-group", "operation"] {
            assert_eq!(target(row(kind)), None, "{kind}");
        }
    }
}
