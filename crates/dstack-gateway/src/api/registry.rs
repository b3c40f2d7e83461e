//! Calls that change what is registered.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Json, Response};
use dstack_system::{Secret, task};
use http::HeaderName;
use serde::Deserialize;
use serde_json::{Value, json};

use super::read::Body;
use super::{Api, done};
use crate::registry::{Refusal, Registry, Run};
use crate::state::record::default_read_timeout;
use crate::state::{
    AcmeSettings, Entrypoint, ModelRecord, RateKey, RateLimitRecord, ReplicaRecord, ServiceRecord,
};

type Shared = State<Arc<Api>>;

#[derive(Debug, Deserialize)]
pub(super) struct RegisterService {
    #[serde(default)]
    id: Option<String>,
    run_name: String,
    domain: String,
    https: bool,
    auth: bool,
    client_max_body_size: u64,
    #[serde(default = "default_read_timeout")]
    read_timeout: u64,
    #[serde(default)]
    options: Options,
    ssh_private_key: Secret,
    #[serde(default)]
    rate_limits: Vec<RateLimitRecord>,
    #[serde(default)]
    has_router_replica: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Options {
    #[serde(default)]
    openai: Option<OpenAi>,
}

#[derive(Debug, Deserialize)]
struct OpenAi {
    model: ModelRecord,
}

/// Does a change to its end, also when the server that asked for it goes away: what takes long is not begun twice.
async fn changed<F>(api: &Arc<Api>, change: impl FnOnce(Arc<Registry>) -> F) -> Response
where
    F: Future<Output = Result<(), Refusal>> + Send + 'static,
{
    let work = change(Arc::clone(&api.registry));
    match task::uncancelled("change of what is registered", work).await {
        Ok(Ok(())) => done(),
        Ok(Err(refusal)) => refusal.into_response(),
        Err(panicked) => Refusal::internal(panicked.to_string()).into_response(),
    }
}

pub(super) async fn configure(State(api): Shared, Body(acme): Body<AcmeSettings>) -> Response {
    changed(&api, |registry| async move { registry.configure(acme).await }).await
}

pub(super) async fn register_service(
    State(api): Shared,
    Path(project): Path<String>,
    Body(body): Body<RegisterService>,
) -> Response {
    if let Err(refusal) = check_limits(&body.rate_limits) {
        return refusal.into_response();
    }
    changed(&api, |registry| async move {
        let (project, run) = (project.to_lowercase(), body.run_name.to_lowercase());
        let (key, created) = registry.new_key();
        let service = ServiceRecord {
            key,
            id: body.id,
            created,
            domain: body.domain.to_lowercase(),
            https: body.https,
            auth: body.auth,
            client_max_body_size: body.client_max_body_size,
            strip_prefix: true,
            read_timeout: body.read_timeout,
            rate_limits: body.rate_limits,
            has_router_replica: body.has_router_replica,
            model: body.options.openai.map(|openai| openai.model),
            replicas: Vec::new(),
        };
        let run = Run::new(&project, &run);
        registry
            .register_service(run, service, body.ssh_private_key)
            .await
    })
    .await
}

fn check_limits(limits: &[RateLimitRecord]) -> Result<(), Refusal> {
    for limit in limits {
        if let RateKey::Header { header } = &limit.key
            && header.parse::<HeaderName>().is_err()
        {
            return Err(Refusal::bad(format!("{header:?} is no name of a header")));
        }
        if !(limit.rps.is_finite() && limit.rps > 0.0) {
            return Err(Refusal::bad("A rate limit must allow some requests"));
        }
    }
    Ok(())
}

pub(super) async fn unregister_service(
    State(api): Shared,
    Path((project, run)): Path<(String, String)>,
) -> Response {
    let (project, run) = (project.to_lowercase(), run.to_lowercase());
    changed(&api, |registry| async move {
        registry.unregister_service(Run::new(&project, &run)).await
    })
    .await
}

#[derive(Debug, Deserialize)]
pub(super) struct SetId {
    id: String,
}

pub(super) async fn set_id(
    State(api): Shared,
    Path((project, run)): Path<(String, String)>,
    Body(body): Body<SetId>,
) -> Response {
    let (project, run) = (project.to_lowercase(), run.to_lowercase());
    changed(&api, |registry| async move {
        registry.set_id(Run::new(&project, &run), &body.id).await
    })
    .await
}

pub(super) async fn register_replica(
    State(api): Shared,
    Path((project, run)): Path<(String, String)>,
    Body(replica): Body<ReplicaRecord>,
) -> Response {
    let (project, run) = (project.to_lowercase(), run.to_lowercase());
    changed(&api, |registry| async move {
        registry.register_replica(Run::new(&project, &run), replica).await
    })
    .await
}

pub(super) async fn unregister_replica(
    State(api): Shared,
    Path((project, run, job)): Path<(String, String, String)>,
) -> Response {
    let (project, run) = (project.to_lowercase(), run.to_lowercase());
    changed(&api, |registry| async move {
        registry.unregister_replica(Run::new(&project, &run), &job).await
    })
    .await
}

/// Seconds that requests under way are waited for.
#[derive(Debug, Deserialize)]
pub(super) struct Drain {
    #[serde(default)]
    timeout: u32,
}

/// As [`unregister_replica`], and waits for the requests under way: a server stops the job after that.
pub(super) async fn drain_replica(
    State(api): Shared,
    Path((project, run, job)): Path<(String, String, String)>,
    Body(body): Body<Drain>,
) -> Response {
    let (project, run) = (project.to_lowercase(), run.to_lowercase());
    let names = Run::new(&project, &run);
    let Some(replica) = api.registry.replica(names, &job).await else {
        let refusal = format!("Replica {job} does not exist in service {names}, cannot unregister");
        return Refusal::bad(refusal).into_response();
    };
    if let Err(refusal) = api.registry.unregister_replica(names, &job).await {
        return refusal.into_response();
    }
    let limit = Duration::from_secs(body.timeout.into());
    let _ = tokio::time::timeout(limit, replica.idle()).await;
    Json(json!({ "status": "ok", "in_flight": replica.in_flight() })).into_response()
}

pub(super) async fn register_entrypoint(
    State(api): Shared,
    Path(project): Path<String>,
    Body(mut entrypoint): Body<Entrypoint>,
) -> Response {
    entrypoint.domain = entrypoint.domain.to_lowercase();
    changed(&api, |registry| async move {
        registry
            .register_entrypoint(&project.to_lowercase(), entrypoint)
            .await
    })
    .await
}

pub(super) async fn list_services(State(api): Shared) -> Response {
    let state = api.registry.state().await;
    let service = |(project, run, service): (&str, &str, &Arc<ServiceRecord>)| {
        let replicas = service
            .replicas
            .iter()
            .map(|replica| json!({ "id": replica.job_id }));
        let replicas: Vec<Value> = replicas.collect();
        json!({ "id": service.id, "project_name": project, "run_name": run, "replicas": replicas })
    };
    let services: Vec<Value> = state.services().map(service).collect();
    Json(json!({ "services": services })).into_response()
}

/// Whether all is well, for whoever watches it.
pub(super) async fn health(State(api): Shared) -> Response {
    let (replicas, connected) = api.registry.links().await;
    let services = api.registry.state().await.services().count();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "services": services,
        "replicas": replicas,
        "replicas_connected": connected,
    }))
    .into_response()
}
