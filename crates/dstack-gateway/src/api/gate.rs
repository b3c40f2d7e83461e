//! Lets calls in that are signed with the token of this gateway: other programs of its host reach the API as well.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Json, Response};
use dstack_agent_api::proof::{Gate, checked};

use super::detail;

pub(super) async fn admit(State(gate): State<Arc<Option<Gate>>>, request: Request, next: Next) -> Response {
    let Some(gate) = gate.as_ref() else {
        return next.run(request).await;
    };
    if let Some(challenge) = gate.challenge(request.method(), request.uri(), request.headers()) {
        return Json(challenge).into_response();
    }
    let (head, body) = request.into_parts();
    if !gate.admits(&head) {
        return detail(
            StatusCode::UNAUTHORIZED,
            "The call is not signed with the token of this gateway",
        );
    }
    let body = Body::new(checked(&head.headers, body));
    next.run(Request::from_parts(head, body)).await
}
