//! Plays Daytona for tests.
//!
//! `api.json` is the vendor's description of 2026-08-20 (API and toolbox, Apache-2.0) as far as it is used, without its prose, and with what
//! the API answers beyond it: the organization of a key, free GPUs, newer types of GPUs. What it forbids is refused, and this cloud's own
//! answers are held to it. Prices are in no description.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)] // tests

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use dstack_backend_kit::{Emulator, Ledger};
use dstack_conformance::{Asked, Document, Exchange};
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long it takes from one stage of a sandbox's life to the next: an image, a start.
const PACE: Duration = Duration::from_secs(10);

/// Sandboxes of a page. The vendor's pages have more; with fewer, a test needs fewer for several.
const PAGE: usize = 2;

const ORGANIZATION: &str = "123e4567-e89b-12d3-a456-426614174000";

const MADE_AT: &str = "2026-10-01T12:00:00.000Z";

/// What a key may do that may do all that is needed.
pub const PERMISSIONS: &[&str] = &[
    "write:sandboxes",
    "delete:sandboxes",
    "read:limits",
    "write:registries",
    "delete:registries",
    "write:volumes",
    "read:volumes",
    "delete:volumes",
];

/// Read once, as tests make many clouds.
static DESCRIPTION: LazyLock<Document> = LazyLock::new(|| {
    let description: Value = serde_json::from_str(include_str!("../api.json")).unwrap();
    Document::new(&description).unwrap()
});

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Daytona(Arc<Shared>);

struct Shared {
    api_key: String,
    pace: Duration,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Cloud {
    permissions: Vec<&'static str>,
    sandboxes: Vec<Sandbox>,
    registries: Vec<Thing>,
    volumes: Vec<Thing>,
    sold_out: bool,
    lag: Duration,
    ids: u32,
}

#[derive(Debug)]
struct Sandbox {
    id: String,
    /// Body of the call that made it.
    asked: Value,
    made_at: Instant,
    listed_at: Instant,
    deleted_at: Option<Instant>,
    has_failed: bool,
    evicted: bool,
    /// Commands of the session, once there is one, with their exit codes.
    session: Option<Vec<(String, Option<i64>)>>,
    tokens: u32,
}

/// A login to an image registry, or a volume.
#[derive(Debug)]
struct Thing {
    id: String,
    name: String,
    url: String,
    username: String,
    made_at: Instant,
    listed_at: Instant,
    deleted_at: Option<Instant>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Sandbox {
    fn state(&self, pace: Duration) -> &'static str {
        let stage = self.made_at.elapsed().as_millis() / pace.as_millis().max(1);
        let image = text(&self.asked["buildInfo"]["dockerfileContent"]);
        match self.deleted_at {
            _ if self.evicted => "destroyed",
            Some(at) if at.elapsed() >= pace => "destroyed",
            Some(_) => "destroying",
            None if self.has_failed => "error",
            None if stage == 0 => "pending_build",
            None if image.contains("broken") => "build_failed",
            None if stage == 1 => "building_snapshot",
            None if stage == 2 => "starting",
            None => "started",
        }
    }

    fn to_json(&self, pace: Duration) -> Value {
        let state = self.state(pace);
        let mut found = json!({
            "id": self.id,
            "organizationId": ORGANIZATION,
            "name": self.asked["name"],
            "user": "root",
            "env": {},
            "labels": {},
            "public": false,
            "networkBlockAll": false,
            "target": self.asked.get("target").unwrap_or(&json!("us")),
            "cpu": self.asked["cpu"].as_i64().unwrap_or(1),
            "gpu": self.asked["gpu"].as_i64().unwrap_or(0),
            "spot": self.asked["spot"] == true,
            "memory": self.asked["memory"].as_i64().unwrap_or(1),
            "disk": self.asked["disk"].as_i64().unwrap_or(3),
            // The vendor's own client, which is newer than the description, wants it.
            "kvm": false,
            "state": state,
            "desiredState": if self.deleted_at.is_some() { "destroyed" } else { "started" },
            "toolboxProxyUrl": "https://proxy.app.daytona.io/toolbox",
            "createdAt": MADE_AT,
        });
        match state {
            "build_failed" => found["errorReason"] = json!("failed to resolve image"),
            "error" => found["errorReason"] = json!("the runner is gone"),
            _ => {}
        }
        if self.evicted {
            found["spotEvictedAt"] = json!(MADE_AT);
        }
        found
    }
}

impl Cloud {
    fn new_id(&mut self) -> String {
        self.ids += 1;
        format!("8c6b1f0a-3b5e-4b0c-9c8f-{:012x}", self.ids)
    }

