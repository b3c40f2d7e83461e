//! Paths of the in-server proxy: who may ask for what is as in dstack 0.22.5, but requests are not passed on to services
//! yet. Those that would be are answered 503 with the reason.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{any, get, post};
use dstack_model::configurations::service::ServiceConfiguration;
use dstack_model::requests::ChatCompletionsRequest;
use dstack_model::runs::JobStatus;
use dstack_store::rows::RunRow;
use serde_json::json;

use crate::access::{Freshness, bearer, peer};
use crate::api::within_time;
use crate::error::{ApiError, Result, json_response};
use crate::overload::Kind;
use crate::request::body::{self, Received};
use crate::request::json_body;
use crate::state::{AppState, Auth, Data};
use crate::version::ClientVersion;

/// The routes below `/proxy`, and `/metrics`.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    let proxy = Router::new()
        .route("/proxy/services/{project}/{run}", any(add_slash))
        .route("/proxy/services/{project}/{run}/", any(service))
        .route("/proxy/services/{project}/{run}/{*path}", any(service_path))
        .route("/proxy/models/{project}/models", get(models))
        .route("/proxy/models/{project}/chat/completions", post(chat))
        .layer(from_fn_with_state((Arc::clone(&state), Kind::Read), guarded));
    // Looks at all that is there, as plans do.
    let metrics = Router::new()
        .route("/metrics", get(crate::prometheus::metrics))
        .layer(from_fn_with_state((Arc::clone(&state), Kind::Plan), guarded));
    proxy.merge(metrics).with_state(state)
}

/// As many calls at a time, and for as long, as of the routes of the table.
async fn guarded(
    State((state, kind)): State<(Arc<AppState>, Kind)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    // Whether a client fits to this server is not asked here, but a version must be one.
    if let Err(refused) = ClientVersion::from_headers(request.headers()) {
        return *refused;
    }
    let answered = match state.edge.overload.enter_as(kind) {
        Ok(place) => within_time(place.work(async move { Ok(next.run(request).await) })).await,
        Err(refused) => Err(refused),
    };
    answered.unwrap_or_else(ApiError::into_response)
}

fn refusal(status: StatusCode, detail: &str) -> Response<Body> {
    json_response(status, &json!({ "detail": detail }))
}

