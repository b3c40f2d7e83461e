//! Plays Google Cloud by its API descriptions, for tests: Compute Engine v1, Cloud TPU v2, the token endpoint and the metadata server.
//!
//! `description` refuses what the descriptions forbid, `auth` gives tokens, `lists` filters and pages, `instances` and the others are the
//! resources.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

mod auth;
mod balancers;
mod description;
mod disks;
mod instances;
mod lists;
mod networks;
mod policies;
mod tpu;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bytes::Bytes;
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

use description::Called;
use instances::Machine;
pub use policies::Reservation;

/// The private key of the service account.
pub const KEY: &str = include_str!("../key.pem");

/// The id of [`KEY`].
pub const KEY_ID: &str = "0123456789abcdef0123456789abcdef01234567";

/// The service account.
pub const EMAIL: &str = "dstack@a-project.iam.gserviceaccount.com";

/// The project, with the network `default`.
pub const PROJECT: &str = "a-project";

/// A project that shares its networks.
pub const HOST_PROJECT: &str = "host-project";

/// The secret of a client, and the token of a login with it.
pub const CLIENT_SECRET: &str = "client-canary-0f1e2d3c";
/// See [`CLIENT_SECRET`].
pub const REFRESH_TOKEN: &str = "1//refresh-canary-0f1e2d3c";

/// What a workload identity pool takes tokens of its provider for.
pub const AUDIENCE: &str =
    "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/a-pool/providers/a-provider";

/// Such a token.
pub const SUBJECT_TOKEN: &str = "subject-canary-0f1e2d3c";

/// Where the provider tells it to those who know [`CLIENT_SECRET`].
pub const PROVIDER_URL: &str = "http://provider.example/issue?for=google";

/// A region, and another one.
pub const HOME: &str = "us-central1";
/// See [`HOME`].
pub const OTHER: &str = "europe-west4";

/// Regions with their zones.
const REGIONS: &[(&str, &[&str])] = &[
    (
        HOME,
        &["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"],
    ),
    (OTHER, &["europe-west4-a", "europe-west4-b", "europe-west4-c"]),
];

/// How long a token is good.
const LIFETIME: Duration = Duration::from_secs(3600);

/// Pages of this emulator are short.
const PAGE: usize = 2;

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until it shows that there is no room.
    pub refuses: Duration,
    /// Until a machine runs.
    pub starts: Duration,
    /// Until something that is deleted is gone.
    pub ends: Duration,
    /// Until anything else is done.
    pub others: Duration,
}

const USUAL: Times = Times {
    refuses: Duration::from_secs(6),
    starts: Duration::from_secs(22),
    ends: Duration::from_secs(25),
    others: Duration::from_secs(4),
};

/// The vendor's cloud, with one project.
#[derive(Debug, Clone)]
pub struct Gcp(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    times: Times,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug, Default)]
struct Cloud {
    tokens: HashMap<String, Instant>,
    /// Requests without a token are those of the account.
    is_open: bool,
    has_metadata: bool,
    machines: Vec<Machine>,
    disks: Vec<disks::Disk>,
    policies: Vec<policies::Policy>,
    /// What load balancers consist of.
    pieces: Vec<balancers::Piece>,
    failing_pieces: HashMap<&'static str, (u16, &'static str)>,
    changes_of_groups: usize,
    /// Permissions that an account needs for what was asked so far.
    needed: BTreeSet<String>,
    reservations: Vec<Reservation>,
    nodes: Vec<tpu::Node>,
    operations: Vec<Operation>,
    /// Operations by the ids of their requests.
    requests: HashMap<String, String>,
    firewalls: Vec<Value>,
    networks: Vec<networks::Network>,
    /// Regions that have a router with a NAT.
    with_nat: BTreeSet<String>,
    quotas: BTreeMap<(String, String), (f64, f64)>,
    without_quotas: BTreeSet<String>,
    is_hasty: bool,
    denied: BTreeSet<String>,
    disabled: BTreeSet<&'static str>,
    unreachable: BTreeSet<String>,
    /// Zones without room, and types that zones do not have.
    full: BTreeSet<String>,
    lacking: BTreeSet<(String, String)>,
    /// What operations for machines of a type end with: status, code.
    failing: HashMap<String, (u16, &'static str)>,
    sold_out: bool,
    lag: Duration,
    made: usize,
    /// Most requests in a minute, and when the last ones came.
    limit: Option<usize>,
    came: VecDeque<Instant>,
}

