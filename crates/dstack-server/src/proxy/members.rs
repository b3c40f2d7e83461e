//! Who may use the services of a project.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};

use super::refusal;
use crate::access::{Freshness, bearer};
use crate::error::{ApiError, Result};
use crate::state::AppState;

/// Whether the caller is a member; unknown projects look the same as missing permissions.
///
/// # Errors
/// The answer to give instead.
pub(super) async fn check(
    state: &AppState,
    project: &str,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> std::result::Result<(), Response<Body>> {
    match is_member(state, project, headers, peer).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            let detail = format!("Unauthenticated or unauthorized to access project {project}");
            Err(refusal(StatusCode::FORBIDDEN, &detail))
        }
        Err(error) => Err(error.into_response()),
    }
}

async fn is_member(
    state: &AppState,
    project: &str,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<bool> {
    let Some(token) = bearer(headers) else {
        return Ok(false);
    };
    let (access, now) = (&state.auth.access, state.data.clock.now());
    let caller = match access.authenticate(token, peer, now, Freshness::Cached).await {
        Err(ApiError::InvalidToken) => return Ok(false),
        authenticated => authenticated?,
    };
    let project = access.project(project, Freshness::Cached).await?;
    Ok(project.is_some_and(|project| project.is_member(&caller.user) && caller.reaches(project.row.id)))
}
