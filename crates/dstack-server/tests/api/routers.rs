//! Services with an SMG router: the server tells it which replicas are its workers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use dstack_agent_api::http::{Connector, TcpConnector};
use dstack_engine::Services as _;
use dstack_engine::services::{RequestObserver, Worker};
use dstack_model::runs::{JobProvisioningData, JobStatus, JobTerminationReason, RunStatus};
use dstack_server::services::Ports;
use dstack_store::rows::{AgentAddress, JobRow, RunRow};
use dstack_store::{Commit, EngineStore as _, Put, Sealed};
use dstack_units::{JobId, RunId};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::proxy::{get as get_path, until};
use super::services::apply;
use super::{ADMIN, Server};

/// A router that keeps its workers as SMG does, and notes what it was asked.
#[derive(Debug, Default)]
struct Smg {
    workers: Vec<Value>,
    calls: Vec<(&'static str, Value)>,
    /// What it answers instead.
    instead: Option<(StatusCode, String)>,
    /// What it answers to additions instead; the worker is added all the same if it is a conflict.
    refuses: Option<(StatusCode, Value)>,
    /// Of removals, it only says that it will.
    keeps: bool,
}

type SharedSmg = Arc<Mutex<Smg>>;

impl Smg {
    fn has(&self) -> BTreeSet<String> {
        let label = |worker: &Value| worker["labels"]["dstack.ai/job-id"].as_str().map(str::to_owned);
        self.workers.iter().filter_map(label).collect()
    }

    fn called(&self, name: &str) -> Vec<Value> {
        let calls = self.calls.iter().filter(|(call, _)| *call == name);
        calls.map(|(_, what)| what.clone()).collect()
    }
}

fn instead(smg: &SharedSmg) -> Option<Response> {
    let answer = smg.lock().unwrap().instead.clone();
    answer.map(|(status, text)| (status, text).into_response())
}

async fn list(State(smg): State<SharedSmg>) -> Response {
    smg.lock().unwrap().calls.push(("list", Value::Null));
    instead(&smg).unwrap_or_else(|| {
        let workers = smg.lock().unwrap().workers.clone();
        Json(json!({"total": workers.len(), "workers": workers, "stats": {"regular_count": 0}}))
            .into_response()
    })
}

async fn add(State(smg): State<SharedSmg>, Json(mut worker): Json<Value>) -> Response {
    let mut smg = smg.lock().unwrap();
    smg.calls.push(("add", worker.clone()));
    let refusal = smg.refuses.clone();
    if let Some((status, answer)) = refusal
        .clone()
        .filter(|(status, _)| *status != StatusCode::CONFLICT)
    {
        return (status, Json(answer)).into_response();
    }
    if smg.workers.iter().any(|other| other["url"] == worker["url"]) {
        let exists = json!({"error": "it exists", "code": "WORKER_ALREADY_EXISTS"});
        return (StatusCode::CONFLICT, Json(exists)).into_response();
    }
    let id = format!("worker/{}", smg.calls.len());
    worker["id"] = json!(id);
    smg.workers.push(worker);
    match refusal {
        Some((status, answer)) => (status, Json(answer)).into_response(),
        None => accepted(&id),
    }
}

async fn remove(State(smg): State<SharedSmg>, Path(id): Path<String>) -> Response {
    let mut smg = smg.lock().unwrap();
    smg.calls.push(("remove", json!(id)));
    if !smg.keeps {
        smg.workers.retain(|worker| worker["id"] != json!(id));
    }
    accepted(&id)
}

fn accepted(id: &str) -> Response {
    let answer = json!({"status": "accepted", "worker_id": id, "url": "x", "location": "y"});
    (StatusCode::ACCEPTED, Json(answer)).into_response()
}

async fn chat(request: Request) -> Json<Value> {
    Json(json!({"router": request.uri().path()}))
}

async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = axum::serve(listener, app);
    dstack_system::task::spawn("replica", async move { serving.await.unwrap() });
    address
}

async fn router(smg: &SharedSmg) -> SocketAddr {
    let app = Router::new()
        .route("/workers", get(list).post(add))
        .route("/workers/{id}", delete(remove))
        .fallback(chat);
    serve(app.with_state(Arc::clone(smg))).await
}

/// What a worker answers, by path; all else is not found.
type Answers = Arc<Mutex<BTreeMap<&'static str, (StatusCode, Value)>>>;