#[derive(Debug, Clone)]
struct Operation {
    name: String,
    /// `zones/us-central1-a`, `regions/us-central1`, `global`.
    scope: String,
    kind: &'static str,
    target: String,
    done_at: Instant,
    error: Option<Refusal>,
}

/// Status, reason or code, and message.
#[derive(Debug, Clone)]
struct Refusal {
    status: u16,
    reason: &'static str,
    message: String,
}

type Answer = Result<Value, Refusal>;

fn refuse(status: u16, reason: &'static str, message: impl Into<String>) -> Refusal {
    Refusal {
        status,
        reason,
        message: message.into(),
    }
}

fn missing(what: &str) -> Refusal {
    refuse(404, "notFound", format!("The resource '{what}' was not found"))
}

fn invalid(message: impl Into<String>) -> Refusal {
    refuse(400, "invalid", message)
}

/// A request, as far as methods need it.
struct Ask {
    called: Called,
    query: BTreeMap<String, String>,
    body: Value,
}

impl Ask {
    /// A parameter of the path: the project is the first.
    fn at(&self, index: usize) -> &str {
        &self.called.path[index]
    }
}

impl Default for Gcp {
    fn default() -> Self {
        Self::with_times(USUAL)
    }
}

impl Gcp {
    /// A cloud with another pace.
    pub fn with_times(times: Times) -> Self {
        let cloud = Cloud {
            networks: networks::usual(),
            ..Cloud::default()
        };
        Self(Arc::new(Shared {
            times,
            ledger: Ledger::default(),
            state: Mutex::new(cloud),
        }))
    }

    /// Requests without a token are those of the account.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// Whoever asks is on a machine of Google.
    pub fn has_metadata(&self) {
        self.lock().has_metadata = true;
    }

    /// All tokens are over.
    pub fn revoke(&self) {
        self.lock().tokens.clear();
    }

    /// How many tokens were asked for, and are not revoked.
    pub fn tokens(&self) -> usize {
        self.lock().tokens.len()
    }

    /// The account lacks a permission.
    pub fn deny(&self, permission: &str) {
        self.lock().denied.insert(permission.to_owned());
    }

    /// Permissions that an account needs for what was asked so far.
    pub fn needed(&self) -> BTreeSet<String> {
        self.lock().needed.clone()
    }

    /// An API (`compute`, `tpu`) is not enabled.
    pub fn disable(&self, api: &'static str) {
        self.lock().disabled.insert(api);
    }

    /// Lists of all zones say that they do not reach this one; `None`: they reach all.
    pub fn unreachable(&self, zone: Option<&str>) {
        self.lock().unreachable = zone.map(str::to_owned).into_iter().collect();
    }

    /// The project may make so many requests in a minute.
    pub fn limit(&self, requests: usize) {
        self.lock().limit = Some(requests);
    }

    /// A zone has no room.
    pub fn fill(&self, zone: &str) {
        self.lock().full.insert(zone.to_owned());
    }

    /// A zone does not have a type of machines.
    pub fn lack(&self, zone: &str, machine_type: &str) {
        self.lock()
            .lacking
            .insert((zone.to_owned(), machine_type.to_owned()));
    }

    /// Making machines of a type fails, with this status and code.
    pub fn fail(&self, machine_type: &str, status: u16, code: &'static str) {
        self.lock()
            .failing
            .insert(machine_type.to_owned(), (status, code));
    }

    /// What of a quota of a region is allowed, and used.
    pub fn set_quota(&self, region: &str, metric: &str, limit: f64, usage: f64) {
        let key = (region.to_owned(), metric.to_owned());
        self.lock().quotas.insert(key, (limit, usage));
    }

    /// What of the quotas of a region is used cannot be read now.
    pub fn hide_quotas(&self, region: &str) {
        self.lock().without_quotas.insert(region.to_owned());
    }

