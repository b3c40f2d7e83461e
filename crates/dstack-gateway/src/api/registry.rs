//! Calls that change what is registered.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Json, Response};
use dstack_agent_api::gateway::SetSplit;
use dstack_system::{Secret, task};
use http::HeaderName;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::read::Body;
use super::{Api, done};
use crate::host_name::host_name;
use crate::registry::{Refusal, Registry, Run};
use crate::state::record::default_read_timeout;
use crate::state::{
    AcmeSettings, BalancingRecord, Entrypoint, ModelRecord, RateKey, RateLimitRecord, ReplicaRecord,
    ServiceRecord,
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
    #[serde(default)]
    balancing: BalancingRecord,
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

/// Answers a call that changes something.
async fn changed<F>(api: &Arc<Api>, change: impl FnOnce(Arc<Registry>) -> F) -> Response
where
    F: Future<Output = Result<(), Refusal>> + Send + 'static,
{
    let changed = to_its_end(change(Arc::clone(&api.registry))).await;
    changed.map_or_else(IntoResponse::into_response, |()| done())
}

/// Does a change to its end, also when the server that asked for it goes away: what takes long is not begun twice, and what is written
/// is in effect.
async fn to_its_end<F>(change: F) -> Result<(), Refusal>
where
    F: Future<Output = Result<(), Refusal>> + Send + 'static,
{
    let changed = task::uncancelled("change of what is registered", change).await;
    changed.unwrap_or_else(|panicked| Err(Refusal::internal(panicked.to_string())))
}

pub(super) async fn configure(State(api): Shared, Body(acme): Body<AcmeSettings>) -> Response {
    changed(&api, |registry| async move { registry.configure(acme).await }).await
}

pub(super) async fn register_service(
    State(api): Shared,
    Path(project): Path<String>,
    Body(body): Body<RegisterService>,
) -> Response {
    let domain = match checked(&body) {
        Ok(domain) => domain,
        Err(refusal) => return refusal.into_response(),
    };
    changed(&api, |registry| async move {
        let (project, run) = (project.to_lowercase(), body.run_name.to_lowercase());
        let (key, created) = registry.new_key();
        let service = ServiceRecord {
            key,
            id: body.id,
            created,
            domain,
            https: body.https,
            auth: body.auth,
            client_max_body_size: body.client_max_body_size,
            strip_prefix: true,
            read_timeout: body.read_timeout,
            rate_limits: body.rate_limits,
            has_router_replica: body.has_router_replica,
            balancing: body.balancing,
            model: body.options.openai.map(|openai| openai.model),
            split: None,
            replicas: Vec::new(),
        };
        let run = Run::new(&project, &run);
        registry
            .register_service(run, service, body.ssh_private_key)
            .await
    })
    .await
}

/// The host name of a service that can be registered.
fn checked(service: &RegisterService) -> Result<String, Refusal> {
    check_limits(&service.rate_limits)?;
    host_name(&service.domain)
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

/// How requests are split while a new deployment stands beside the old one.
pub(super) async fn split(
    State(api): Shared,
    Path((project, run)): Path<(String, String)>,
    Body(body): Body<SetSplit>,
) -> Response {
    let (project, run) = (project.to_lowercase(), run.to_lowercase());
    changed(&api, |registry| async move {
        registry.set_split(Run::new(&project, &run), body.split).await
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
    let limit = Duration::from_secs(body.timeout.into());
    match drain(&api.registry, [project, run, job], limit).await {
        Ok(in_flight) => Json(json!({ "status": "ok", "in_flight": in_flight })).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Takes the replica of a job away, and returns how many requests are under way there after that, waited for at most so long.
async fn drain(
    registry: &Arc<Registry>,
    [project, run, job]: [String; 3],
    limit: Duration,
) -> Result<usize, Refusal> {
    let names = Run::new(&project, &run);
    let Some(replica) = registry.replica(names, &job).await else {
        let refusal = format!("Replica {job} does not exist in service {names}, cannot unregister");
        return Err(Refusal::bad(refusal));
    };
    let registry = Arc::clone(registry);
    to_its_end(async move { registry.unregister_replica(Run::new(&project, &run), &job).await }).await?;
    let _ = tokio::time::timeout(limit, replica.idle()).await;
    Ok(replica.in_flight())
}

pub(super) async fn register_entrypoint(
    State(api): Shared,
    Path(project): Path<String>,
    Body(mut entrypoint): Body<Entrypoint>,
) -> Response {
    entrypoint.domain = match host_name(&entrypoint.domain) {
        Ok(domain) => domain,
        Err(refusal) => return refusal.into_response(),
    };
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
        let mut listed = Map::new();
        listed.insert("id".to_owned(), json!(service.id));
        listed.insert("project_name".to_owned(), json!(project));
        listed.insert("run_name".to_owned(), json!(run));
        listed.insert("replicas".to_owned(), replicas.collect());
        if let Some(split) = &service.split {
            listed.insert("split".to_owned(), json!(split));
        }
        Value::Object(listed)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io;

    use async_trait::async_trait;
    use dstack_agent_api::gateway::Split;
    use dstack_agent_api::http::{Connector, Wire};
    use dstack_proxy::body::full;
    use dstack_proxy::{Balancing, Forward as _, Forwarder, Replica, Service};
    use dstack_ssh::keys::generate_ed25519;
    use dstack_system::{Random, SystemClock};
    use dstack_units::{JobId, RunId};
    use futures_util::FutureExt as _;

    use super::*;
    use crate::registry::Parts;
    use crate::state::store::Store;
    use crate::state::{Project, State};
    use crate::tls::{Certificates, TlsSettings};

    const JOB: &str = "9d5ed678fe57bcca610140957afab571";
    const WEB: RunId = RunId::new(uuid::Uuid::from_u128(1));

    /// One service `web` with one replica, which cannot be reached.
    fn state() -> State {
        let replica = json!({"job_id": JOB, "app_port": 1, "ssh_host": "localhost", "ssh_port": 1});
        let service = json!({
            "key": uuid::Uuid::from_u128(1), "id": null, "created": 1, "domain": "web.example.com", "https": false, "auth": false,
            "client_max_body_size": 0, "replicas": [replica]
        });
        let mut project = Project {
            ssh_private_key: generate_ed25519(&Random::system(), "test").unwrap().private,
            ..Project::default()
        };
        let service: ServiceRecord = serde_json::from_value(service).unwrap();
        project.services.insert("web".to_owned(), Arc::new(service));
        let mut state = State::default();
        state.projects.insert("main".to_owned(), project);
        state
    }

    async fn registry(dir: &std::path::Path, forwarder: &Arc<Forwarder>) -> Arc<Registry> {
        let tls = TlsSettings {
            dir: dir.to_owned(),
            certbot: dir.to_owned(),
            authority: String::new(),
            authority_root: None,
        };
        let clock: dstack_system::clock::SharedClock = Arc::new(SystemClock);
        let parts = Parts {
            store: Store::new(dir),
            certificates: Arc::new(Certificates::new(tls, Arc::clone(&clock), Random::system())),
            forwarder: Arc::clone(forwarder),
            clock,
            random: Random::system(),
        };
        Arc::new(Registry::start(state(), parts).await)
    }

    #[tokio::test]
    async fn a_replica_whose_server_goes_away_meanwhile_is_taken_away_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path(), &Arc::default()).await;
        let mut changes = registry.changes();
        let names = ["main", "web", JOB].map(str::to_owned);
        let left = drain(&registry, names, Duration::from_secs(30)).now_or_never();
        assert!(left.is_none(), "the state is being written");
        let changed = tokio::time::timeout(Duration::from_secs(30), changes.changed()).await;
        changed.expect("never").unwrap();
        let state = registry.state().await;
        assert!(state.service("main", "web").unwrap().replicas.is_empty());
        assert_eq!(Store::new(dir.path()).load().unwrap(), Some(state));
    }

    /// A replica that refuses every connection.
    #[derive(Debug)]
    struct Nowhere;

    #[async_trait]
    impl Connector for Nowhere {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }

    /// Sends a prompt to the service, with replicas by whose prompts they would be chosen.
    async fn ask_model(registry: &Registry, forwarder: &Forwarder) {
        let sites = registry.sites().load();
        let site = sites.of_run(WEB).unwrap();
        let replica = |number| {
            Arc::new(Replica::new(
                JobId::new(uuid::Uuid::from_u128(number)),
                Arc::new(Nowhere),
            ))
        };
        let service = Service {
            balancing: Balancing::Prefix,
            replicas: vec![replica(1), replica(2)],
            ..site.service.clone()
        };
        let said = json!({"model": "m", "messages": [{"role": "user", "content": "why? ".repeat(200)}]});
        let request = http::Request::post("/v1/chat/completions")
            .header("host", "web.example.com")
            .header("content-type", "application/json")
            .body(full(said.to_string()))
            .unwrap();
        forwarder.forward(&service, request).await;
    }

    #[tokio::test]
    async fn prompts_of_a_service_are_remembered_until_it_has_no_replica_or_is_gone() {
        let (dir, forwarder) = (tempfile::tempdir().unwrap(), Arc::<Forwarder>::default());
        let registry = registry(dir.path(), &forwarder).await;
        let run = Run::new("main", "web");
        ask_model(&registry, &forwarder).await;
        let split = Split {
            deployment: 1,
            new: BTreeSet::new(),
            share: 0,
            header: None,
        };
        registry.set_split(run, Some(split)).await.unwrap();
        assert!(forwarder.remembers_prompts(WEB), "it still has its replica");
        registry.unregister_replica(run, JOB).await.unwrap();
        assert!(!forwarder.remembers_prompts(WEB), "it has none any more");
        ask_model(&registry, &forwarder).await;
        assert!(forwarder.remembers_prompts(WEB));
        registry.unregister_service(run).await.unwrap();
        assert!(!forwarder.remembers_prompts(WEB), "it is gone");
    }
}