async fn worker(answers: &Answers) -> SocketAddr {
    async fn answer(State(answers): State<Answers>, request: Request) -> Response {
        let found = answers.lock().unwrap().get(request.uri().path()).cloned();
        let (status, body) = found.unwrap_or((StatusCode::NOT_FOUND, Value::Null));
        (status, Json(body)).into_response()
    }
    serve(Router::new().fallback(answer).with_state(Arc::clone(answers))).await
}

fn sglang(more: Value) -> Answers {
    let mut info = json!({"status": "ready", "model_path": "org/m"});
    info.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let models = json!({"object": "list", "data": [{"id": "org/m", "owned_by": "sglang"}]});
    let answers = [
        ("/v1/models", (StatusCode::OK, models)),
        ("/server_info", (StatusCode::OK, info)),
    ];
    Arc::new(Mutex::new(answers.into()))
}

/// Where replicas answer, by their numbers.
#[derive(Debug, Default)]
struct ByNumber(Mutex<BTreeMap<i64, SocketAddr>>);

impl ByNumber {
    fn put(&self, number: i64, address: SocketAddr) {
        self.0.lock().unwrap().insert(number, address);
    }
}

impl Ports for ByNumber {
    fn port(&self, _: &AgentAddress, job: &JobRow, port: u16) -> Arc<dyn Connector> {
        assert_eq!(port, 8000);
        let address = self.0.lock().unwrap()[&job.replica_num];
        Arc::new(TcpConnector { address })
    }
}

/// An engine, as far as it hears of workers.
#[derive(Debug, Default)]
struct Observed {
    idle: Mutex<BTreeSet<JobId>>,
    changed: Mutex<BTreeSet<JobId>>,
}

impl RequestObserver for Observed {
    fn idle(&self, job: JobId) {
        self.idle.lock().unwrap().insert(job);
    }
    fn awaited(&self, _: RunId) {}
    fn published(&self, _: RunId) {}
    fn worker_changed(&self, _: RunId, job: JobId) {
        self.changed.lock().unwrap().insert(job);
    }
}

/// A service whose replica 0 is a router, and those after it its workers.
struct Routed {
    server: Server,
    smg: SharedSmg,
    ports: Arc<ByNumber>,
    observed: Arc<Observed>,
    run: RunRow,
    jobs: Vec<JobRow>,
    _stop: tokio_util::sync::DropGuard,
}

impl Routed {
    async fn new(smg: Smg, workers: &[&Answers]) -> Self {
        let smg = Arc::new(Mutex::new(smg));
        let ports = Arc::new(ByNumber::default());
        ports.put(0, router(&smg).await);
        for (number, answers) in (1..).zip(workers) {
            ports.put(number, worker(answers).await);
        }
        let server = Server::new().await;
        server.state.services.reach_through(Arc::clone(&ports) as _);
        let groups = json!([
            {"name": "router", "replicas": 1, "commands": ["r"], "router": {"type": "smg"}},
            {"name": "worker", "replicas": workers.len(), "commands": ["w"]},
        ]);
        apply(
            &server,
            json!({"commands": [], "groups": groups, "model": "org/m"}),
        )
        .await
        .ok();
        let (run, jobs) = start(&server).await;
        let observed = Arc::new(Observed::default());
        let observer: Weak<dyn RequestObserver> = Arc::<Observed>::downgrade(&observed);
        server.state.services.report_to(observer);
        let stop = CancellationToken::new();
        server.state.services.follow(stop.clone());
        Self {
            server,
            smg,
            ports,
            observed,
            run,
            jobs,
            _stop: stop.drop_guard(),
        }
    }

