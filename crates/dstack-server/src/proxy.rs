//! What this server passes on: requests to services that have no gateway, and to their models. Paths, order of checks and answers
//! are those of dstack 0.22.5, which passes no WebSockets on.

mod members;
mod models;
mod service;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::routing::get;
use serde_json::json;

use crate::api::within_time;
use crate::error::{ApiError, json_response};
use crate::overload::Kind;
use crate::state::AppState;
use crate::version::ClientVersion;

/// What the server itself answers below `/proxy`, and `/metrics`.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    // Looks at all that is there, as plans do.
    let metrics = Router::new()
        .route("/metrics", get(crate::prometheus::metrics))
        .layer(from_fn_with_state((Arc::clone(&state), Kind::Plan), guarded))
        .layer(from_fn(version_is_one));
    // Whoever asks is looked up as calls that read are; the list itself is in memory.
    let listed = Router::new()
        .route("/proxy/models/{project}/models", get(models::list))
        .layer(from_fn(version_is_one));
    listed.merge(metrics).with_state(state)
}

/// What is passed on to services, whose answers are theirs.
pub(crate) fn passing_on(state: Arc<AppState>) -> Router {
    let passed_on = service::routes().merge(models::routes());
    passed_on.layer(from_fn(version_is_one)).with_state(state)
}

/// Whether a client fits to this server is not asked here, but a version must be one.
async fn version_is_one(request: Request, next: Next) -> Response<Body> {
    match ClientVersion::from_headers(request.headers()) {
        Ok(_) => next.run(request).await,
        Err(refused) => *refused,
    }
}

/// As many calls at a time, and for as long, as of the routes of the table.
async fn guarded(
    State((state, kind)): State<(Arc<AppState>, Kind)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let answered = match state.edge.overload.enter_as(kind) {
        Ok(place) => within_time(place.work(async move { Ok(next.run(request).await) })).await,
        Err(refused) => Err(refused),
    };
    answered.unwrap_or_else(ApiError::into_response)
}

fn refusal(status: StatusCode, detail: &str) -> Response<Body> {
    json_response(status, &json!({ "detail": detail }))
}
