//! Plays a Kubernetes cluster by its API description (core/v1), for tests: API server, scheduler and kubelet.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::expect_used
)] // tests

mod asked;
mod kubelet;
mod rights;
mod schema;
mod store;

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use dstack_backend_kit::{Emulator, Ledger};
use dstack_units::Time;
use serde_json::{Value, json};

pub use asked::Asked;
use asked::verb;
use kubelet::Kubelet;
pub use kubelet::{Network, NodePort};
use rights::Denied;
use schema::Schemas;
pub use store::{Balancers, Times};
use store::{Failure, Kind, Store, USUAL};

/// To compile them takes a good part of a second.
static SCHEMAS: LazyLock<Schemas> = LazyLock::new(Schemas::new);

/// A cluster, with one user.
#[derive(Debug, Clone)]
pub struct Kubernetes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    token: String,
    is_open: bool,
    ledger: Ledger,
    store: Mutex<Store>,
    /// Another cluster, which may take the place of this one.
    other: Mutex<Store>,
    asked: Mutex<Vec<Asked>>,
    denied: Mutex<Denied>,
    /// What admission says to the next objects of a kind.
    refused: Mutex<Vec<(Kind, Failure)>>,
    /// `None`: nothing runs for real.
    kubelet: Option<Mutex<Kubelet>>,
}

impl Kubernetes {
    /// A cluster in which this token logs in (whoever comes, if it is empty), with these nodes (`Node` of the API), at this time.
    pub fn new(token: &str, nodes: Vec<Value>, now: Time) -> Self {
        Self::made_of(token, nodes, now, USUAL, None)
    }

    /// As [`Kubernetes::new`], with pods whose containers run for real. A service of type `LoadBalancer` has the address of its pod.
    pub fn with_containers(
        token: &str,
        nodes: Vec<Value>,
        now: Time,
        times: Times,
        network: Box<dyn Network>,
    ) -> Self {
        Self::made_of(token, nodes, now, times, Some(Kubelet::new(network)))
    }

    fn made_of(token: &str, nodes: Vec<Value>, now: Time, times: Times, kubelet: Option<Kubelet>) -> Self {
        let mut store = Store::new(1, nodes.clone(), now, times);
        if kubelet.is_some() {
            store.balancers = Balancers::None;
        }
        Self(Arc::new(Shared {
            token: format!("Bearer {token}"),
            is_open: token.is_empty(),
            ledger: Ledger::default(),
            store: Mutex::new(store),
            other: Mutex::new(Store::new(2, nodes, now, times)),
            asked: Mutex::default(),
            denied: Mutex::default(),
            refused: Mutex::default(),
            kubelet: kubelet.map(Mutex::new),
        }))
    }

