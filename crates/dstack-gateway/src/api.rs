//! The API of gateways of dstack 0.22.5, for servers, which reach it over SSH. It listens on this machine only, and without a token it
//! asks nobody who he is.

mod auth;
mod gate;
mod models;
mod read;
mod registry;
mod stats;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use dstack_agent_api::proof::Gate;
use serde_json::json;

use crate::auth::Auth;
use crate::models::Models;
use crate::registry::{Refusal, Registry};
use dstack_proxy::stats::StatsRegistry;

/// Bytes of a call: keys and templates of chats are the largest things in one.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// What calls are answered with.
#[derive(Debug)]
pub struct Api {
    /// Services, replicas and entrypoints.
    pub registry: Arc<Registry>,
    /// Who may use a project, which nginx of an old gateway asks.
    pub auth: Arc<Auth>,
    /// Models of services, asked below a path of this API.
    pub models: Models,
    /// What was counted of the requests of services, for autoscaling.
    pub stats: Arc<StatsRegistry>,
}

/// The routes of the API, answered with this, for calls that the gate lets in.
pub fn router(api: Arc<Api>, gate: Option<Gate>) -> Router {
    let registry = Router::new()
        .route("/services/register", post(registry::register_service))
        .route("/services/{run}/unregister", post(registry::unregister_service))
        .route("/services/{run}/set_id", post(registry::set_id))
        .route(
            "/services/{run}/replicas/register",
            post(registry::register_replica),
        )
        .route(
            "/services/{run}/replicas/{job}/unregister",
            post(registry::unregister_replica),
        )
        .route("/entrypoints/register", post(registry::register_entrypoint));
    Router::new()
        .route("/", get(version))
        .route("/api/config", post(registry::configure))
        .nest("/api/registry/{project}", registry)
        .route("/api/services/list", get(registry::list_services))
        .route("/api/stats/collect", get(stats::collect))
        .route("/api/auth/{project}", get(auth::check))
        .route(
            "/api/models/{project}/{*path}",
            get(models::answer).post(models::answer),
        )
        .route(
            "/api/v2/registry/{project}/services/{run}/replicas/{job}/drain",
            post(registry::drain_replica),
        )
        .route(
            "/api/v2/registry/{project}/services/{run}/split",
            post(registry::split),
        )
        .route("/api/v2/health", get(registry::health))
        .route("/api/v2/stats", get(stats::counts))
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::new(gate), gate::admit))
        .with_state(api)
}

async fn version() -> Response {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

async fn not_found() -> Response {
    detail(StatusCode::NOT_FOUND, "Not Found")
}

fn detail(status: StatusCode, detail: &str) -> Response {
    (status, Json(json!({ "detail": detail }))).into_response()
}

/// What is said when there is nothing to say.
fn done() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.internal {
            true => StatusCode::INTERNAL_SERVER_ERROR,
            false => StatusCode::BAD_REQUEST,
        };
        detail(status, &self.detail)
    }
}