    fn thing(&mut self, body: &Value) -> Thing {
        let now = Instant::now();
        Thing {
            id: self.new_id(),
            name: text(&body["name"]).to_owned(),
            url: text(&body["url"]).to_owned(),
            username: text(&body["username"]).to_owned(),
            made_at: now,
            listed_at: now + self.lag,
            deleted_at: None,
        }
    }

    /// By its id or name.
    fn sandbox(&mut self, id: &str, pace: Duration) -> Result<&mut Sandbox, Problem> {
        let is_it = |found: &&mut Sandbox| {
            let is_gone = found.state(pace) == "destroyed" && !found.evicted;
            let is_named = found.asked["name"] == id && !found.evicted;
            (found.id == id || is_named) && found.listed_at <= Instant::now() && !is_gone
        };
        let found = self.sandboxes.iter_mut().find(is_it);
        found.ok_or_else(|| problem(404, &format!("Sandbox with ID or name {id} not found")))
    }

    /// One that has started, for what works in it.
    fn started(&mut self, id: &str, pace: Duration) -> Result<&mut Sandbox, Problem> {
        let found = self.sandbox(id, pace)?;
        match found.state(pace) {
            "started" => Ok(found),
            state => Err(problem(400, &format!("Sandbox is {state}, and not started"))),
        }
    }
}

type Problem = (u16, Value);

/// Status and body; `Null`: no body.
type Answer = Result<(u16, Value), Problem>;

fn problem(status: u16, message: &str) -> Problem {
    let error = StatusCode::from_u16(status).unwrap().canonical_reason();
    (
        status,
        json!({"statusCode": status, "message": message, "error": error}),
    )
}

impl Daytona {
    /// A cloud whose account has this key, with all permissions that are needed.
    pub fn new(api_key: &str) -> Self {
        Self::with_pace(api_key, PACE)
    }

