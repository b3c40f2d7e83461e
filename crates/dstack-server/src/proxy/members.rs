//! Who may use the services of a project.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};

use super::refusal;
use crate::access::{Freshness, bearer};
use crate::api::within_time;
use crate::error::{ApiError, Result};
use crate::overload::Kind;
use crate::state::AppState;

/// Somebody who may use the services of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// Name of the project as it is stored: it counts in any case.
    pub(super) project: String,
    /// Name of the API token that they use, if it is for reading only.
    pub(super) reads_by: Option<String>,
}

/// Who calls, if it is a member; unknown projects look the same as missing permissions.
///
/// # Errors
/// The answer to give instead.
pub(super) async fn admit(
    state: &AppState,
    project: &str,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> std::result::Result<Member, Response<Body>> {
    match as_read(state, member(state, project, headers, peer)).await {
        Ok(Some(member)) => Ok(member),
        Ok(None) => {
            let detail = format!("Unauthenticated or unauthorized to access project {project}");
            Err(refusal(StatusCode::FORBIDDEN, &detail))
        }
        Err(error) => Err(error.into_response()),
    }
}

/// The name of the project as it is stored, where the service is not found by the name that was given: names of projects count in
/// any case.
///
/// # Errors
/// The answer to give instead.
pub(super) async fn stored_name(
    state: &AppState,
    project: &str,
    run: &str,
) -> std::result::Result<String, Response<Body>> {
    if state.services.routes().service(project, run).is_some() {
        return Ok(project.to_owned());
    }
    match as_read(state, state.auth.access.project(project, Freshness::Cached)).await {
        Ok(found) => Ok(found.map_or_else(|| project.to_owned(), |found| found.row.name.clone())),
        Err(error) => Err(error.into_response()),
    }
}

/// As many at a time, and for as long, as calls of the API that read: the database may be asked.
async fn as_read<T>(state: &AppState, work: impl Future<Output = Result<T>>) -> Result<T> {
    let _place = state.edge.overload.enter_as(Kind::Read)?;
    within_time(work).await
}

async fn member(
    state: &AppState,
    project: &str,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<Option<Member>> {
    let Some(token) = bearer(headers) else {
        return Ok(None);
    };
    let (access, now) = (&state.auth.access, state.data.clock.now());
    let caller = match access.authenticate(token, peer, now, Freshness::Cached).await {
        Err(ApiError::InvalidToken) => return Ok(None),
        authenticated => authenticated?,
    };
    let project = access.project(project, Freshness::Cached).await?;
    let project = project.filter(|project| project.is_member(&caller.user) && caller.reaches(project.row.id));
    Ok(project.map(|project| Member {
        project: project.row.name.clone(),
        reads_by: caller
            .token
            .as_ref()
            .filter(|token| token.read_only)
            .map(|token| token.name.clone()),
    }))
}
