//! Plays Lium for tests: by `api.json`, a description of the calls that are used, as the vendor publishes none. What it forbids is refused,
//! and this cloud's own answers are held to it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)] // tests

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use dstack_backend_kit::{Emulator, Ledger};
use dstack_conformance::{Asked, Document, Exchange};
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long it takes from one stage of a pod's life to the next: an image, a container, an address.
const PACE: Duration = Duration::from_secs(10);

/// Calls that an account may make in a minute.
pub const CALLS: usize = 60;

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Lium(Arc<Shared>);

struct Shared {
    api_key: String,
    pace: Duration,
    /// As the public feed has them, with the GPUs that are free at first.
    nodes: Vec<Value>,
    description: Document,
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
    pods: Vec<Pod>,
    templates: Vec<Thing>,
    volumes: Vec<Thing>,
    logins: Vec<Thing>,
    /// Keys of calls for pods, with what was asked for and answered.
    rents: Vec<(String, Value, Answer)>,
    /// Bodies with which templates and pods were asked for.
    asked: Vec<Value>,
    sold_out: bool,
    has_no_money: bool,
    maps_one_port_only: bool,
    /// A call with a key that was used makes another pod.
    forgets_keys: bool,
    /// Events are not told to who comes with a key.
    hides_events: bool,
    limits_calls: bool,
    /// When the calls of the last minute were made.
    calls: VecDeque<Instant>,
    lag: Duration,
    ids: u32,
}

#[derive(Debug)]
struct Pod {
    id: String,
    name: String,
    node: String,
    gpus: i64,
    template: String,
    volume: Option<String>,
    made_at: Instant,
    listed_at: Instant,
    deleted_at: Option<Instant>,
    has_failed: bool,
}

/// A template, volume or login.
#[derive(Debug)]
struct Thing {
    id: String,
    name: String,
    /// That to the registry of a template's image.
    login: Option<String>,
    listed_at: Instant,
}

impl Pod {
    fn status(&self, pace: Duration) -> &'static str {
        let stage = self.made_at.elapsed().as_millis() / pace.as_millis().max(1);
        match self.deleted_at {
            Some(at) if at.elapsed() >= pace => "DELETED",
            Some(_) => "DELETING",
            None if self.has_failed => "FAILED",
            None if stage < 2 => "PENDING",
            None => "RUNNING",
        }
    }

    fn to_json(&self, cloud: &Cloud, pace: Duration) -> Value {
        let status = self.status(pace);
        // It runs before it is told how it is reached.
        let is_reached = status == "RUNNING" && self.made_at.elapsed() >= pace * 3;
        let ports = match cloud.maps_one_port_only {
            true => json!({"22": 20022}),
            false => json!({"22": 20022, "10022": 20023}),
        };
        json!({
            "id": self.id,
            "pod_name": self.name,
            "status": status,
            "executor_id": self.node,
            "ssh_connect_cmd": is_reached.then_some("ssh root@192.0.2.41 -p 20022"),
            "ports_mapping": if is_reached { ports } else { json!({}) },
            "gpu_count": self.gpus,
            "price": 2.1,
            "created_at": "2026-10-01T12:00:00",
            "updated_at": null,
            "phase": (status == "PENDING").then_some("pulling image"),
        })
    }
}

impl Cloud {
    fn new_id(&mut self) -> String {
        self.ids += 1;
        format!("b7c1b0de-58a1-4d2b-9a60-{:012x}", self.ids)
    }

    fn add(&mut self, name: &str) -> Thing {
        Thing {
            id: self.new_id(),
            name: name.to_owned(),
            login: None,
            listed_at: Instant::now() + self.lag,
        }
    }

    /// GPUs of a node that pods have.
    fn taken(&self, node: &str, pace: Duration) -> i64 {
        let there = self.pods.iter().filter(|pod| pod.node == node);
        there
            .filter(|pod| pod.status(pace) != "DELETED")
            .map(|pod| pod.gpus)
            .sum()
    }
}

/// Those that the API knows by now.
fn listed(things: &[Thing]) -> impl Iterator<Item = &Thing> {
    things.iter().filter(|thing| thing.listed_at <= Instant::now())
}

