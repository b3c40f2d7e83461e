//! Plays Runpod for tests: REST v2 by its vendor's description, and the one mutation of GraphQL that the description lacks.
//!
//! `api.json` is the vendor's OpenAPI description 2.0.0 as far as it is used, without its prose, and with the fields that the API
//! takes and the description lacks: `entrypoint` and `cmd` of containers, `minVcpuCountPerGpu` and `minRamPerGpu`. What it forbids is
//! refused, and this cloud's own answers are held to it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)] // tests

mod calls;
mod graphql;
mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use dstack_backend_kit::{Containers, Emulator, Ledger};
use dstack_conformance::{Asked, Document, Exchange};
use serde_json::{Value, json};

use state::Cloud;

/// How long it takes from one stage of a pod's life to the next: a host, a start, an address.
const PACE: Duration = Duration::from_secs(10);

/// What the cloud has: a size in a data center, or of the community in a country.
#[derive(Debug, Clone)]
pub struct Size {
    /// A type of GPUs, or `<flavor>-<vcpus>-<memory>`.
    pub name: String,
    /// A data center such as `US-TX-3`, or a country such as `CA`.
    pub place: String,
    /// GPUs of a pod; 0: a CPU pod.
    pub gpus: i64,
    /// CPUs of the host.
    pub cpus: i64,
    /// Memory of the host in GiB.
    pub memory: f64,
    /// Largest disk in GB, if there is one.
    pub disk: Option<f64>,
    /// Whether it is for clusters.
    pub is_for_clusters: bool,
}

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Runpod(Arc<Shared>);

struct Shared {
    api_key: String,
    sizes: Vec<Size>,
    pace: Duration,
    /// What runs the containers of pods; `None`: nothing does.
    containers: Option<Box<dyn Containers>>,
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

impl Runpod {
    /// A cloud whose account has this key, with these sizes.
    pub fn new(api_key: &str, sizes: Vec<Size>) -> Self {
        Self::with_pace(api_key, sizes, PACE)
    }

    /// As [`Runpod::new`], with pods that take so long from one stage of their lives to the next.
    pub fn with_pace(api_key: &str, sizes: Vec<Size>, pace: Duration) -> Self {
        Self::made_of(api_key, sizes, pace, None)
    }

    /// As [`Runpod::with_pace`], with pods whose containers run for real.
    pub fn with_containers(
        api_key: &str,
        sizes: Vec<Size>,
        pace: Duration,
        containers: Box<dyn Containers>,
    ) -> Self {
        Self::made_of(api_key, sizes, pace, Some(containers))
    }

    fn made_of(
        api_key: &str,
        sizes: Vec<Size>,
        pace: Duration,
        containers: Option<Box<dyn Containers>>,
    ) -> Self {
        let description: Value = serde_json::from_str(include_str!("../api.json")).unwrap();
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            sizes,
            pace,
            containers,
            description: Document::new(&description).unwrap(),
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let expected = format!("Bearer {}", self.0.api_key);
        headers
            .get(AUTHORIZATION)
            .is_some_and(|key| key.as_bytes() == expected.as_bytes())
    }

    fn answer(&self, request: &Request<'_>, headers: &HeaderMap) -> Answer {
        if !self.knows(headers) {
            return Err(Problem::new(401, "invalid api key"));
        }
        let asked = Asked {
            method: request.method,
            path: request.path,
            query: &request.query,
            body: request.body,
        };
        let description = &self.0.description;
        if let Err(errors) = description.check_request(asked) {
            return Err(Problem {
                status: 422,
                detail: "Request validation failed.".to_owned(),
                errors,
            });
        }
        let body = serde_json::from_slice(request.body).unwrap_or_default();
        self.call(request, &body)
    }
}

/// A request of the account.
struct Request<'a> {
    method: &'a str,
    path: &'a str,
    /// Names of the parameters in the query.
    query: Vec<String>,
    body: &'a [u8],
}

/// Status and body; `Null`: no body.
type Answer = Result<(u16, Value), Problem>;

