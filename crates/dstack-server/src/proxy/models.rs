//! Requests to models: `/proxy/models/{project}/…`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, Response};
use axum::routing::post;
use dstack_proxy::models::{self, Call, Endpoint};

use super::members;
use crate::access::peer;
use crate::request::body::{self, Received};
use crate::state::AppState;

/// Most bytes of a call: pictures come as text in the messages.
const MAX_CALL: usize = 32 * 1024 * 1024;

pub(super) fn routes() -> Router<Arc<AppState>> {
    let call = |endpoint: Endpoint| {
        post(
            move |state: State<Arc<AppState>>, project: Path<String>, request: Request| {
                call(state, project, endpoint, request)
            },
        )
    };
    Router::new()
        .route(
            "/proxy/models/{project}/chat/completions",
            call(Endpoint::ChatCompletions),
        )
        .route("/proxy/models/{project}/completions", call(Endpoint::Completions))
        .route("/proxy/models/{project}/embeddings", call(Endpoint::Embeddings))
        .route("/proxy/models/{project}/responses", call(Endpoint::Responses))
}

pub(super) async fn list(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Response<Body> {
    match members::check(&state, &project, &headers, peer(&extensions)).await {
        Ok(()) => models::list(&state.services.routes(), &project).map(Body::new),
        Err(refused) => refused,
    }
}

async fn call(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    endpoint: Endpoint,
    request: Request,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    if let Err(refused) = members::check(&state, &project, &head.headers, peer(&head.extensions)).await {
        return refused;
    }
    let memory = state.edge.overload.memory();
    // What is reserved for the body stays so until the answer has begun.
    let (bytes, _reserved) = match body::read(&head.headers, body, MAX_CALL, memory).await {
        Ok(Received { bytes, reserved }) => (bytes, reserved),
        Err(error) => return error.into_response(),
    };
    let call = Call {
        project: &project,
        endpoint,
        headers: &head.headers,
        body: bytes,
    };
    let answer = state
        .services
        .models()
        .answer(&|| state.services.routes(), call)
        .await;
    answer.map(Body::new)
}