    fn smg(&self) -> std::sync::MutexGuard<'_, Smg> {
        self.smg.lock().unwrap()
    }

    /// The id of a replica's job.
    fn job(&self, number: usize) -> JobId {
        self.jobs[number].id
    }

    /// A job like that of a replica, which nobody has written yet.
    fn another(&self, number: usize) -> JobRow {
        let mut job = self.jobs[number].clone();
        job.id = self.server.state.data.random.uuid().into();
        job.version = 0;
        job
    }

    fn has(&self, jobs: &[JobId]) -> bool {
        self.smg().has() == jobs.iter().map(JobId::to_string).collect()
    }

    fn standing(&self, job: JobId) -> Worker {
        self.server.state.services.worker(self.run.id, job)
    }

    async fn until_why(&self, job: JobId, text: &str) {
        self.until_told(job, text, |standing| matches!(standing, Worker::Missing(_)))
            .await;
    }

    /// What is something else than a worker holds nothing up.
    async fn until_given_up(&self, job: JobId, text: &str) {
        self.until_told(job, text, |standing| matches!(standing, Worker::Unknown(_)))
            .await;
    }

    async fn until_told(&self, job: JobId, text: &str, is_so: impl Fn(&Worker) -> bool) {
        let told = async || {
            let standing = self.standing(job);
            let (Worker::Missing(Some(why)) | Worker::Unknown(Some(why))) = &standing else {
                return false;
            };
            is_so(&standing) && why.contains(text)
        };
        until(&format!("{text} is told: {:?}", self.standing(job)), told).await;
        assert!(self.observed.changed.lock().unwrap().contains(&job));
    }

    /// Writes a job, as an engine does.
    async fn put(&self, job: &JobRow) {
        let commit = Commit::unchecked(vec![Put::Job(job.clone())], Vec::new());
        self.server.state.data.store().commit(commit).await.unwrap();
        self.server.state.services.unregistered(job.id, job.run_id);
    }
}