    /// Cloud TPU refuses at once, and not when its operation is over.
    pub fn refuse_at_once(&self) {
        self.lock().is_hasty = true;
    }

    /// There is a router with a NAT.
    pub fn add_nat(&self, region: &str) {
        self.lock().with_nat.insert(region.to_owned());
    }

    /// Rules of firewalls that were made.
    pub fn firewalls(&self) -> Vec<Value> {
        self.lock().firewalls.clone()
    }

    /// What was asked for with all machines that were ever made, the last one last.
    pub fn asked(&self) -> Vec<Value> {
        self.lock()
            .machines
            .iter()
            .filter(|machine| !machine.is_doomed)
            .map(|machine| machine.asked.clone())
            .collect()
    }

    /// Google takes all spot machines back.
    pub fn preempt(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        for machine in &mut state.machines {
            if machine.asked["scheduling"]["provisioningModel"] == "SPOT" {
                machine.stopped_at.get_or_insert(now);
            }
        }
        for node in &mut state.nodes {
            node.stopped_at.get_or_insert(now);
        }
    }

    /// What is there now is not in the books: tests look at what is made later.
    pub fn write_off(&self) {
        for entry in self.0.ledger.alive() {
            self.0.ledger.removed(&entry.id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is gone costs nothing any more.
    fn settle(&self) {
        let mut state = self.lock();
        self.settle_disks(&mut state);
        self.settle_policies(&mut state);
        self.settle_nodes(&mut state);
        self.settle_pieces(&mut state);
        for machine in &mut state.machines {
            // Its name may be used again.
            if machine.is_gone() && !machine.is_settled {
                machine.is_settled = true;
                self.0.ledger.removed(&machine.id());
            }
        }
    }

    /// Something begins, and is done or has failed some time later.
    fn begin(
        &self,
        state: &mut Cloud,
        ask: &Ask,
        scope: &str,
        target: String,
        takes: Duration,
        error: Option<Refusal>,
    ) -> Value {
        state.made += 1;
        let operation = Operation {
            name: format!("operation-{}", state.made),
            scope: scope.to_owned(),
            kind: ask.called.name.split_once('.').unwrap().1,
            target,
            done_at: Instant::now() + takes,
            error,
        };
        if let Some(id) = ask.query.get("requestId") {
            state.requests.insert(id.clone(), operation.name.clone());
        }
        let told = operation.to_json();
        state.operations.push(operation);
        told
    }

    fn answer(&self, ask: &Ask) -> Answer {
        let mut state = self.lock();
        if let Some(limit) = state.limit {
            let minute = Duration::from_secs(60);
            state.came.retain(|at| at.elapsed() < minute);
            if state.came.len() >= limit {
                return Err(refuse(403, "rateLimitExceeded", "Rate Limit Exceeded"));
            }
            state.came.push_back(Instant::now());
        }
        let needed = permission(ask);
        state.needed.insert(needed.clone());
        if let Some(permission) = state.denied.get(&needed) {
            let message = format!("Required '{permission}' permission for 'projects/{PROJECT}'");
            return Err(refuse(403, "forbidden", message));
        }
        let api = match ask.called.api {
            "tpu" => "Cloud TPU API",
            _ => "Compute Engine API",
        };
        if state.disabled.contains(ask.called.api) {
            let message = format!(
                "{api} has not been used in project 1 before or it is disabled. Enable it by visiting \
                 https://console.developers.google.com/apis/api then retry."
            );
            return Err(refuse(403, "accessNotConfigured", message));
        }
        let has_project = ask.at(0) == PROJECT || ask.at(0) == HOST_PROJECT;
        if !has_project {
            return Err(missing(&format!("projects/{}", ask.at(0))));
        }
        if let Some(id) = ask.query.get("requestId") {
            if id.len() != 36 || id.chars().all(|c| c == '0' || c == '-') {
                return Err(invalid("Invalid value for field 'requestId'"));
            }
            if let Some(name) = state.requests.get(id) {
                let found = state.operations.iter().find(|one| one.name == *name);
                return Ok(found.unwrap().to_json());
            }
        }
        match ask.called.name {
            "projects.get" => Ok(json!({"kind": "compute#project", "name": ask.at(0), "id": "1"})),
            "zoneOperations.get" | "zoneOperations.wait" => operation(&state, ask, "zones"),
            "regionOperations.get" | "regionOperations.wait" => operation(&state, ask, "regions"),
            "globalOperations.get" | "globalOperations.wait" => {
                let found = state.operations.iter().find(|one| one.name == ask.at(1));
                found.map(Operation::to_json).ok_or_else(|| missing(ask.at(1)))
            }
            name => match name.split_once('.').unwrap().0 {
                "instances" => self.instances(&mut state, ask),
                "nodes" | "operations" => self.nodes(&mut state, ask),
                "disks" => self.disks(&mut state, ask),
                "resourcePolicies" => self.policies(&mut state, ask),
                "reservations" => Self::reservations(&state, ask),
                "regions" | "subnetworks" | "routers" | "firewalls" => self.networks(&mut state, ask),
                _ => self
                    .balancers(&mut state, ask)
                    .unwrap_or_else(|| Err(missing(name))),
            },
        }
    }
}

/// The permission that a method needs, by the names that both have.
fn permission(ask: &Ask) -> String {
    let (kind, verb) = ask.called.name.split_once('.').unwrap();
    let verb = match verb {
        "insert" => "create",
        "aggregatedList" | "listUsable" | "listInstances" => "list",
        "patch" | "addInstances" | "removeInstances" => "update",
        other => other,
    };
    format!("{}.{kind}.{verb}", ask.called.api)
}

fn operation(state: &Cloud, ask: &Ask, kind: &str) -> Answer {
    let scope = format!("{kind}/{}", ask.at(1));
    let mut all = state.operations.iter();
    let found = all.find(|one| one.name == ask.at(2) && one.scope == scope);
    found.map(Operation::to_json).ok_or_else(|| missing(ask.at(2)))
}

impl Operation {
    /// As Cloud TPU tells of it, with a code of gRPC.
    fn to_tpu_json(&self) -> Value {
        let is_done = self.done_at <= Instant::now();
        let name = format!("projects/{PROJECT}/{}/operations/{}", self.scope, self.name);
        let kind = "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata";
        let target = format!("projects/{PROJECT}/{}", self.target);
        let mut told = json!({"name": name, "metadata": {"@type": kind, "target": target, "verb": self.kind, "apiVersion": "v2"}});
        if is_done {
            told["done"] = true.into();
            match &self.error {
                Some(error) => {
                    let code = if error.status == 429 { 8 } else { 14 };
                    told["error"] = json!({"code": code, "message": error.message});
                }
                None => {
                    told["response"] =
                        json!({"@type": "type.googleapis.com/google.cloud.tpu.v2.Node", "name": target});
                }
            }
        }
        told
    }

    fn to_json(&self) -> Value {
        let is_done = self.done_at <= Instant::now();
        let link = |path: &str| format!("https://www.googleapis.com/compute/v1/projects/{PROJECT}/{path}");
        let mut told = json!({
            "kind": "compute#operation", "id": "1", "name": self.name, "operationType": self.kind,
            "status": if is_done { "DONE" } else { "RUNNING" }, "progress": if is_done { 100 } else { 0 },
            "targetLink": link(&self.target), "selfLink": link(&format!("{}/operations/{}", self.scope, self.name)),
            "insertTime": "2026-10-01T12:00:00.000-07:00",
        });
        match self.scope.split_once('/') {
            Some(("zones", _)) => told["zone"] = link(&self.scope).into(),
            Some((_, _)) => told["region"] = link(&self.scope).into(),
            None => {}
        }
        if let Some(error) = self.error.as_ref().filter(|_| is_done) {
            told["error"] = json!({"errors": [{"code": error.reason, "message": error.message}]});
            told["httpErrorStatusCode"] = error.status.into();
            told["httpErrorMessage"] = "ERROR".into();
        }
        told
    }
}

/// Regions and zones that there are.
fn is_zone(name: &str) -> bool {
    REGIONS.iter().any(|(_, zones)| zones.contains(&name))
}

fn refused(refusal: &Refusal) -> Response {
    let Refusal {
        status,
        reason,
        message,
    } = refusal;
    let error = json!({"message": message, "domain": "global", "reason": reason});
    // Of Cloud TPU, whose reasons are codes of gRPC.
    let code = match status {
        _ if reason.chars().all(|c| c.is_ascii_uppercase() || c == '_') => reason,
        400 => "INVALID_ARGUMENT",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        _ => "UNKNOWN",
    };
    let body = json!({"error": {"code": status, "message": message, "status": code, "errors": [error]}});
    (StatusCode::from_u16(*status).unwrap(), Json(body)).into_response()
}

async fn serve(
    State(cloud): State<Gcp>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let pairs = |text: &[u8]| -> BTreeMap<String, String> {
        url::form_urlencoded::parse(text).into_owned().collect()
    };
    match (method.as_str(), uri.path()) {
        ("POST", "/token") => {
            let (status, told) = cloud.exchange(&pairs(&body));
            return (status, Json(told)).into_response();
        }
        ("POST", "/v1/token") => {
            let (status, told) = cloud.exchange_foreign(&pairs(&body));
            return (status, Json(told)).into_response();
        }
        ("POST", path) if path.ends_with(":generateAccessToken") => {
            let email = path.trim_start_matches("/v1/projects/-/serviceAccounts/");
            let email = email.trim_end_matches(":generateAccessToken");
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, told) = cloud.impersonate(email, &headers, &body);
            return (status, Json(told)).into_response();
        }
        ("GET", "/issue") => {
            let is_known = headers
                .get("x-client-secret")
                .is_some_and(|value| value == CLIENT_SECRET);
            return match is_known && uri.query() == Some("for=google") {
                true => Json(json!({"value": SUBJECT_TOKEN})).into_response(),
                false => (StatusCode::FORBIDDEN, CLIENT_SECRET).into_response(),
            };
        }
        ("GET", "/computeMetadata/v1/instance/service-accounts/default/token") => {
            let is_right = headers
                .get("metadata-flavor")
                .is_some_and(|flavor| flavor == "Google");
            return match is_right && cloud.lock().has_metadata {
                true => ([("metadata-flavor", "Google")], Json(cloud.issue())).into_response(),
                false => StatusCode::NOT_FOUND.into_response(),
            };
        }
        _ => {}
    }
    if !cloud.is_known(&headers) {
        let message = "Request had invalid authentication credentials. Expected OAuth 2 access token.";
        return refused(&refuse(401, "authError", message));
    }
    let Some(called) = description::find(method.as_str(), uri.path()) else {
        return (
            StatusCode::NOT_FOUND,
            "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>",
        )
            .into_response();
    };
    let query = pairs(uri.query().unwrap_or_default().as_bytes());
    let body = match body.is_empty() {
        true => None,
        false => match serde_json::from_slice::<Value>(&body) {
            Ok(body) => Some(body),
            Err(error) => return refused(&refuse(400, "parseError", error.to_string())),
        },
    };
    if let Some(problem) = description::problem(&called, &query, body.as_ref()) {
        return refused(&refuse(400, "badRequest", problem));
    }
    let ask = Ask {
        called,
        query,
        body: body.unwrap_or_default(),
    };
    cloud.settle();
    let answer = cloud.answer(&ask);
    cloud.settle();
    match answer {
        Ok(told) => Json(told).into_response(),
        Err(refusal) => refused(&refusal),
    }
}

impl Emulator for Gcp {
    fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.clone())
    }

    fn ledger(&self) -> &Ledger {
        self.settle();
        &self.0.ledger
    }

    fn sell_out(&self, sold_out: bool) {
        self.lock().sold_out = sold_out;
    }

    fn lag(&self, lag: Duration) {
        self.lock().lag = lag;
    }

    fn lose_all(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        for machine in &mut state.machines {
            machine.gone_at.get_or_insert(now);
        }
        Self::lose_disks(&mut state);
        Self::lose_nodes(&mut state);
        Self::lose_pieces(&mut state);
        drop(state);
        self.settle();
    }
}
