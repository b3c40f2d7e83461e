//! Requests to models: `/proxy/models/{project}/…`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, Response, StatusCode};
use axum::routing::post;
use dstack_model::requests::ChatCompletionsRequest;
use serde_json::json;

use super::{members, refusal};
use crate::access::peer;
use crate::error::json_response;
use crate::request::body::{self, Received};
use crate::request::json_body;
use crate::state::AppState;

/// Most bytes of a chat.
const MAX_CHAT: usize = 2 * 1024 * 1024;

pub(super) fn routes() -> Router<Arc<AppState>> {
    Router::new().route("/proxy/models/{project}/chat/completions", post(chat))
}

pub(super) async fn list(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Response<Body> {
    if let Err(refused) = members::check(&state, &project, &headers, peer(&extensions)).await {
        return refused;
    }
    json_response(StatusCode::OK, &json!({"object": "list", "data": []}))
}

async fn chat(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    request: Request,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    if let Err(refused) = members::check(&state, &project, &head.headers, peer(&head.extensions)).await {
        return refused;
    }
    let memory = state.edge.overload.memory();
    let received = body::read(&head.headers, body, MAX_CHAT, memory).await;
    let Received {
        bytes,
        reserved: _reserved,
    } = match received {
        Ok(received) => received,
        Err(error) => return error.into_response(),
    };
    let read = json_body(&head.headers, &bytes, MAX_CHAT, false);
    let ChatCompletionsRequest { model, .. } = match read {
        Ok(chat) => chat,
        Err(error) => return error.into_response(),
    };
    let detail = format!("Model {model} not found in project {project}");
    refusal(StatusCode::NOT_FOUND, &detail)
}
