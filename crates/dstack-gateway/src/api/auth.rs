//! Whether a token may use a project.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::{Api, detail, done};
use crate::auth::Verdict;

pub(super) async fn check(
    State(api): State<Arc<Api>>,
    Path(project): Path<String>,
    headers: HeaderMap,
) -> Response {
    match api.auth.check(&project.to_lowercase(), &headers).await {
        Verdict::Allowed => done(),
        Verdict::Denied => detail(StatusCode::FORBIDDEN, crate::auth::DENIED),
        Verdict::Unknown => detail(StatusCode::INTERNAL_SERVER_ERROR, crate::auth::UNKNOWN),
    }
}