/// The position of what the API knows by now.
fn position(things: &[Thing], id: &str) -> Option<usize> {
    let is_it = |thing: &Thing| thing.id == id && thing.listed_at <= Instant::now();
    things.iter().position(is_it)
}

/// Status and body; of an error, status and code.
type Answer = Result<Value, (u16, &'static str)>;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Lium {
    /// A cloud whose account has this key, with these nodes.
    pub fn new(api_key: &str, nodes: Vec<Value>) -> Self {
        Self::with_pace(api_key, nodes, PACE)
    }

    /// As [`Lium::new`], with pods that take so long from one stage of their lives to the next.
    pub fn with_pace(api_key: &str, nodes: Vec<Value>, pace: Duration) -> Self {
        let description: Value = serde_json::from_str(include_str!("../api.json")).unwrap();
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            pace,
            nodes,
            description: Document::new(&description).unwrap(),
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// Bodies with which templates and pods were asked for.
    pub fn asked(&self) -> Vec<Value> {
        self.lock().asked.clone()
    }

    /// How many logins to image registries there are. They cost nothing.
    pub fn logins(&self) -> usize {
        self.lock().logins.len()
    }

    /// The account has no money left.
    pub fn use_up_money(&self) {
        self.lock().has_no_money = true;
    }

    /// Nodes have only one port for each pod.
    pub fn map_one_port_only(&self) {
        self.lock().maps_one_port_only = true;
    }

    /// A Lium that does not know repeated calls: each makes a pod.
    pub fn forget_keys(&self) {
        self.lock().forgets_keys = true;
    }

    /// What happened to pods is not told.
    pub fn hide_events(&self) {
        self.lock().hides_events = true;
    }

    /// No more than [`CALLS`] in a minute are answered.
    pub fn limit_calls(&self) {
        self.lock().limits_calls = true;
    }

    fn has_too_many_calls(&self) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        state
            .calls
            .retain(|at| now.duration_since(*at) < Duration::from_secs(60));
        state.calls.push_back(now);
        state.limits_calls && state.calls.len() > CALLS
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is deleted costs nothing any more.
    fn settle(&self) {
        for pod in &self.lock().pods {
            if pod.status(self.0.pace) == "DELETED" {
                self.0.ledger.removed(&pod.id);
            }
        }
    }

    fn answer(&self, request: &Request<'_>, headers: &HeaderMap) -> Answer {
        let key = headers.get("x-api-key");
        let is_known = key.is_some_and(|key| key.as_bytes() == self.0.api_key.as_bytes());
        if !is_known && request.path != "/api/public/v1/nodes" {
            return Err((401, "invalid_api_key"));
        }
        let asked = Asked {
            method: request.method,
            path: request.path,
            query: &request.query,
            body: request.body,
        };
        if self.0.description.check_request(asked).is_err() {
            return Err((422, "validation_error"));
        }
        self.settle();
        let body: Value = serde_json::from_slice(request.body).unwrap_or_default();
        let path = request.path.strip_prefix("/api/").unwrap_or_default();
        let path: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (request.method, path.as_slice()) {
            ("GET", ["public", "v1", "nodes"]) => Ok(self.nodes()),
            ("GET", ["users", "me"]) => {
                Ok(json!({"id": "u-1", "email": "jdoe@example.com", "balance": 42.0}))
            }
            ("GET", ["version"]) => Ok(self.version()),
            ("GET", ["users", "me", "events"]) => self.events(),
            ("GET", ["pods"]) => Ok(self.pods()),
            ("GET", ["pods", id]) => self.pod(id),
            ("DELETE", ["pods", id]) => self.delete_pod(id),
            ("POST", ["executors", node, "rent"]) => self.rent(node, &body, headers),
            ("GET", ["templates"]) => Ok(self.templates()),
            ("POST", ["templates"]) => self.create_template(&body),
            ("DELETE", ["templates", id]) => self.delete_template(id),
            ("POST", ["docker-credentials"]) => Ok(self.create_login(&body)),
            ("DELETE", ["docker-credentials", id]) => self.delete_login(id),
            ("GET", ["volumes"]) => Ok(self.volumes()),
            ("POST", ["volumes"]) => self.create_volume(&body),
            ("GET", ["volumes", id]) => self.volume(id),
            ("DELETE", ["volumes", id]) => self.delete_volume(id),
            _ => Err((404, "not_found")),
        }
    }

    fn nodes(&self) -> Value {
        let state = self.lock();
        let nodes = self.0.nodes.iter().map(|node| {
            let taken = state.taken(text(&node["id"]), self.0.pace);
            let free = node["available_gpu_count"].as_i64().unwrap_or_default() - taken;
            let mut node = node.clone();
            node["available_gpu_count"] = json!(free);
            node
        });
        json!({"nodes": nodes.collect::<Vec<_>>()})
    }

    fn pods(&self) -> Value {
        let state = self.lock();
        let listed = state.pods.iter();
        let listed =
            listed.filter(|pod| pod.listed_at <= Instant::now() && pod.status(self.0.pace) != "DELETED");
        json!(
            listed
                .map(|pod| pod.to_json(&state, self.0.pace))
                .collect::<Vec<_>>()
        )
    }

    /// Newest first, with pods that are deleted. They are told at once, however late lists are.
    fn events(&self) -> Answer {
        let state = self.lock();
        if state.hides_events {
            return Err((401, "invalid_api_key"));
        }
        let event = |pod: &Pod, from: Option<&str>, to: &str, kind: &str| {
            json!({"id": 1, "pod_id": pod.id, "pod_name": pod.name, "from_status": from, "to_status": to,
                "event_type": "pod", "sub_event_type": kind, "created_at": "2026-10-01T12:00:00"})
        };
        let mut events = Vec::new();
        for pod in state.pods.iter().rev() {
            if pod.deleted_at.is_some() {
                let status = pod.status(self.0.pace);
                events.push(event(pod, Some("RUNNING"), status, "pod-delete.request"));
            }
            events.push(event(pod, None, "PENDING", "pod-create.request"));
        }
        Ok(json!(events))
    }

    fn version(&self) -> Value {
        let features = match self.lock().forgets_keys {
            true => vec!["workspaces"],
            false => vec!["rent_idempotency", "workspaces"],
        };
        json!({"version": "2026.10.1", "features": features})
    }

    fn pod(&self, id: &str) -> Answer {
        let state = self.lock();
        let mut listed = state.pods.iter();
        let found = listed.find(|pod| pod.id == id && pod.listed_at <= Instant::now());
        found
            .map(|pod| pod.to_json(&state, self.0.pace))
            .ok_or((404, "pod_not_found"))
    }

    fn delete_pod(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let mut listed = state.pods.iter_mut();
        let found = listed.find(|pod| pod.id == id && pod.listed_at <= Instant::now());
        let pod = found.ok_or((404, "pod_not_found"))?;
        if pod.deleted_at.is_some() {
            return Err((409, "pod_state_conflict"));
        }
        pod.deleted_at = Some(Instant::now());
        Ok(json!({}))
    }

    fn rent(&self, node: &str, body: &Value, headers: &HeaderMap) -> Answer {
        let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
        let key = key.ok_or((422, "idempotency_key_required"))?.to_owned();
        let asked = json!([node, body]);
        let mut state = self.lock();
        let mut rents = state.rents.iter().filter(|_| !state.forgets_keys);
        if let Some((_, before, answer)) = rents.find(|(known, ..)| *known == key) {
            return match *before == asked {
                true => answer.clone(),
                false => Err((422, "idempotency_key_reused")),
            };
        }
        let answer = self.rent_once(&mut state, node, body);
        state.rents.push((key, asked, answer.clone()));
        answer
    }

    fn rent_once(&self, state: &mut Cloud, node: &str, body: &Value) -> Answer {
        let gpus = body["gpu_count"].as_i64().unwrap_or_default();
        let found = self.0.nodes.iter().find(|known| text(&known["id"]) == node);
        let found = found.ok_or((404, "node_not_found"))?;
        if !state
            .templates
            .iter()
            .any(|known| known.id == text(&body["template_id"]))
        {
            return Err((404, "template_not_found"));
        }
        if !text(&body["user_public_key"]).starts_with("ssh-") {
            return Err((400, "invalid_public_key"));
        }
        let volume = body["volume_id"].as_str().map(str::to_owned);
        if let Some(volume) = &volume
            && !state.volumes.iter().any(|known| known.id == *volume)
        {
            return Err((404, "volume_not_found"));
        }
        if state.has_no_money {
            return Err((402, "insufficient_balance"));
        }
        let free = found["available_gpu_count"].as_i64().unwrap_or_default() - state.taken(node, self.0.pace);
        if state.sold_out || gpus > free {
            return Err((409, "node_unavailable"));
        }
        if gpus < found["min_rentable_gpu_count"].as_i64().unwrap_or(1) {
            return Err((400, "gpu_split_not_allowed"));
        }
        state.asked.push(body.clone());
        let id = state.new_id();
        let name = text(&body["pod_name"]).to_owned();
        self.0.ledger.made("pod", id.clone(), &*name);
        let now = Instant::now();
        let pod = Pod {
            id: id.clone(),
            name,
            node: node.to_owned(),
            gpus,
            template: text(&body["template_id"]).to_owned(),
            volume,
            made_at: now,
            listed_at: now + state.lag,
            deleted_at: None,
            has_failed: false,
        };
        state.pods.push(pod);
        Ok(json!({"success": true, "pod_id": id}))
    }

    fn templates(&self) -> Value {
        let state = self.lock();
        let template = |thing: &Thing| {
            json!({"id": thing.id, "name": thing.name, "docker_image": "image", "docker_image_tag": "1",
                "status": "CREATED", "category": "UBUNTU"})
        };
        json!(listed(&state.templates).map(template).collect::<Vec<_>>())
    }

    fn create_template(&self, body: &Value) -> Answer {
        let mut state = self.lock();
        let name = text(&body["name"]).to_owned();
        let login = body["docker_credential_id"].as_str().map(str::to_owned);
        let is_known = |login: &String| state.logins.iter().any(|known| known.id == *login);
        if !login.as_ref().is_none_or(is_known) {
            return Err((404, "credential_not_found"));
        }
        let mut thing = state.add(&name);
        thing.login = login;
        self.0.ledger.made("template", thing.id.clone(), &*name);
        let answer =
            json!({"id": thing.id, "name": name, "docker_image": body["docker_image"], "status": "CREATED"});
        state.templates.push(thing);
        state.asked.push(body.clone());
        Ok(answer)
    }

    fn delete_template(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let at = position(&state.templates, id).ok_or((404, "template_not_found"))?;
        let is_used = |pod: &Pod| pod.template == id && pod.status(self.0.pace) != "DELETED";
        if state.pods.iter().any(is_used) {
            return Err((409, "template_in_use"));
        }
        state.templates.remove(at);
        self.0.ledger.removed(id);
        Ok(json!({}))
    }

    fn create_login(&self, body: &Value) -> Value {
        let mut state = self.lock();
        let thing = state.add(text(&body["docker_username"]));
        let answer = json!({"id": thing.id, "docker_username": thing.name});
        state.logins.push(thing);
        answer
    }

    fn delete_login(&self, id: &str) -> Answer {
        let mut state = self.lock();
        // Nothing lists logins: they are known at once.
        if state
            .templates
            .iter()
            .any(|template| template.login.as_deref() == Some(id))
        {
            return Err((409, "credential_in_use"));
        }
        let at = state.logins.iter().position(|login| login.id == id);
        state.logins.remove(at.ok_or((404, "credential_not_found"))?);
        Ok(json!({}))
    }

    fn volumes(&self) -> Value {
        let state = self.lock();
        json!(listed(&state.volumes).map(volume_json).collect::<Vec<_>>())
    }

    fn volume(&self, id: &str) -> Answer {
        let state = self.lock();
        let at = position(&state.volumes, id).ok_or((404, "volume_not_found"))?;
        Ok(volume_json(&state.volumes[at]))
    }

    fn create_volume(&self, body: &Value) -> Answer {
        let mut state = self.lock();
        if state.sold_out {
            return Err((402, "insufficient_balance"));
        }
        let thing = state.add(text(&body["name"]));
        self.0.ledger.made("volume", thing.id.clone(), thing.name.clone());
        let answer = volume_json(&thing);
        state.volumes.push(thing);
        Ok(answer)
    }

    fn delete_volume(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let at = position(&state.volumes, id).ok_or((404, "volume_not_found"))?;
        let is_used = |pod: &Pod| pod.volume.as_deref() == Some(id) && pod.status(self.0.pace) != "DELETED";
        if state.pods.iter().any(is_used) {
            return Err((409, "volume_in_use"));
        }
        state.volumes.remove(at);
        self.0.ledger.removed(id);
        Ok(json!({}))
    }
}

fn volume_json(thing: &Thing) -> Value {
    json!({"id": thing.id, "name": thing.name, "description": "", "created_at": "2026-10-01T12:00:00",
        "current_size_gb": 0.0})
}

/// A request of the account.
struct Request<'a> {
    method: &'a str,
    path: &'a str,
    /// Names of the parameters in the query.
    query: Vec<String>,
    body: &'a [u8],
}

