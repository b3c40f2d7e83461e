//! Paths of the in-server proxy. Services cannot be submitted yet, so that none is ever found; the refusals are those
//! of dstack 0.22.5.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::routing::{any, get, post};
use dstack_model::decode::{Decode, Value};
use serde_json::json;

use crate::access::{bearer, peer};
use crate::error::{ApiError, json_response};
use crate::state::AppState;

/// The routes below `/proxy`, and `/metrics`.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    Router::new()
        .route("/proxy/services/{project}/{run}", any(add_slash))
        .route("/proxy/services/{project}/{run}/", any(service))
        .route("/proxy/services/{project}/{run}/{*path}", any(service_path))
        .route("/proxy/models/{project}/models", get(models))
        .route("/proxy/models/{project}/chat/completions", post(chat))
        .route("/metrics", get(crate::prometheus::metrics))
        .with_state(state)
}

fn refusal(status: StatusCode, detail: &str) -> Response<Body> {
    json_response(status, &json!({ "detail": detail }))
}

/// Relative links of a service only work below a slash.
async fn add_slash(uri: Uri, headers: HeaderMap) -> Response<Body> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or("localhost");
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    if let Ok(location) = HeaderValue::from_str(&format!("http://{host}{}/{query}", uri.path())) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

async fn service(Path((project, run)): Path<(String, String)>, headers: HeaderMap) -> Response<Body> {
    no_service(&project, &run, &headers)
}

async fn service_path(
    Path((project, run, _)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Response<Body> {
    no_service(&project, &run, &headers)
}

fn no_service(project: &str, run: &str, headers: &HeaderMap) -> Response<Body> {
    if headers.contains_key(header::UPGRADE) {
        return refusal(StatusCode::BAD_REQUEST, "Upgrading connections is not supported");
    }
    refusal(
        StatusCode::NOT_FOUND,
        &format!("Service {project}/{run} not found"),
    )
}

/// Whether the caller is a member; unknown projects look the same as missing permissions.
async fn check_member(
    state: &AppState,
    project: &str,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<(), Response<Body>> {
    let member = async {
        let Some(token) = bearer(headers) else {
            return Ok(false);
        };
        let caller = match state.access.authenticate(token, peer, state.clock.now()).await {
            Err(ApiError::InvalidToken) => return Ok(false),
            authenticated => authenticated?,
        };
        Ok::<_, ApiError>(
            state
                .access
                .project(project)
                .await?
                .is_some_and(|project| project.is_member(&caller.user) && caller.reaches(project.row.id)),
        )
    };
    match member.await {
        Ok(true) => Ok(()),
        Ok(false) => {
            let detail = format!("Unauthenticated or unauthorized to access project {project}");
            Err(refusal(StatusCode::FORBIDDEN, &detail))
        }
        Err(error) => Err(error.into_response()),
    }
}

async fn models(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Response<Body> {
    match check_member(&state, &project, &headers, peer(&extensions)).await {
        Ok(()) => json_response(StatusCode::OK, &json!({"object": "list", "data": []})),
        Err(response) => response,
    }
}

/// The part of a request that says which model is asked.
#[derive(Debug)]
struct Model(String);

impl Decode for Model {
    fn decode(value: &Value, cx: &mut dstack_model::decode::Cx) -> Option<Self> {
        match value.get("model") {
            Some(model) => cx.at("model", |cx| String::decode(model, cx)).map(Self),
            None => cx.at("model", |cx| cx.problem("missing", "Field required", value)),
        }
    }
}

async fn chat(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    headers: HeaderMap,
    extensions: Extensions,
    body: Body,
) -> Response<Body> {
    if let Err(response) = check_member(&state, &project, &headers, peer(&extensions)).await {
        return response;
    }
    match crate::request::json_body::<Model>(&headers, body, false).await {
        Ok(Model(model)) => refusal(
            StatusCode::NOT_FOUND,
            &format!("Model {model} not found in project {project}"),
        ),
        Err(error) => error.into_response(),
    }
}