    /// As [`Daytona::new`], with sandboxes that take so long from one stage of their lives to the next.
    pub fn with_pace(api_key: &str, pace: Duration) -> Self {
        let cloud = Cloud {
            permissions: PERMISSIONS.to_vec(),
            ..Cloud::default()
        };
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            pace,
            ledger: Ledger::default(),
            state: Mutex::new(cloud),
        }))
    }

    /// What the key may do, from now on.
    pub fn permit(&self, permissions: &[&'static str]) {
        self.lock().permissions = permissions.to_vec();
    }

    /// The GPUs of spot sandboxes are used on demand.
    pub fn evict_all(&self) {
        let ids: Vec<String> = {
            let mut state = self.lock();
            let spot = state
                .sandboxes
                .iter_mut()
                .filter(|found| found.asked["spot"] == true);
            spot.map(|found| {
                found.evicted = true;
                found.id.clone()
            })
            .collect()
        };
        ids.iter().for_each(|id| self.0.ledger.removed(id));
    }

    /// The commands of all sandboxes end with this code.
    pub fn end_commands(&self, code: i64) {
        let mut state = self.lock();
        let commands = state.sandboxes.iter_mut();
        let commands = commands.flat_map(|found| found.session.iter_mut().flatten());
        commands.for_each(|(_, exit_code)| *exit_code = Some(code));
    }

    /// Bodies with which sandboxes were asked for.
    pub fn asked(&self) -> Vec<Value> {
        let state = self.lock();
        state.sandboxes.iter().map(|found| found.asked.clone()).collect()
    }

    /// Commands that were begun in the sandboxes.
    pub fn commands(&self) -> Vec<String> {
        let state = self.lock();
        let sessions = state.sandboxes.iter().filter_map(|found| found.session.as_ref());
        sessions.flatten().map(|(command, _)| command.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is destroyed costs nothing any more.
    fn settle(&self) {
        let mut state = self.lock();
        for found in &state.sandboxes {
            if found.state(self.0.pace) == "destroyed" {
                self.0.ledger.removed(&found.id);
            }
        }
        let is_gone = |thing: &Thing| thing.deleted_at.is_some_and(|at| at.elapsed() >= self.0.pace);
        for gone in state.volumes.iter().filter(|volume| is_gone(volume)) {
            self.0.ledger.removed(&gone.id);
        }
        state.volumes.retain(|volume| !is_gone(volume));
    }

    fn answer(&self, request: &Request<'_>, headers: &HeaderMap) -> Answer {
        let path: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        if path.last() == Some(&"gpu-pricing") {
            return Ok((200, pricing()));
        }
        let expected = format!("Bearer {}", self.0.api_key);
        let key = headers.get(AUTHORIZATION);
        let is_known = key.is_some_and(|key| key.as_bytes() == expected.as_bytes());
        if !is_known && request.path != "/api/shared-regions" {
            return Err(problem(401, "Invalid credentials"));
        }
        let asked = Asked {
            method: request.method,
            path: request.path,
            query: &request.query,
            body: request.body,
        };
        if let Err(errors) = DESCRIPTION.check_request(asked) {
            return Err(problem(400, &errors.join("; ")));
        }
        self.settle();
        let body: Value = serde_json::from_slice(request.body).unwrap_or_default();
        let ok = |body: Value| Ok((200, body));
        match (request.method, path.as_slice()) {
            ("GET", ["api", "shared-regions"]) => ok(regions()),
            ("GET", ["api", "api-keys", "current"]) => ok(self.key()),
            ("GET", ["api", "organizations", ORGANIZATION, "gpu-capacity"]) => ok(capacity()),
            ("GET", ["api", "organizations", ORGANIZATION, "usage"]) => ok(usage()),
            ("GET", ["api", "organizations", ORGANIZATION, "available-sandbox-classes"]) => ok(classes()),
            ("GET", ["api", "sandbox"]) => ok(self.sandboxes(request.cursor)),
            ("POST", ["api", "sandbox"]) => self.create_sandbox(&body),
            ("GET", ["api", "sandbox", id]) => ok(self.lock().sandbox(id, self.0.pace)?.to_json(self.0.pace)),
            ("DELETE", ["api", "sandbox", id]) => self.delete_sandbox(id),
            ("GET", ["api", "sandbox", id, "toolbox-proxy-url"]) => {
                self.lock().sandbox(id, self.0.pace)?;
                ok(json!({"url": "https://proxy.app.daytona.io/toolbox"}))
            }
            ("POST", ["api", "sandbox", id, "ssh-access"]) => self.ssh_access(id),
            ("GET", ["toolbox", id, "process", "session", _]) => self.session(id),
            ("POST", ["toolbox", id, "process", "session"]) => self.create_session(id),
            ("POST", ["toolbox", id, "process", "session", _, "exec"]) => self.run(id, &body),
            ("GET", ["api", "docker-registry"]) => ok(self.registries()),
            ("POST", ["api", "docker-registry"]) => Ok((201, self.create_registry(&body))),
            ("DELETE", ["api", "docker-registry", id]) => self.delete_registry(id),
            ("GET", ["api", "volumes"]) => self.volumes(),
            ("POST", ["api", "volumes"]) => self.create_volume(&body),
            ("GET", ["api", "volumes", "by-name", name]) => self.volume(|volume| volume.name == *name),
            ("GET", ["api", "volumes", id]) => self.volume(|volume| volume.id == *id),
            ("DELETE", ["api", "volumes", id]) => self.delete_volume(id),
            _ => Err(problem(404, "Cannot find it")),
        }
    }

    fn key(&self) -> Value {
        json!({"name": "dstack", "value": "dtn_********************def", "createdAt": MADE_AT,
            "permissions": self.lock().permissions, "lastUsedAt": MADE_AT, "expiresAt": null, "userId": "auth0|1",
            "organizationId": ORGANIZATION})
    }

    fn sandboxes(&self, cursor: Option<usize>) -> Value {
        let state = self.lock();
        let listed = state.sandboxes.iter();
        let listed: Vec<&Sandbox> = listed
            .filter(|found| found.listed_at <= Instant::now() && found.state(self.0.pace) != "destroyed")
            .collect();
        let from = cursor.unwrap_or(0);
        let page: Vec<Value> = listed
            .iter()
            .skip(from)
            .take(PAGE)
            .map(|found| found.to_json(self.0.pace))
            .collect();
        let next = from + page.len();
        json!({"items": page, "nextCursor": (next < listed.len()).then(|| next.to_string())})
    }

    fn create_sandbox(&self, body: &Value) -> Answer {
        let mut state = self.lock();
        let name = text(&body["name"]).to_owned();
        if !name.is_empty() && state.sandbox(&name, self.0.pace).is_ok() {
            return Err(problem(409, &format!("Sandbox with name {name} already exists")));
        }
        let gpus = body["gpu"].as_i64().unwrap_or_default();
        if gpus == 0 && body["spot"] == true {
            return Err(problem(400, "Spot sandboxes need GPUs"));
        }
        if state.sold_out {
            return Err(problem(403, "Total CPU limit exceeded. Maximum allowed: 100."));
        }
        let volumes = body["volumes"].as_array().cloned().unwrap_or_default();
        let is_ready = |one: &Value| {
            let volume = state.volumes.iter().find(|volume| one["volumeId"] == volume.id);
            volume.is_some_and(|volume| self.state_of(volume) == "ready")
        };
        if !volumes.iter().all(is_ready) {
            return Err(problem(400, "Volume is not ready"));
        }
        let id = state.new_id();
        self.0.ledger.made("sandbox", id.clone(), name);
        let now = Instant::now();
        let found = Sandbox {
            id,
            asked: body.clone(),
            made_at: now,
            listed_at: now + state.lag,
            deleted_at: None,
            has_failed: false,
            evicted: false,
            session: None,
            tokens: 0,
        };
        let answer = found.to_json(self.0.pace);
        state.sandboxes.push(found);
        Ok((200, answer))
    }

    fn delete_sandbox(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let found = state.sandbox(id, self.0.pace)?;
        found.deleted_at.get_or_insert_with(Instant::now);
        Ok((200, found.to_json(self.0.pace)))
    }

    fn ssh_access(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let found = state.started(id, self.0.pace)?;
        found.tokens += 1;
        let token = format!("abc123def456ghi789-{}", found.tokens);
        let answer = json!({"id": "123e4567-e89b-12d3-a456-426614174001", "sandboxId": found.id, "token": token,
            "expiresAt": "2036-09-28T12:00:00.000Z", "createdAt": MADE_AT, "updatedAt": MADE_AT,
            "sshCommand": format!("ssh -p 22 {token}@ssh.app.daytona.io")});
        Ok((200, answer))
    }

    fn session(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let session = state.started(id, self.0.pace)?.session.as_ref();
        let commands = session.ok_or_else(|| problem(404, "session not found"))?;
        let command = |(at, (command, code)): (usize, &(String, Option<i64>))| {
            let mut answer = json!({"id": format!("cmd_{at}"), "command": command});
            if let Some(code) = code {
                answer["exitCode"] = json!(code);
            }
            answer
        };
        let commands: Vec<Value> = commands.iter().enumerate().map(command).collect();
        Ok((200, json!({"sessionId": "dstack-runner", "commands": commands})))
    }

    fn create_session(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let found = state.started(id, self.0.pace)?;
        match found.session {
            Some(_) => Err(problem(409, "session already exists")),
            None => {
                found.session = Some(Vec::new());
                Ok((201, Value::Null))
            }
        }
    }

    fn run(&self, id: &str, body: &Value) -> Answer {
        let mut state = self.lock();
        let session = state.started(id, self.0.pace)?.session.as_mut();
        let commands = session.ok_or_else(|| problem(404, "session not found"))?;
        commands.push((text(&body["command"]).to_owned(), None));
        Ok((202, json!({"cmdId": format!("cmd_{}", commands.len() - 1)})))
    }

    fn registries(&self) -> Value {
        let state = self.lock();
        let listed = state.registries.iter();
        let listed = listed.filter(|registry| registry.listed_at <= Instant::now());
        json!(listed.map(registry_json).collect::<Vec<_>>())
    }

    fn create_registry(&self, body: &Value) -> Value {
        let mut state = self.lock();
        let thing = state.thing(body);
        self.0
            .ledger
            .made("registry", thing.id.clone(), thing.name.clone());
        let answer = registry_json(&thing);
        state.registries.push(thing);
        answer
    }

    fn delete_registry(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let is_it = |registry: &Thing| registry.id == id && registry.listed_at <= Instant::now();
        let at = state.registries.iter().position(is_it);
        state
            .registries
            .remove(at.ok_or_else(|| problem(404, "Registry not found"))?);
        self.0.ledger.removed(id);
        Ok((204, Value::Null))
    }

    fn state_of(&self, volume: &Thing) -> &'static str {
        match volume.made_at.elapsed() >= self.0.pace {
            _ if volume.deleted_at.is_some() => "deleting",
            true => "ready",
            false => "pending_create",
        }
    }

    fn volume_json(&self, volume: &Thing) -> Value {
        json!({"id": volume.id, "name": volume.name, "organizationId": ORGANIZATION, "state": self.state_of(volume),
            "createdAt": MADE_AT, "updatedAt": MADE_AT, "lastUsedAt": null, "errorReason": null})
    }

    fn volumes(&self) -> Answer {
        let state = self.lock();
        if !state.permissions.contains(&"read:volumes") {
            return Err(problem(403, "Forbidden resource"));
        }
        let listed = state.volumes.iter();
        let listed = listed.filter(|volume| volume.listed_at <= Instant::now());
        let volumes: Vec<Value> = listed.map(|volume| self.volume_json(volume)).collect();
        Ok((200, json!(volumes)))
    }

    fn volume(&self, is_it: impl Fn(&Thing) -> bool) -> Answer {
        let state = self.lock();
        let mut listed = state.volumes.iter();
        let found = listed.find(|volume| is_it(volume) && volume.listed_at <= Instant::now());
        let volume = found.ok_or_else(|| problem(404, "Volume not found"))?;
        Ok((200, self.volume_json(volume)))
    }

    fn create_volume(&self, body: &Value) -> Answer {
        let mut state = self.lock();
        if state.sold_out {
            return Err(problem(403, "Volume quota exceeded. Maximum allowed: 100."));
        }
        let thing = state.thing(body);
        self.0.ledger.made("volume", thing.id.clone(), thing.name.clone());
        let answer = self.volume_json(&thing);
        state.volumes.push(thing);
        Ok((200, answer))
    }

    fn delete_volume(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let uses = |found: &Sandbox| {
            let mut volumes = found.asked["volumes"].as_array().into_iter().flatten();
            found.state(self.0.pace) != "destroyed" && volumes.any(|volume| volume["volumeId"] == id)
        };
        if state.sandboxes.iter().any(uses) {
            return Err(problem(409, "Volume is in use by one or more sandboxes"));
        }
        let mut listed = state.volumes.iter_mut();
        let found = listed.find(|volume| volume.id == id && volume.listed_at <= Instant::now());
        let volume = found.ok_or_else(|| problem(404, "Volume not found"))?;
        match volume.deleted_at {
            Some(_) => Err(problem(409, "Volume is being deleted")),
            None => {
                volume.deleted_at = Some(Instant::now());
                Ok((200, Value::Null))
            }
        }
    }
}

fn registry_json(registry: &Thing) -> Value {
    json!({"id": registry.id, "name": registry.name, "url": registry.url, "username": registry.username, "project": "",
        "registryType": "organization", "createdAt": MADE_AT, "updatedAt": MADE_AT})
}

fn pricing() -> Value {
    let gpu = |kind: &str, on_demand: f64| json!({"type": kind, "onDemandPricePerHour": on_demand, "spotPricePerHour": on_demand * 0.6});
    json!({"gpus": [gpu("H100", 3.95), gpu("RTX-4090", 0.69), gpu("B200", 6.25)],
        "resources": {
            "onDemand": {"vcpuPerHour": 0.0504, "memoryGiBPerHour": 0.0162, "diskGiBPerHour": 0.000_108},
            "spot": {"vcpuPerHour": 0.0252, "memoryGiBPerHour": 0.0081, "diskGiBPerHour": 0.000_054}}})
}

fn regions() -> Value {
    let region = |id: &str| json!({"id": id, "name": id, "regionType": "shared", "createdAt": MADE_AT, "updatedAt": MADE_AT});
    json!([region("us"), region("eu")])
}

fn capacity() -> Value {
    json!({"observedAt": MADE_AT, "capacity": [
        {"gpuType": "H100", "availableOnDemand": 6, "availableSpot": 0},
        {"gpuType": "RTX-4090", "availableOnDemand": 12, "availableSpot": 4}]})
}

/// 100 CPUs in `us` and none in `eu`, and three GPUs more.
fn usage() -> Value {
    let of_cpus = |region: &str, cpus: i64| {
        json!({"regionId": region, "sandboxClass": "container", "totalCpuQuota": cpus, "currentCpuUsage": 0,
            "totalMemoryQuota": 200, "currentMemoryUsage": 8, "totalDiskQuota": 300, "currentDiskUsage": 20,
            "totalGpuQuota": 0, "currentGpuUsage": 0, "maxCpuPerSandbox": 4, "maxMemoryPerSandbox": 8,
            "maxDiskPerSandbox": 10, "maxDiskPerNonEphemeralSandbox": 10, "maxCpuPerGpu": null, "maxMemoryPerGpu": null,
            "maxDiskPerGpu": null})
    };
    let of_gpus = json!({"regionId": "earth", "sandboxClass": "container", "totalCpuQuota": 0, "currentCpuUsage": 0,
        "totalMemoryQuota": 0, "currentMemoryUsage": 0, "totalDiskQuota": 0, "currentDiskUsage": 0, "totalGpuQuota": 4,
        "currentGpuUsage": 1, "maxCpuPerSandbox": null, "maxMemoryPerSandbox": null, "maxDiskPerSandbox": null,
        "maxDiskPerNonEphemeralSandbox": null, "maxCpuPerGpu": 16, "maxMemoryPerGpu": 192, "maxDiskPerGpu": 512,
        "allowedGpuTypes": ["H100", "RTX-4090"]});
    json!({"regionUsage": [of_cpus("us", 100), of_cpus("eu", 0), of_gpus], "totalSnapshotQuota": 100,
        "currentSnapshotUsage": 0, "totalVolumeQuota": 100, "currentVolumeUsage": 1})
}

fn classes() -> Value {
    json!([
        {"regionId": "us", "sandboxClass": "container", "gpuAvailable": false},
        {"regionId": "eu", "sandboxClass": "container", "gpuAvailable": false},
        {"regionId": "earth", "sandboxClass": "container", "gpuAvailable": true,
            "allowedGpuTypes": ["H100", "H200", "RTX-4090"]},
    ])
}

/// A request of the account.
struct Request<'a> {
    method: &'a str,
    path: &'a str,
    /// Names of the parameters in the query.
    query: Vec<String>,
    cursor: Option<usize>,
    body: &'a [u8],
}

async fn serve(
    State(cloud): State<Daytona>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let pairs = || url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let request = Request {
        method: method.as_str(),
        path: uri.path(),
        query: pairs().map(|(name, _)| name.into_owned()).collect(),
        cursor: pairs().find_map(|(name, value)| value.parse().ok().filter(|_| name == "cursor")),
        body: &body,
    };
    let (status, answer) = match cloud.answer(&request, &headers) {
        Ok(answer) => answer,
        Err(problem) => problem,
    };
    let answer = match answer {
        Value::Null => Vec::new(),
        answer => answer.to_string().into_bytes(),
    };
    let exchange = Exchange {
        method: request.method,
        path: request.path,
        status,
        body: &answer,
    };
    if let Err(wrong) = DESCRIPTION.check(exchange) {
        panic!("the emulator answers what the vendor's description does not have: {wrong}");
    }
    let status = StatusCode::from_u16(status).unwrap();
    (status, [(CONTENT_TYPE, "application/json")], answer).into_response()
}

impl Emulator for Daytona {
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
        for found in &mut self.lock().sandboxes {
            found.has_failed = true;
        }
    }
}