/// All replicas run, the router's gets requests.
async fn start(server: &Server) -> (RunRow, Vec<JobRow>) {
    let project = server.main_project().await;
    let run = server.state.data.database.run_by_name(project, "web").await;
    let mut run = run.unwrap().unwrap().run;
    let mut jobs = server.state.data.database.views().jobs(&[run.id]).await.unwrap();
    server.own_machine("process", false).await;
    let placement = server.state.data.store().placement(project).await.unwrap();
    let now = server.state.data.clock.now();
    for job in &mut jobs {
        job.advance(JobStatus::Provisioning, now).unwrap();
        job.advance(JobStatus::Running, now).unwrap();
        job.instance_id = Some(placement.instances.last().unwrap().id);
        job.job_provisioning_data = Some(Sealed::new(place(job.replica_num)));
        job.registered = job.job_spec.replica_group == "router";
    }
    run.follow_jobs(RunStatus::Running).unwrap();
    let mut puts: Vec<Put> = jobs.iter().cloned().map(Put::Job).collect();
    puts.push(Put::Run(run.clone()));
    let commit = Commit::unchecked(puts, Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    server.state.services.load().await.unwrap();
    let database = &server.state.data.database;
    let run = database.run_by_name(project, "web").await.unwrap().unwrap().run;
    let jobs = database.views().jobs(&[run.id]).await.unwrap();
    (run, jobs)
}

fn place(number: i64) -> JobProvisioningData {
    let kind =
        json!({"name": "small", "resources": {"cpus": 1, "memory_mib": 1024, "gpus": [], "spot": false}});
    let place = json!({"backend": "aws", "instance_type": kind, "instance_id": "i-1", "hostname": "1.2.3.4",
        "internal_ip": format!("10.0.0.{number}"), "region": "here", "price": 1.0, "username": "ubuntu", "dockerized": true});
    serde_json::from_value(place).unwrap()
}

#[tokio::test]
async fn running_replicas_are_its_workers_and_it_alone_gets_requests() {
    let prefill = sglang(json!({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998}));
    // An older SGLang.
    let decode = sglang(json!({"disaggregation_mode": "decode"}));
    let info = decode.lock().unwrap().remove("/server_info").unwrap();
    decode.lock().unwrap().insert("/get_server_info", info);
    let service = Routed::new(Smg::default(), &[&prefill, &decode]).await;
    let (first, second) = (service.job(1), service.job(2));
    until("the router has both", async || service.has(&[first, second])).await;
    let mut added = service.smg().called("add");
    added.sort_by_key(|worker| worker["url"].to_string());
    let worker = |job: JobId, number: u8, kind: &str| {
        json!({"url": format!("http://10.0.0.{number}:8000"), "worker_type": kind, "connection_mode": "http",
            "runtime_type": "sglang", "labels": {"dstack.ai/job-id": job.to_string()}})
    };
    let mut expected = [worker(first, 1, "prefill"), worker(second, 2, "decode")];
    expected[0]["bootstrap_port"] = json!(8998);
    assert_eq!(added, expected);
    until("that is told", async || service.standing(second) == Worker::Added).await;
    assert_eq!(service.smg().called("remove"), [] as [Value; 0]);

    let ask = async |path: &str| {
        get_path(
            &service.server,
            &format!("/proxy/services/main/web{path}"),
            Some(ADMIN),
        )
        .await
    };
    assert_eq!(ask("/v1/models").await.ok()["router"], "/v1/models");
    let refused = ask("/workers").await;
    assert_eq!(
        (refused.status, &refused.body["detail"]),
        (403, &json!("Path is not allowed for this service"))
    );
}

#[tokio::test]
async fn a_replica_that_is_replaced_leaves_the_router_before_it_stops() {
    let answers = sglang(json!({}));
    let keeps = Smg {
        keeps: true,
        ..Smg::default()
    };
    let service = Routed::new(keeps, &[&answers]).await;
    let old = service.job(1);
    until("the router has it", async || service.has(&[old])).await;
    until("that is known", async || {
        service.server.state.services.serves(old, None)
    })
    .await;

    let now = service.server.state.data.clock.now();
    let mut ends = service.jobs[1].clone();
    ends.terminate(JobTerminationReason::ScaledDown, None, now)
        .unwrap();
    service.put(&ends).await;
    until("the router is told", async || {
        !service.smg().called("remove").is_empty()
    })
    .await;
    // It has not done it yet.
    assert!(service.server.state.services.serves(old, None));
    assert!(!service.observed.idle.lock().unwrap().contains(&old));
    // Another one comes to the same address meanwhile.
    let mut new = service.another(1);
    new.submission_num = 1;
    service.put(&new).await;
    service
        .until_why(new.id, "another worker of the router has its address")
        .await;
    assert_eq!(service.smg().called("add").len(), 1);

    service.smg().keeps = false;
    until("the router has the other one alone", async || {
        service.has(&[new.id])
    })
    .await;
    assert!(!service.server.state.services.serves(old, None));
    assert!(service.observed.idle.lock().unwrap().contains(&old));
    until("that is told", async || service.standing(new.id) == Worker::Added).await;
}

#[tokio::test]
async fn a_router_that_forgets_is_told_again_and_what_others_added_stays() {
    let answers = sglang(json!({}));
    let foreign = |url: &str, labels: Value| json!({"id": url, "url": url, "labels": labels});
    let others = vec![
        foreign("https://api.example.com", Value::Null),
        foreign("http://10.0.0.2:8000", json!({"dstack.ai/job-id": "mine"})),
    ];
    let smg = Smg {
        workers: others.clone(),
        ..Smg::default()
    };
    let service = Routed::new(smg, &[&answers, &answers]).await;
    let (first, second) = (service.job(1), service.job(2));
    until("both are known to be there", async || {
        [first, second]
            .iter()
            .all(|job| service.standing(*job) == Worker::Added)
    })
    .await;
    // The second is one that somebody else has added.
    assert_eq!(service.smg().called("add").len(), 1);
    // Nothing tells that it has been started anew.
    service.smg().workers = others;
    until("the router has it again", async || {
        service.smg().called("add").len() == 2
    })
    .await;
    assert_eq!(service.smg().workers.len(), 3);
    assert_eq!(service.smg().called("remove"), [] as [Value; 0]);
}

#[tokio::test]
async fn a_worker_that_ended_unseen_is_removed() {
    let answers = sglang(json!({}));
    let gone = json!({"dstack.ai/job-id": "00000000-0000-0000-0000-000000000001"});
    let smg = Smg {
        workers: vec![json!({"id": "../a b", "url": "http://10.0.0.9:8000", "labels": gone})],
        ..Smg::default()
    };
    let service = Routed::new(smg, &[&answers]).await;
    until("the router has the other one alone", async || {
        service.has(&[service.job(1)])
    })
    .await;
    assert_eq!(service.smg().called("remove"), [json!("../a b")]);
}

#[tokio::test]
async fn a_conflict_is_no_failure_and_a_refusal_is_told() {
    let answers = sglang(json!({}));
    let conflict = json!({"error": "it is being added", "code": "WORKER_CREATE_IN_PROGRESS"});
    let smg = Smg {
        refuses: Some((StatusCode::CONFLICT, conflict)),
        ..Smg::default()
    };
    let service = Routed::new(smg, &[&answers]).await;
    until("it is added", async || {
        service.standing(service.job(1)) == Worker::Added
    })
    .await;

    let refuses = Smg {
        refuses: Some((
            StatusCode::BAD_REQUEST,
            json!({"error": "no room", "code": "FULL"}),
        )),
        ..Smg::default()
    };
    let service = Routed::new(refuses, &[&answers]).await;
    service.until_why(service.job(1), "no room").await;
    service.smg().refuses = None;
    until("it is added", async || {
        service.standing(service.job(1)) == Worker::Added
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_none_is_told_and_nothing_is_done() {
    let answers = sglang(json!({}));
    let garbage = Smg {
        instead: Some((StatusCode::OK, "<html>".to_owned())),
        ..Smg::default()
    };
    let service = Routed::new(garbage, &[&answers]).await;
    let job = service.job(1);
    service
        .until_why(job, "GET /workers is not answered as an SMG router does")
        .await;
    for (status, text, why) in [
        (
            StatusCode::NOT_FOUND,
            "nothing here".to_owned(),
            "404 Not Found: nothing here",
        ),
        (StatusCode::OK, " ".repeat(3 << 20), "more than 2097152 bytes"),
    ] {
        service.smg().instead = Some((status, text));
        service.server.state.services.unregistered(job, service.run.id);
        service.until_why(job, why).await;
    }
    assert_eq!(service.smg().called("add"), [] as [Value; 0]);
    service.smg().instead = None;
    service.server.state.services.unregistered(job, service.run.id);
    until("it is added", async || service.standing(job) == Worker::Added).await;
}

#[tokio::test]
async fn what_keeps_a_replica_from_being_a_worker_is_told() {
    let (starting, locked, other) = (
        sglang(json!({"status": "starting"})),
        sglang(json!({})),
        sglang(json!({})),
    );
    let refusal = (StatusCode::UNAUTHORIZED, Value::Null);
    locked.lock().unwrap().insert("/v1/models", refusal);
    let vllm = json!({"data": [{"owned_by": "vllm"}]});
    other.lock().unwrap().insert("/v1/models", (StatusCode::OK, vllm));
    let service = Routed::new(Smg::default(), &[&starting, &locked, &other]).await;
    service
        .until_why(service.job(1), "its status is \"starting\"")
        .await;
    service
        .until_why(service.job(2), "401 Unauthorized: it must not ask for an API key")
        .await;
    service
        .until_given_up(service.job(3), "it is vLLM over HTTP")
        .await;
    assert_eq!(service.smg().called("add"), [] as [Value; 0]);
    let ready = sglang(json!({})).lock().unwrap()["/server_info"].clone();
    starting.lock().unwrap().insert("/server_info", ready);
    until("it is added once it is ready", async || {
        service.has(&[service.job(1)])
    })
    .await;
}

#[tokio::test]
async fn a_second_router_gets_the_workers_as_well() {
    let answers = sglang(json!({}));
    let service = Routed::new(Smg::default(), &[&answers]).await;
    until("the first router has it", async || service.has(&[service.job(1)])).await;
    let second = SharedSmg::default();
    service.ports.put(7, router(&second).await);
    let mut job = service.another(0);
    job.replica_num = 7;
    job.registered = false;
    service.put(&job).await;
    until("the second has it", async || {
        second.lock().unwrap().has() == service.smg().has()
    })
    .await;
    assert_eq!(service.smg().called("add").len(), 1);
}

#[tokio::test]
async fn a_service_that_ends_leaves_its_router_alone() {
    let answers = sglang(json!({}));
    let service = Routed::new(Smg::default(), &[&answers]).await;
    let job = service.job(1);
    until("the router has it", async || {
        service.server.state.services.serves(job, None)
    })
    .await;
    let data = &service.server.state.data;
    let mut run = service.run.clone();
    run.terminate(
        dstack_model::runs::RunTerminationReason::StoppedByUser,
        data.clock.now(),
    )
    .unwrap();
    let commit = Commit::unchecked(vec![Put::Run(run)], Vec::new());
    data.store().commit(commit).await.unwrap();
    service.server.state.services.changed(service.run.id);
    until("nobody waits for it", async || {
        !service.server.state.services.serves(job, None)
    })
    .await;
    assert!(service.observed.idle.lock().unwrap().contains(&job));
    let smg = service.smg();
    assert_eq!(smg.called("remove"), Vec::<Value>::new());
    assert_eq!(smg.called("add").len(), 1, "only when the service began");
}
