//! Requests to models: `/proxy/models/{project}/…`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, Response};
use axum::routing::post;
use dstack_proxy::ProxyBody;
use dstack_proxy::models::{self, Call, Endpoint};
use dstack_telemetry::http::Seen;
use http_body_util::BodyExt as _;

use super::members;
use crate::access::peer;
use crate::overload::memory::Reserved;
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
    match members::admit(&state, &project, &headers, peer(&extensions)).await {
        Ok(member) => models::list(&state.services.routes(), &member.project).map(Body::new),
        Err(refused) => refused,
    }
}

async fn call(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    endpoint: Endpoint,
    request: Request,
) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    let admitted = members::admit(&state, &project, &head.headers, peer(&head.extensions)).await;
    let member = match admitted {
        Ok(member) => member,
        Err(refused) => return refused,
    };
    let memory = state.edge.overload.model_memory();
    let (bytes, reserved) = match body::read(&head.headers, body, MAX_CALL, memory).await {
        Ok(Received { bytes, reserved }) => (bytes, reserved),
        Err(error) => return error.into_response(),
    };
    if let Some(seen) = Seen::of(&head.extensions) {
        seen.continue_trace(&mut head.headers);
    }
    let call = Call {
        project: &member.project,
        endpoint,
        headers: &head.headers,
        body: bytes,
    };
    let routes = || state.services.routes();
    let answer = state.services.models().answer(&routes, call).await;
    answer.map(|body| held_to_its_end(body, reserved))
}

/// A model may answer before it has read the call, which is held until then.
fn held_to_its_end(body: ProxyBody, reserved: Option<Reserved>) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _held = &reserved;
        frame
    }))
}
