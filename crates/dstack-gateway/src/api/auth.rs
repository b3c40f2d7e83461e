//! Whether a token may use a project.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::{Api, detail, done};

pub(super) async fn check(
    State(api): State<Arc<Api>>,
    Path(project): Path<String>,
    headers: HeaderMap,
) -> Response {
    let verdict = api.auth.check(&project.to_lowercase(), &headers).await;
    match verdict.admit() {
        Ok(()) => done(),
        Err((status, said)) => detail(status, said),
    }
}