async fn serve(
    State(cloud): State<Lium>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let names = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let request = Request {
        method: method.as_str(),
        path: uri.path(),
        query: names.map(|(name, _)| name.into_owned()).collect(),
        body: &body,
    };
    if cloud.has_too_many_calls() {
        let pause = [("retry-after", "60")];
        return (StatusCode::TOO_MANY_REQUESTS, pause, "").into_response();
    }
    let (status, answer) = match cloud.answer(&request, &headers) {
        Ok(answer) => (200, answer),
        Err((status, code)) => (
            status,
            json!({"error": {"code": code, "message": "see the code"}}),
        ),
    };
    let answer = answer.to_string().into_bytes();
    let exchange = Exchange {
        method: request.method,
        path: request.path,
        status,
        body: &answer,
    };
    if let Err(wrong) = cloud.0.description.check(exchange) {
        panic!("the emulator answers what the description does not have: {wrong}");
    }
    let status = StatusCode::from_u16(status).unwrap();
    (status, [(CONTENT_TYPE, "application/json")], answer).into_response()
}

impl Emulator for Lium {
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
        for pod in &mut self.lock().pods {
            pod.has_failed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_description_forbids_is_refused() {
        let cloud = Lium::new("key", Vec::new());
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", "key".parse().unwrap());
        let status = |method: &str, path: &str, body: &Value| {
            let body = body.to_string();
            let request = Request {
                method,
                path,
                query: Vec::new(),
                body: if method == "GET" { b"" } else { body.as_bytes() },
            };
            cloud.answer(&request, &headers).err()
        };
        let template = json!({"name": "t", "docker_image": "i"});
        assert_eq!(status("POST", "/api/templates", &template), None);
        let strange = json!({"name": "t", "docker_image": "i", "docker_credential_id": "gone"});
        assert_eq!(
            status("POST", "/api/templates", &strange),
            Some((404, "credential_not_found"))
        );
        for (path, body) in [
            ("/api/templates", json!({"name": "t"})),
            (
                "/api/templates",
                json!({"name": "t", "docker_image": "i", "colour": "red"}),
            ),
            (
                "/api/templates",
                json!({"name": "t", "docker_image": "i", "internal_ports": ["22"]}),
            ),
            ("/api/volumes", json!({"name": 1})),
            ("/api/executors/n/rent", json!({"pod_name": "p"})),
        ] {
            assert_eq!(
                status("POST", path, &body),
                Some((422, "validation_error")),
                "{path} {body}"
            );
        }
        let pod = json!({"pod_name": "p", "template_id": "t", "user_public_key": "ssh-x", "gpu_count": 1,
            "initial_port_count": 2});
        assert_eq!(
            status("POST", "/api/executors/n/rent", &pod),
            Some((422, "idempotency_key_required"))
        );
    }
}