/// A refusal (`ErrorResponse`).
#[derive(Debug)]
struct Problem {
    status: u16,
    detail: String,
    errors: Vec<String>,
}

impl Problem {
    fn new(status: u16, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            errors: Vec::new(),
        }
    }

    fn to_json(&self) -> Value {
        let title = StatusCode::from_u16(self.status).unwrap().canonical_reason();
        let mut problem = json!({"title": title, "status": self.status, "detail": self.detail});
        if !self.errors.is_empty() {
            problem["errors"] = json!(self.errors);
        }
        problem
    }
}

async fn serve(
    State(cloud): State<Runpod>,
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
    let (status, media, answer) = match cloud.answer(&request, &headers) {
        Ok((status, answer)) => (status, "application/json", answer),
        Err(problem) => (problem.status, "application/problem+json", problem.to_json()),
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
    if let Err(wrong) = cloud.0.description.check(exchange) {
        panic!("the emulator answers what the vendor's description does not have: {wrong}");
    }
    let status = StatusCode::from_u16(status).unwrap();
    (status, [(CONTENT_TYPE, media)], answer).into_response()
}

impl Emulator for Runpod {
    fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.clone())
    }

    fn ledger(&self) -> &Ledger {
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
            pod.has_exited = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_description_forbids_is_refused() {
        let cloud = Runpod::new("key", Vec::new());
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, "Bearer key".parse().unwrap());
        let known = headers.clone();
        let status = |method: &str, path: &str, query: &[&str], body: &str| {
            let request = Request {
                method,
                path,
                query: query.iter().map(|name| (*name).to_owned()).collect(),
                body: body.as_bytes(),
            };
            cloud
                .answer(&request, &known)
                .map_or_else(|problem| problem.status, |(status, _)| status)
        };
        let cluster = json!({"name": "c", "type": "TRAINING", "image": "i",
            "compute": {"gpuTypeId": "g", "gpuCountPerPod": 8, "podCount": 2}});
        let pod = json!({"name": "p", "image": "i", "entrypoint": ["/bin/sh"], "cpu": {"id": "cpu3c", "vcpuCount": 2}});
        let with = |base: &Value, field: &str, value: Value| {
            let mut body = base.clone();
            body[field] = value;
            body
        };
        // There is nothing in this cloud.
        assert_eq!(status("POST", "/v2/pods", &[], &pod.to_string()), 400);
        assert_eq!(status("POST", "/v2/clusters", &[], &cluster.to_string()), 400);
        for (path, body) in [
            ("pods", with(&pod, "colour", json!("red"))),
            ("pods", with(&pod, "disk", json!("large"))),
            ("pods", with(&pod, "image", json!(null))),
            (
                "pods",
                with(&pod, "gpu", json!({"id": "g", "minCudaVersion": "new"})),
            ),
            (
                "pods",
                with(&pod, "mounts", json!({"network": [{"volumeId": "v"}]})),
            ),
            ("clusters", with(&cluster, "registry", json!("clxreg0001"))),
            ("clusters", with(&cluster, "type", json!("OTHER"))),
            (
                "network-volumes",
                json!({"name": "v", "dataCenter": "US-TX-3", "size": 9}),
            ),
            (
                "registries",
                json!({"name": "r", "username": "u", "password": ""}),
            ),
        ] {
            assert_eq!(
                status("POST", &format!("/v2/{path}"), &[], &body.to_string()),
                422,
                "{path} {body}"
            );
        }
        assert_eq!(status("GET", "/v2/pods", &["includeClusterPods"], ""), 200);
        assert_eq!(status("GET", "/v2/pods", &["limit"], ""), 422);
        headers.clear();
        assert_eq!(
            cloud
                .answer(
                    &Request {
                        method: "GET",
                        path: "/v2/pods",
                        query: Vec::new(),
                        body: b""
                    },
                    &headers
                )
                .unwrap_err()
                .status,
            401
        );
    }
}