/// Relative links of a service only work below a slash. Where the client has the server's scheme, host and port from is not
/// known here: a proxy in front may speak TLS, so that only the path is said.
async fn add_slash(uri: Uri) -> Response<Body> {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    if let Ok(location) = HeaderValue::from_str(&format!("{}/{query}", uri.path())) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Why a request ends here.
pub(crate) const NOT_YET: &str = "Requests to services are not passed on by this server version yet. `dstack attach` forwards the service's port to \
     your machine.";

fn not_yet() -> Response<Body> {
    refusal(StatusCode::SERVICE_UNAVAILABLE, NOT_YET)
}

async fn service(
    State(state): State<Arc<AppState>>,
    Path((project, run)): Path<(String, String)>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Response<Body> {
    to_service(&state, &project, &run, &headers, peer(&extensions)).await
}

async fn service_path(
    State(state): State<Arc<AppState>>,
    Path((project, run, _)): Path<(String, String, String)>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Response<Body> {
    to_service(&state, &project, &run, &headers, peer(&extensions)).await
}

async fn to_service(
    state: &AppState,
    project: &str,
    run: &str,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Response<Body> {
    if headers.contains_key(header::UPGRADE) {
        return refusal(StatusCode::BAD_REQUEST, "Upgrading connections is not supported");
    }
    let auth = match running_service(&state.data, &state.auth, project, run).await {
        Ok(Some(service)) => service.auth,
        Ok(None) => {
            let detail = format!("Service {project}/{run} not found");
            return refusal(StatusCode::NOT_FOUND, &detail);
        }
        Err(error) => return error.into_response(),
    };
    match auth {
        true => match check_member(&state.data, &state.auth, project, headers, peer).await {
            Ok(()) => not_yet(),
            Err(response) => response,
        },
        false => not_yet(),
    }
}

/// The service of this name, if one of its replicas runs.
async fn running_service(
    data: &Data,
    auth: &Auth,
    project: &str,
    run: &str,
) -> Result<Option<ServiceConfiguration>> {
    let Some(project) = auth.access.project(project, Freshness::Cached).await? else {
        return Ok(None);
    };
    let Some(found) = data.database.run_by_name(project.row.id, run).await? else {
        return Ok(None);
    };
    let jobs = data.database.views().jobs(&[found.run.id]).await?;
    let runs = jobs.iter().any(|job| job.status() == JobStatus::Running);
    Ok(found
        .run
        .run_spec
        .configuration
        .service()
        .filter(|_| runs)
        .cloned())
}

/// Whether the caller is a member; unknown projects look the same as missing permissions.
async fn check_member(
    data: &Data,
    auth: &Auth,
    project: &str,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> std::result::Result<(), Response<Body>> {
    let member = async {
        let Some(token) = bearer(headers) else {
            return Ok(false);
        };
        let caller = match auth
            .access
            .authenticate(token, peer, data.clock.now(), Freshness::Cached)
            .await
        {
            Err(ApiError::InvalidToken) => return Ok(false),
            authenticated => authenticated?,
        };
        Ok::<_, ApiError>(
            auth.access
                .project(project, Freshness::Cached)
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
    if let Err(response) = check_member(&state.data, &state.auth, &project, &headers, peer(&extensions)).await
    {
        return response;
    }
    match served(&state.data, &state.auth, &project).await {
        Ok(models) => {
            let model = |model: &ServedModel| json!({"object": "model", "id": model.name, "created": model.created, "owned_by": project});
            let data: Vec<_> = models.iter().map(model).collect();
            json_response(StatusCode::OK, &json!({"object": "list", "data": data}))
        }
        Err(error) => error.into_response(),
    }
}

struct ServedModel {
    name: String,
    /// Seconds since 1970.
    created: i64,
}

/// The models of a project's running services.
async fn served(data: &Data, auth: &Auth, project: &str) -> Result<Vec<ServedModel>> {
    let Some(project) = auth.access.project(project, Freshness::Cached).await? else {
        return Ok(Vec::new());
    };
    let runs = data.database.views().running_services(project.row.id).await?;
    let model = |run: &RunRow| {
        let model = run.service_spec.as_ref()?.model.as_ref()?;
        Some(ServedModel {
            name: model.name.clone(),
            created: run.submitted_at.to_jiff().as_second(),
        })
    };
    Ok(runs.iter().filter_map(|listed| model(&listed.run)).collect())
}

/// Most bytes of a chat.
const MAX_CHAT: usize = 2 * 1024 * 1024;

async fn chat(
    State(state): State<Arc<AppState>>,
    Path(project): Path<String>,
    headers: HeaderMap,
    extensions: Extensions,
    body: Body,
) -> Response<Body> {
    if let Err(response) = check_member(&state.data, &state.auth, &project, &headers, peer(&extensions)).await
    {
        return response;
    }
    let memory = state.edge.overload.memory();
    let (ChatCompletionsRequest { model, .. }, _reserved) =
        match body::read(&headers, body, MAX_CHAT, memory).await {
            Ok(Received { bytes, reserved }) => match json_body(&headers, &bytes, MAX_CHAT, false) {
                Ok(chat) => (chat, reserved),
                Err(error) => return error.into_response(),
            },
            Err(error) => return error.into_response(),
        };
    match served(&state.data, &state.auth, &project).await {
        Ok(models) if models.iter().any(|served| served.name == model) => not_yet(),
        Ok(_) => {
            let detail = format!("Model {model} not found in project {project}");
            refusal(StatusCode::NOT_FOUND, &detail)
        }
        Err(error) => error.into_response(),
    }
}