    /// All requests that were answered, in their order.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.0.asked).clone()
    }

    /// Nobody may do this to objects of this kind (`pods`) any more.
    pub fn deny(&self, verb: &str, resource: &str) {
        lock(&self.0.denied).deny(verb, resource);
    }

    /// Admission refuses the next object of this kind so.
    pub fn refuse(&self, kind: &str, code: u16, reason: &'static str, message: &str) {
        let kind = Kind::of_path(kind).unwrap();
        lock(&self.0.refused).push((kind, Failure::new(code, reason, message)));
    }

    /// Another cluster is at the same address from now on; once more, and it is this one again.
    pub fn swap_cluster(&self) {
        std::mem::swap(&mut *self.lock(), &mut *lock(&self.0.other));
    }

    /// Somebody else makes an object in a namespace.
    pub fn put(&self, namespace: &str, object: &Value) {
        let kind = Kind::of_name(object["kind"].as_str().unwrap()).unwrap();
        self.lock().put(kind, namespace, object.clone());
    }

    /// These are the nodes from now on. Pods stay where they are.
    pub fn set_nodes(&self, nodes: Vec<Value>) {
        self.lock().set_nodes(nodes);
    }

    /// What is done for services of type `LoadBalancer` from now on.
    pub fn set_balancers(&self, balancers: Balancers) {
        self.lock().balancers = balancers;
    }

    /// The load balancer of a service is at this IP address from now on.
    pub fn set_address(&self, service: &str, ip: &str) {
        self.lock().set_address(service, ip);
    }

    /// The rest of so many lists expires before it is asked for.
    pub fn expire_pages(&self, times: u32) {
        self.lock().expiring = times;
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        lock(&self.0.store)
    }

    /// Time goes on.
    fn settle(&self) {
        let mut store = self.lock();
        store.settle(&self.0.ledger);
        if let Some(kubelet) = &self.0.kubelet {
            lock(kubelet).settle(&mut store);
        }
    }

    /// Everything that there is besides nodes and namespaces: `kind/name`.
    pub fn objects(&self) -> Vec<String> {
        self.settle();
        self.lock().names()
    }

    /// An object by its kind (`pods`) and name.
    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        self.settle();
        let kind = Kind::of_path(kind)?;
        self.lock()
            .all(kind, None)
            .into_iter()
            .find(|one| one["metadata"]["name"] == name)
    }

    /// Sets the status of pods whose names begin so, for good.
    pub fn set_pod_status(&self, prefix: &str, status: &Value) {
        self.lock().set_pod_status(prefix, status);
    }

    fn answer(&self, method: &Method, uri: &Uri, body: &Value) -> Result<Value, Failure> {
        let query = |name: &str| {
            let pairs = uri.query().unwrap_or_default().split('&');
            let mut values = pairs
                .filter_map(|pair| pair.split_once('='))
                .filter(|(key, _)| *key == name);
            values.next().map(|(_, value)| decode(value))
        };
        let parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let (kind, namespace, name) = match parts.as_slice() {
            ["version"] => {
                return Ok(
                    json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "", "gitTreeState": "clean",
                "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1.24", "compiler": "gc", "platform": "linux/amd64"}),
                );
            }
            ["api"] => {
                return Ok(
                    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
                );
            }
            ["apis"] => return Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})),
            ["api", "v1"] => return Ok(Kind::discovery()),
            ["api", "v1", "namespaces"] => (Kind::Namespace, None, None),
            ["api", "v1", "namespaces", name] => (Kind::Namespace, None, Some(*name)),
            ["api", "v1", "namespaces", namespace, kind] => (Kind::namespaced(kind)?, Some(*namespace), None),
            ["api", "v1", "namespaces", namespace, kind, name] => {
                (Kind::namespaced(kind)?, Some(*namespace), Some(*name))
            }
            ["api", "v1", kind] => (Kind::of_path(kind).ok_or_else(Failure::no_path)?, None, None),
            ["api", "v1", "nodes", name] => (Kind::Node, None, Some(*name)),
            ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] if method == Method::POST => {
                return lock(&self.0.denied).review(body);
            }
            _ => return Err(Failure::no_path()),
        };
        let (resource, verb) = (kind.path(), verb(method, name.is_some()));
        lock(&self.0.denied).check(verb, &resource, namespace)?;
        let note = |listed: usize| {
            lock(&self.0.asked).push(Asked {
                verb,
                resource: resource.clone(),
                is_namespaced: namespace.is_some(),
                listed,
            });
        };
        let mut store = self.lock();
        let ledger = &self.0.ledger;
        match (method.as_str(), name) {
            ("GET", None) => {
                let list = store.list(kind, namespace, &query)?;
                note(list["items"].as_array().unwrap().len());
                return Ok(list);
            }
            _ => note(0),
        }
        match (method.as_str(), name) {
            ("GET", Some(name)) => store.get(kind, namespace, name),
            ("POST", None) => {
                let mut refused = lock(&self.0.refused);
                if let Some(at) = refused.iter().position(|(of, _)| *of == kind) {
                    return Err(refused.remove(at).1);
                }
                let body = schema::without_nulls(body);
                SCHEMAS.check(kind.name(), &body)?;
                store.create(kind, namespace, body, ledger)
            }
            ("PATCH", Some(name)) => store.patch(kind, namespace, name, body, |whole| {
                SCHEMAS.check(kind.name(), whole)
            }),
            ("DELETE", Some(name)) => store.delete(kind, namespace, name, body, ledger),
            _ => Err(Failure::new(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )),
        }
    }

    /// Events of a watch until the pods that it is about have begun or ended, or its time is over.
    async fn watch(&self, uri: &Uri) -> Response {
        let plain: Uri = uri
            .to_string()
            .replace("watch=true", "")
            .replace("watch=True", "")
            .parse()
            .unwrap();
        let mut lines = String::new();
        let mut before = Value::Null;
        for _ in 0..100 {
            self.settle();
            let list = self
                .answer(&Method::GET, &plain, &Value::Null)
                .unwrap_or_default();
            let items = list["items"].as_array().cloned().unwrap_or_default();
            if list["items"] != before {
                let kind = if before.is_null() { "ADDED" } else { "MODIFIED" };
                for item in &items {
                    lines.push_str(&json!({"type": kind, "object": item}).to_string());
                    lines.push('\n');
                }
                before = list["items"].clone();
            }
            let has_begun = |item: &Value| item["status"]["phase"] != "Pending";
            if !items.is_empty() && items.iter().all(has_begun) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ([(header::CONTENT_TYPE, "application/json")], lines).into_response()
    }
}

async fn call(State(cluster): State<Kubernetes>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let user = parts.headers.get(header::AUTHORIZATION);
    let is_known = user.is_some_and(|value| value.as_bytes() == cluster.0.token.as_bytes());
    if !cluster.0.is_open && !is_known {
        return Failure::new(401, "Unauthorized", "Unauthorized").into_response();
    }
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body = match body.is_empty() {
        true => Value::Null,
        false => match serde_json::from_slice(&body) {
            Ok(value) => value,
            Err(error) => return Failure::new(400, "BadRequest", &error.to_string()).into_response(),
        },
    };
    let query = parts.uri.query().unwrap_or_default().to_ascii_lowercase();
    if query.contains("watch=true") || query.contains("watch=1") {
        return cluster.watch(&parts.uri).await;
    }
    cluster.settle();
    let answer = cluster.answer(&parts.method, &parts.uri, &body);
    cluster.settle();
    match answer {
        Ok(value) if parts.method == Method::POST => (StatusCode::CREATED, Json(value)).into_response(),
        Ok(value) => Json(value).into_response(),
        Err(failure) => failure.into_response(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of the query.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap_or("0"), 16).unwrap_or(b'?')
            }
            other => other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
            "reason": self.reason, "code": self.code});
        (StatusCode::from_u16(self.code).unwrap(), Json(status)).into_response()
    }
}

impl Emulator for Kubernetes {
    fn router(&self) -> Router {
        Router::new().fallback(call).with_state(self.clone())
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
        self.lock().lose_all();
    }
}
