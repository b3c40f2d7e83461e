//! Lists of runs, mostly made of ready pieces.

use std::collections::HashMap;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use dstack_model::requests::ListRunsRequest;
use dstack_model::runs::Run;
use dstack_store::queries::Page;
use dstack_store::queries::views::{ListedRun, RunFilter, RunKey};
use dstack_units::RunId;

use crate::access::{Freshness, is_admin};
use crate::api::Call;
use crate::compat::older;
use crate::error::{ApiError, Result, json_bytes, json_response};
use crate::handlers::projects::visible_projects;
use crate::render::run_lists::{Question, RunLists};
use crate::render::runs::{View, is_stable, run};
use crate::state::{Data, Edge};

pub(super) async fn list(call: Call, request: ListRunsRequest) -> Result<Response<Body>> {
    let Some(filter) = filter(&call, &request).await? else {
        return Ok(json_bytes(StatusCode::OK, "[]"));
    };
    let page = Page {
        prev_at: request.prev_submitted_at,
        prev_id: request.prev_run_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    let view = View {
        jobs: request.include_jobs,
        submissions: request
            .job_submissions_limit
            .and_then(|limit| usize::try_from(limit).ok()),
        connections: false,
    };
    if older::is_older(&call.version) {
        let keys = call.state.data.database.views().run_keys(&filter, &page).await?;
        let mut runs = render(&call.state.data, &keys, view).await?;
        for run in &mut runs {
            crate::compat::run(run, &call.version);
        }
        let runs = older::answer(&runs, &call.version).map_err(ApiError::internal)?;
        return Ok(json_response(StatusCode::OK, &runs));
    }
    let question = Question { filter, page, view };
    Ok(json_bytes(
        StatusCode::OK,
        answer(&call.state.data, &call.state.edge, question).await?,
    ))
}

async fn answer(data: &Data, edge: &Edge, question: Question) -> Result<Bytes> {
    let moment = RunLists::moment(&data.database);
    if let Some(known) = edge.run_lists.find(moment, &question) {
        return Ok(known);
    }
    let pieces = pieces(data, edge, &question).await?;
    let answer = Bytes::from(joined(&pieces.json));
    if pieces.stable {
        edge.run_lists.keep(moment, question, answer.clone());
    }
    Ok(answer)
}

/// Which runs are asked for; `None`: none at all.
async fn filter(call: &Call, request: &ListRunsRequest) -> Result<Option<RunFilter>> {
    let (state, caller) = (&call.state, call.user()?);
    let database = &state.data.database;
    if request.project_name.is_none() && request.repo_id.is_some() {
        return Ok(None);
    }
    let mut filter = RunFilter {
        only_active: request.only_active,
        ..RunFilter::default()
    };
    if let Some(name) = &request.username {
        let user =
            database.users().by_name(name).await?.ok_or_else(|| {
                ApiError::with_code(dstack_api::ErrorCode::ResourceNotExists, "User not found")
            })?;
        filter.user = Some(user.id);
    }
    match &request.project_name {
        Some(name) => {
            let project = state.auth.access.project(name, Freshness::Cached).await?;
            let Some(project) = project.filter(|project| {
                project.row.name == *name && project.is_member(caller) && call.reaches(project.row.id)
            }) else {
                return Ok(None);
            };
            if let Some(id) = &request.repo_id {
                let repo = state.data.database.repo_by_name(project.row.id, id).await?;
                filter.repo = Some(repo.ok_or_else(|| ApiError::no_repo(id))?.id);
            }
            filter.projects = Some(vec![project.row.id]);
        }
        None if is_admin(caller) && call.only_project().is_none() => {
            filter.projects = None;
            filter.living_projects = true;
        }
        None => {
            filter.projects = Some(visible_projects(call, None).await?);
        }
    }
    Ok(Some(filter))
}

/// Runs that fit on a screen: whoever looks at those sees the newest, which are hardly ever known.
const SHORT: i64 = 20;

struct Pieces {
    /// Of each run, in order.
    json: Vec<Bytes>,
    /// Whether all of them stay as they are until something is written.
    stable: bool,
}

/// What is known, and what had to be rendered.
async fn pieces(data: &Data, edge: &Edge, question: &Question) -> Result<Pieces> {
    let (database, view) = (&data.database, question.view);
    let read = match question.page.limit {
        ..=SHORT => Some(
            database
                .views()
                .run_page(&question.filter, &question.page)
                .await?,
        ),
        _ => None,
    };
    let keys: Vec<RunKey> = match &read {
        Some(runs) => runs
            .iter()
            .map(|found| (found.run.id, found.run.version))
            .collect(),
        None => {
            database
                .views()
                .run_keys(&question.filter, &question.page)
                .await?
        }
    };
    let known = edge.runs.find(&keys, view);
    let missing: Vec<RunId> = keys
        .iter()
        .zip(&known)
        .filter(|(_, piece)| piece.is_none())
        .map(|(key, _)| key.0)
        .collect();
    if missing.is_empty() {
        return Ok(Pieces {
            json: known.into_iter().flatten().collect(),
            stable: true,
        });
    }
    let listed = match read {
        Some(mut runs) => {
            runs.retain(|found| missing.contains(&found.run.id));
            runs
        }
        None => database.views().runs(&missing).await?,
    };
    let rendered = render_missing(data, edge, &listed, view).await?;
    let piece = |key: &RunKey, known: Option<Bytes>| {
        known.or_else(|| rendered.get(&key.0).map(|rendered| rendered.json.clone()))
    };
    Ok(Pieces {
        json: keys
            .iter()
            .zip(known)
            .filter_map(|(key, known)| piece(key, known))
            .collect(),
        stable: rendered.values().all(|rendered| rendered.stable),
    })
}

struct Rendered {
    json: Bytes,
    stable: bool,
}

async fn render_missing(
    data: &Data,
    edge: &Edge,
    listed: &[ListedRun],
    view: View,
) -> Result<HashMap<RunId, Rendered>> {
    let ids: Vec<RunId> = listed.iter().map(|found| found.run.id).collect();
    // Jobs after runs: a run's version is never newer than what is shown of its jobs, so no old jobs are kept for it.
    let jobs = data.database.views().jobs(&ids).await?;
    let jobs = super::by_run(&jobs);
    let now = data.clock.now();
    let mut rendered = HashMap::new();
    for found in listed {
        let of_run = jobs.get(&found.run.id).map(Vec::as_slice).unwrap_or_default();
        let json = serde_json::to_vec(&run(found, of_run, view, now)).map_err(ApiError::internal)?;
        let json = Bytes::from(json);
        let stable = is_stable(found, of_run, now);
        if stable {
            edge.runs
                .put((found.run.id, found.run.version), view, json.clone());
        }
        rendered.insert(found.run.id, Rendered { json, stable });
    }
    Ok(rendered)
}

async fn render(data: &Data, keys: &[RunKey], view: View) -> Result<Vec<Run>> {
    let ids: Vec<RunId> = keys.iter().map(|(id, _)| *id).collect();
    let database = &data.database;
    let jobs = database.views().jobs(&ids).await?;
    let jobs = super::by_run(&jobs);
    let listed = database.views().runs(&ids).await?;
    let by_id: HashMap<RunId, _> = listed.iter().map(|found| (found.run.id, found)).collect();
    let now = data.clock.now();
    let one = |id: &RunId| {
        let of_run = jobs.get(id).map(Vec::as_slice).unwrap_or_default();
        by_id.get(id).map(|found| run(found, of_run, view, now))
    };
    Ok(ids.iter().filter_map(one).collect())
}

fn joined(pieces: &[Bytes]) -> Vec<u8> {
    let mut json = Vec::with_capacity(pieces.iter().map(|piece| piece.len() + 1).sum::<usize>() + 2);
    json.push(b'[');
    for (place, piece) in pieces.iter().enumerate() {
        if place > 0 {
            json.push(b',');
        }
        json.extend_from_slice(piece);
    }
    json.push(b']');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_a_list() {
        assert_eq!(joined(&[]), b"[]");
        assert_eq!(
            joined(&[Bytes::from_static(b"1"), Bytes::from_static(b"2")]),
            b"[1,2]"
        );
    }
}
